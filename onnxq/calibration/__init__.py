"""The float model runs on samples, and every activation that a plan needs is given a range."""
