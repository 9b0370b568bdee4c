"""What torch's newer exporter says of a BatchNorm in the metadata of the kernel that it folded that into: the module is
the BatchNorm's, and what was called has its ε, the last number or the last but a flag.

Source: torch's native_functions.yaml (`batch_norm`, `_native_batch_norm_legit_no_training`), onnxscript's rewriter
rules for BatchNorms (fuse_batchnorm.py), which keep the metadata of what was replaced.
"""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onnxq.model.origin import CALL, SCOPES, module_of

_CALL = re.compile(r"batch_norm[\w.]*\]\(args = \((?:[^()]*, )?([\d.e+-]+)(?:, (?:True|False))?\), kwargs")


def module(node: ir.Node) -> str:
    """The BatchNorm that a kernel has inside; "" if nothing says that it has one."""
    said = (node.metadata_props.get(name, "") for name in (SCOPES, CALL))
    return module_of(node) if any("batch_norm" in each for each in said) else ""


def epsilon(node: ir.Node) -> float | None:
    """The ε of the BatchNorm in a kernel; None if nothing says it."""
    found = _CALL.search(node.metadata_props.get(CALL, ""))
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
