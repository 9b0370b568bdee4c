"""A model leaves memory: one weight at a time into a folder, from which files are moved into place."""
