"""Tiny models, written as ONNX text, and what the tests ask of models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from sweeps import swept

from onnxq import targets
from onnxq.model import graph

#: Targets for runtimes that may be here; test_target_rules.py is about the others.
HERE = [n for n in targets.names() if not (targets.get(n).consumer.endswith("Provider") or targets.get(n).spelled)]
#: Others whose weights have other forms; and all of them, those in the sweep.
ELSEWHERE = ["onnx-25", "tensorrt", "qnn", "webgpu"]
TARGETS = [*HERE, *map(swept, ELSEWHERE)]


def model(
    text: str,
    constants: Mapping[str, NDArray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 9,
    functions: str = "",
) -> onnx.ModelProto:
    """The model whose graph is `text`; `constants` become initializers, and `functions` its local functions."""
    imports = f'"" : {opset}, "com.microsoft" : 1, "local" : 1'
    made = onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> {text} {functions}")
    for name, array in (constants or {}).items():
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def normal(*shape: int, seed: int = 0, dtype: type = np.float32) -> NDArray:
    """Normally distributed numbers, so small that sums over all but one axis stay near 1."""
    fan_in = max(1, int(np.prod(shape)) // max(shape, default=1))
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan_in)).astype(dtype)


def read(proto: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(proto)


def save(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    onnx.save(proto, folder / name)
    return folder / name


def evaluate(made: onnx.ModelProto | ir.Model, **feed: ArrayLike) -> list[NDArray]:
    """All outputs, by ONNX's reference implementation."""
    proto = made if isinstance(made, onnx.ModelProto) else ir.to_proto(made)
    return ReferenceEvaluator(proto).run(None, {name: np.asarray(x) for name, x in feed.items()})


def ops(made: ir.Model) -> list[str]:
    """Operator types in order of execution, bodies included."""
    return [node.op_type for node in graph.nodes(made)]


def find(made: ir.Model, op_type: str) -> ir.Node:
    """The one node of this operator."""
    (found,) = (node for node in graph.nodes(made) if node.op_type == op_type)
    return found


def array(value: ir.Value | None) -> NDArray:
    """The numbers of a constant."""
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def sqnr(wanted: ArrayLike, got: ArrayLike) -> float:
    """Signal to noise in dB; 200 for equal arrays."""
    a, b = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    assert a.shape == b.shape
    noise = float(np.sum((a - b) ** 2))
    return 200.0 if noise == 0 else 10 * np.log10(float(np.sum(a * a)) / noise)
