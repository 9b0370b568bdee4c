"""A process that is ours, of the command line or one that it starts: what it puts off when it begins, how it ends."""
