"""A model with all that another machine needs to run it, and what was measured, to be measured again there."""
