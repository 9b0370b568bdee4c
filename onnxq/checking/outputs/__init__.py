"""Outputs of the saved file have the shapes that they have in the float model, but for those that numbers decide."""
