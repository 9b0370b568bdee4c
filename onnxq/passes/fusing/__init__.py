"""Nodes in float that become one node of the onnxq domain, with or without weights among them.

`planning/` says which: `planning/attention.py` how they are spelled, `planning/fused.py` where that is wished for.
"""
