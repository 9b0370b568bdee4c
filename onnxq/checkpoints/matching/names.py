"""What a product or table of a model may be called in a checkpoint."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import origin
from onnxq.model.weights import Weight


def names_of(weight: Weight) -> list[str]:
    """What a product may be called, its own name first: a value may be another's too, whose numbers are the same."""
    names = (weight.node.name, origin.module_of(weight.node), weight.value.name, weight.value.meta.get(origin.ORIGIN))
    return [dotted(name.removesuffix(".weight")) for name in names if name]


def dotted(name: str) -> str:
    """The name of a node as that of a module: `/layers.0/q/MatMul` is `layers.0.q`."""
    for op in ("/MatMul", "/Gemm", "/Gather"):
        name = name.removesuffix(op)
    return name.strip("/").replace("/", ".")


def module_of(node: ir.Node) -> str:
    """The module that torch named a node by: `/layer1/layer1.0/conv1/Conv` is `layer1.0.conv1`."""
    found: list[str] = []
    for part in (node.name or "").removesuffix(f"/{node.op_type}").strip("/").split("/"):
        if found and part.startswith(f"{found[-1]}."):  # a list of modules stands before its members
            found.pop()
        found.append(part)
    return ".".join(found)
