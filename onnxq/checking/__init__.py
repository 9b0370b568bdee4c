"""The file as it was written, against the float model: what it is judged by, what was found, what follows from it."""
