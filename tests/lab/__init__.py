"""Tests of limelight.lab."""
