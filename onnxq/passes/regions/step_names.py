"""Which nodes of the float model the steps of regions stand for, as regions say it in their metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxq.files import limits
from onnxq.model import graph
from onnxq.runtime.kernel_times import Kernel

_KEY = "onnxq.steps"


def name_steps(node: ir.Node, names: Sequence[str]) -> None:
    """Note down whose steps those of a region are, in their order."""
    node.metadata_props[_KEY] = json.dumps(list(names), ensure_ascii=False)


def names_of(model: ir.Model) -> dict[str, list[str]]:
    """By region, a name for each of its steps: of the node that it computes, or of a conversion. Those that say none
    are left out."""
    found = {}
    for node in graph.nodes(model):
        try:
            names = limits.parse_json(node.metadata_props.get(_KEY, ""))
        except ValueError:  # a file may say anything
            continue
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[node.name or ""] = names
    return found


def with_names(kernels: Iterable[Kernel], model: ir.Model) -> list[Kernel]:
    """`kernels`, in which those of steps are called as `names_of` says."""
    names = names_of(model)
    found = []
    for kernel in kernels:
        of_region = names.get(kernel.region, [])
        known = kernel.step is not None and kernel.step < len(of_region)
        found.append(dataclasses.replace(kernel, name=of_region[kernel.step or 0]) if known else kernel)
    return found
