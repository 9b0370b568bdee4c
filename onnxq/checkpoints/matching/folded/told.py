"""What torch's newer exporter says in the metadata of kernels of what it took away: of the BatchNorm that it folded,
whose module and call they are then, with its ε as the last number or the last but a flag; and of biases of zeros.

Parameters (`p_`) and buffers (`b_`) that a call had as they are, and not computed of others, are what checkpoints hold.

Source: torch's native_functions.yaml (`batch_norm`, `_native_batch_norm_legit_no_training`), onnxscript's rewriter
rules for BatchNorms (fuse_batchnorm.py), which keep the metadata of what was replaced.
"""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onnxq.model.origin import call_of, module_of

_CALL = re.compile(r"batch_norm[\w.]*\]\(args = \((?:[^()]*, )?([\d.e+-]+)(?:, (?:True|False))?\), kwargs")
_OF_PARAMETERS = re.compile(r"batch_norm[\w.]*\]\(args = \(%\w+, (?:%p_\w+|None), (?:%p_\w+|None), %b_\w+, %b_\w+,")
_WITH_BIAS = re.compile(r"(conv\w*|linear)[\w.]*\]\(args = \(%\w+, %p_\w+, %p_\w+[,)]|addmm[\w.]*\]\(args = \(%p_\w+, ")
_WITHOUT = re.compile(r"linear[\w.]*\]\(args = \(%\w+, %\w+\)|(matmul|bmm|mm|einsum)[\w.]*\]\(args = ")


def module(node: ir.Node) -> str:
    """The BatchNorm that a kernel has inside; "" if nothing says that it has one, of parameters as they are."""
    return module_of(node) if _OF_PARAMETERS.search(call_of(node)) else ""


def had_bias(node: ir.Node) -> bool:
    """Whether what is now this convolution or product had a parameter as its bias."""
    return bool(_WITH_BIAS.search(call_of(node)))


def had_none(node: ir.Node) -> bool:
    """Whether what is now this product had no bias, whatever the module has whose weight it reads."""
    return bool(_WITHOUT.search(call_of(node)))


def epsilon(node: ir.Node) -> float | None:
    """The ε of the BatchNorm in a kernel; None if nothing says it."""
    found = _CALL.search(call_of(node))
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
