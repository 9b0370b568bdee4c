"""onnxruntime itself: the module, and what it is told when it opens a model.

What programs need that only run models is here: reading it takes no library for graphs.
"""
