"""A model too large to be run whole is checked node by node, each cut out of it and of the saved file."""
