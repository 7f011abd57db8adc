"""Predictions become good. So far: the settings of it."""
