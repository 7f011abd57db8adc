"""A course of eight notebooks, from raw text to drawing. `limelight course` copies and opens them.

notebooks  copies for a reader, never over a changed one; Jupyter on them
pictures   matrices and attention weights as pictures

The notebooks use what the package uses itself; no model or corpus is fetched. With the environment
variable LIMELIGHT_COURSE_QUICK their trainings are shorter, for tests.
"""
