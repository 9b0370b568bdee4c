"""OpenVINO's plugin for processors, by what it was seen to fuse (version 2026)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.model import graph
from onnxq.targets.rules import Found, Rule, View
from onnxq.targets.rules._pairs import rounded_before_sums
from onnxq.targets.rules._types import lacks_trees, lacks_types


def sums_without_rounding(view: View) -> Iterator[tuple[ir.Node | str, str, bool]]:
    """A convolution and the sum behind it are one kernel, unless the result is rounded between them."""
    for node in rounded_before_sums(view):
        yield node, "it is rounded before the sum that it could be fused with", False


def types_it_has(view: View) -> Found:
    """Of float64 it makes float32, or bf16 on processors that have it; trees, encoders and the like it does not read
    (both seen in version 2026.4)."""
    yield from lacks_types(view, "OpenVINO", {ir.DataType.DOUBLE: ("it computes in float32 or shorter types", False)})
    yield from lacks_trees(view, "OpenVINO", "it does not read the model", refuses=True)


def constant_tables(view: View) -> Found:
    """Codes that rows are looked up in have to be constants as they are (seen in version 2026.4)."""
    for node in view.of("GatherBlockQuantized", domain=graph.MICROSOFT):
        if graph.constant(node.inputs[0]) is None:
            yield node, "its codes are what another node makes: OpenVINO reads constants only", True


RULES: tuple[Rule, ...] = (sums_without_rounding, types_it_has, constant_tables)
