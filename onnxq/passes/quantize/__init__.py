"""Passes that carry a plan out, one kind of choice each."""
