"""Nodes in float that become one node of the onnxq domain, with or without weights among them.

`planning/attention.py` says how they are spelled, and where that is wished for.
"""
