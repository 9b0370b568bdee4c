"""Models of one node of the onnxq domain that is a recurrent layer, of its body, and of the standard's own layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from recurrent import GATES, LINEAR_BEFORE_RESET, NAMES, Layer

from onnxq import layouts, own_ops

DIRECTIONS = {"forward": (0, 1), "reverse": (1, 1), "bidirectional": (2, 2)}  # backward, how many
WORDS = [name.rpartition("_")[2] for name in own_ops.RECURRENT_INPUTS]


def constants(of: Layer) -> dict[str, NDArray]:
    """By input, what lies in the file."""
    made: dict[str, NDArray] = {}
    for name, q in (("weight", of.weight), ("recurrence", of.recurrence)):
        made[name] = layouts.recurrent_tiles(of.directions, GATES[of.cell])(q)
        made[f"{name}_scales"] = layouts.recurrent_scales(of.directions, GATES[of.cell])(q)
    return made


def attributes(of: Layer, direction: str) -> dict[str, Any]:
    """Those that a layer of the standard has too."""
    made: dict[str, Any] = {"hidden_size": of.h, "direction": direction}
    if NAMES[of.cell] == "GRU":
        made["linear_before_reset"] = int(of.cell == LINEAR_BEFORE_RESET)
    return made | ({"clip": of.clip} if np.isfinite(of.clip) else {})


def own(
    of: Layer,
    direction: str = "forward",
    words: tuple[str, ...] = ("bias",),
    *,
    outputs: tuple[str, ...] | None = None,
    changed: dict[str, NDArray] | None = None,
    inputs: tuple[str, ...] = (),
    body: bool = True,
    **given: Any,
) -> onnx.ModelProto:
    """A node Recurrent.

    Args:
        words: of the inputs behind the weights that there are.
        outputs: all of them, those that nobody asks for without a name.
        changed: tensors in the place of the layer's.
        inputs: of those in the file, which are inputs of the graph instead.
        body: whether the model has one.
        given: attributes in the place of the layer's; None: without.
    """
    cell = NAMES[of.cell]
    clips = ["clip"] * (attributes(of, direction).get("clip") is not None)
    variant = own_ops.Variant(
        own_ops.RECURRENT,
        "int8",
        moved="_".join([cell.lower(), *(word for word in WORDS if word in words), *clips]),
    )
    arrays = constants(of) | {"bias": of.both} | (changed or {})
    sizes = {"cell": cell, "input_size": of.weight.shape[1]}
    made = {**attributes(of, direction), **sizes, "activations": "exact", **given}
    node = helper.make_node(
        "Recurrent",
        ["x", *constants(of), *_behind(words)],
        list(outputs or _outputs(of)),
        "the/node",
        domain="onnxq",
        overload=variant.overload if body else "",
    )
    node.attribute.extend(helper.make_attribute(name, value) for name, value in made.items() if value is not None)
    return _model(node, of, words, arrays, inputs, [own_ops.body(variant, 21)] if body else [])


def standard(
    of: Layer, direction: str, words: tuple[str, ...], outputs: tuple[str, ...] | None = None
) -> onnx.ModelProto:
    """LSTM, GRU or RNN with the weights that the codes stand for."""
    shape = (of.directions, GATES[of.cell] * of.h, -1)
    arrays = {
        "weight": of.weight.dequantize().reshape(shape),
        "recurrence": of.recurrence.dequantize().reshape(shape),
        "bias": of.both,
    }
    names = ["x", "weight", "recurrence", *_behind(words)]
    node = helper.make_node(NAMES[of.cell], names, list(outputs or _outputs(of)), **attributes(of, direction))
    return _model(node, of, words, arrays, (), [])


def feed(of: Layer, steps: int, batch: int, words: tuple[str, ...], seed: int = 0) -> dict[str, NDArray]:
    """Inputs; sequences are shorter and shorter, where they may be."""
    rng = np.random.default_rng(seed)
    made = {"x": rng.standard_normal((steps, batch, of.weight.shape[1])).astype(np.float32)}
    if "lens" in words:
        made["sequence_lens"] = np.array([max(0, steps - 2 * i) for i in range(batch)], np.int32)
    for word in ("h", "c"):
        if word in words:
            made[f"initial_{word}"] = rng.standard_normal((of.directions, batch, of.h)).astype(np.float32)
    return made


def _behind(words: tuple[str, ...]) -> list[str]:
    names = [name if word in words else "" for name, word in zip(own_ops.RECURRENT_INPUTS, WORDS, strict=True)]
    while names and not names[-1]:
        names.pop()
    return names


def _outputs(of: Layer) -> tuple[str, ...]:
    return ("y", "last_h", "last_c") if NAMES[of.cell] == "LSTM" else ("y", "last_h")


def _model(
    node: onnx.NodeProto,
    of: Layer,
    words: tuple[str, ...],
    arrays: dict[str, NDArray],
    inputs: tuple[str, ...],
    functions: list[onnx.FunctionProto],
) -> onnx.ModelProto:
    fed: dict[str, tuple[int, list[Any]]] = {"x": (TensorProto.FLOAT, ["T", "B", of.weight.shape[1]])}
    if "lens" in words:
        fed["sequence_lens"] = (TensorProto.INT32, ["B"])
    for word in ("h", "c"):
        if word in words:
            fed[f"initial_{word}"] = (TensorProto.FLOAT, [of.directions, "B", of.h])
    for name in inputs:
        fed[name] = (int(helper.np_dtype_to_tensor_dtype(arrays[name].dtype)), list(arrays[name].shape))
    values = [helper.make_tensor_value_info(name, *each) for name, each in fed.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output if name]
    held = [numpy_helper.from_array(x, name) for name, x in arrays.items() if name in node.input and name not in inputs]
    graph = helper.make_graph([node], "graph", values, results, held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("onnxq", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)
