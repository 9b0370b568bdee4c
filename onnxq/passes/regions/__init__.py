"""Islands of int8 operators as single nodes, `onnxq.Region`, each with its island as its function body.

`groups` says which operators a region can compute and in which words, `islands` which of them go together, `body`
writes the node and its function. docs/regions.md has the words.
"""
