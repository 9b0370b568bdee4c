"""OpenVINO's plugin for processors, by what it was seen to fuse (version 2026)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.targets.rules import Rule, View
from onnxq.targets.rules._pairs import rounded_before_sums


def sums_without_rounding(view: View) -> Iterator[tuple[ir.Node | str, str, bool]]:
    """A convolution and the sum behind it are one kernel, unless the result is rounded between them."""
    for node in rounded_before_sums(view):
        yield node, "it is rounded before the sum that it could be fused with", False


RULES: tuple[Rule, ...] = (sums_without_rounding,)
