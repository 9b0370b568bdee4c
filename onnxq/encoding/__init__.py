"""A weight in a format, computed row by row when somebody reads it.

Imports formats, layouts and algorithms.
"""
