"""Passes that make the values inside of a model visible while it runs."""
