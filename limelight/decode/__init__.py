"""Predictions become tokens. So far: the settings of it."""
