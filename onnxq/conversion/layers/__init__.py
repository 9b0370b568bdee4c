"""A weight as the tensors of other projects' checkpoints, and what their configuration says of it: one file a project.

A file defines `parts(name, q)`: the tensors of the layer `name` and what is said of it, None where the project has no
form of the same numbers; `plain(name)`, what an array in floats is called; and `metadata` and `config`, what the files
and the folder say of all of them.
"""
