"""Which layer of a checkpoint goes where in a model, and in which form it is kept there."""
