"""`onnxq dequantize`: a quantized model as a float one with the same weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import own_ops, targets
from onnxq.boundary import bounded
from onnxq.checking.models import Check
from onnxq.conversion.files import opened, sign
from onnxq.conversion.proof import prove
from onnxq.conversion.restore import restore_all, tie_tables
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, BadRecipe, NothingToDo
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import find_weights
from onnxq.output import write
from onnxq.passes import prepare
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import Recipe
from onnxq.runtime import known
from onnxq.summaries.ranges import NO_RANGES

#: How many times longer than its codes a weight may be: those of a bit are 32, on the way there are indices of 64 bits.
GROWTH = 64
#: What weights may become.
TYPES = ("float32", "float16", "bfloat16")

#: Of operators that round activations, how their names begin.
_ROUNDING = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm", "QAttention", "Region")
#: Types of what a float model holds, sizes and places among it; and how many numbers are no longer some scalars.
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING)
_FEWEST = 8
_ROUNDS = (
    "what differs, the quantized model does: it rounds activations, and cuts off what lies outside the ranges that it "
    "was calibrated for, as made-up inputs may. The float model does neither, also where such a range did the work of "
    "a Clip that begins below zero, as a Hardtanh does, for no codes tell which did; 'onnxq check' compares the two on "
    "your --data"
)


@dataclass(frozen=True)
class Dequantized:
    """What `dequantize` did.

    Attributes:
        dtype: of the weights: float64 where the model computes in that and no short type was asked for.
        check: of the written model against the quantized one; None: it was not run.
    """

    output: Path
    dtype: str
    bytes_before: int
    bytes_after: int
    check: Check | None


@bounded
def dequantize(
    model: str | Path,
    output: str | Path | None = None,
    *,
    dtype: str = "float32",
    check: bool = True,
    environment: Environment | None = None,
) -> Dequantized:
    """Write the quantized `model`, made by whatever tool, with float weights and activations that are not rounded.

    Weights are exactly what their codes stand for; where a range of activations does a Relu's or Clip's work, a Clip
    takes its place.

    Args:
        output: [default: the model's name with the type in it]
        dtype: of the weights in the file: float32, or float16 or bfloat16 that become float32 when the model is loaded.
        check: run the written file beside the quantized one.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, all that is quantized in it has no form in floats, or float16 does not hold
            a weight.
        BadRecipe: another type.
        BadOutput: the output cannot be written.
        NothingToDo: the model is in floats.
        CheckFailed: the saved file does not load or run.
    """
    if dtype not in TYPES:
        raise BadRecipe(f"unknown type '{dtype}'; choose one of {', '.join(TYPES)}")
    environment, path = environment or Environment(), Path(model)
    guard, progress = environment.guard, environment.progress
    destination = Path(output) if output is not None else Path(f"{path.stem}.{dtype}.onnx")
    write.require_onnx(destination)
    loaded, before = opened(path, destination, environment)
    nodes = {node: _reads_codes(node) for node in graph.nodes(loaded)}
    has_functions = bool(loaded.functions)  # in which nothing was looked at
    rounds = any(node.op_type.startswith(_ROUNDING) for node in graph.nodes(loaded))
    restore_all(loaded)
    prepare.run([FoldConstants(GROWTH), RemoveUnused()], loaded)
    gone = nodes.keys() - set(graph.nodes(loaded))
    if not gone or not (has_functions or any(nodes[node] for node in gone)):
        left = sorted({node.op_type for node in graph.nodes(loaded) if node.op_type.startswith((*_ROUNDING, "QMoE"))})
        if left:
            raise BadModel(f"'{path}' has {', '.join(left)} in a form that has none in floats: it stays what it is")
        raise NothingToDo(f"'{path}' is in floats: nothing in it is quantized")
    tie_tables(loaded)
    if dtype == "float32":
        in_type, dtype = loaded, _types_of_weights(loaded) or dtype
    else:
        in_type = _shortened(loaded, dtype)
    sign(in_type, {"dequantized": dtype})
    with write.staging(destination) as folder:
        staged = folder / destination.name
        progress.start("writing", write.nbytes_to_write(in_type))
        nbytes = write.save(in_type, staged, progress.advance, environment.shard_size)
        # What was saved with data beside it holds places in files now, and no numbers.
        proof = prove(path, load_model(staged) if in_type is loaded else loaded, staged, environment) if check else None
        if proof is not None and rounds:
            proof = proof.noting(_ROUNDS)
        guard.publish(staged, destination)
    return Dequantized(destination, dtype, before, nbytes, proof)


def _reads_codes(node: ir.Node) -> bool:
    """Whether a node rounds activations, or reads a constant that may be codes or short floats. Where nothing of that
    kind went away, all that did was of a float model: what is computed of constants alone.
    """
    if node.op_type.startswith(_ROUNDING) or node.domain == own_ops.DOMAIN:
        return True
    constants = (graph.constant(value) for value in node.inputs if value is not None)
    return any(each is not None and each.dtype not in _WIDE and each.size >= _FEWEST for each in constants)


def _types_of_weights(model: ir.Model) -> str:
    """In which the model computes: float64 is left what it is."""
    found = {weight.value.dtype.name.lower() for weight in find_weights(model) if weight.value.dtype is not None}
    return " and ".join(sorted({"double": "float64", "float": "float32"}.get(name, name) for name in found))


def _shortened(model: ir.Model, dtype: str) -> ir.Model:
    """The same with its weights in a short type, from which they are cast when the model is loaded."""
    target = targets.get("onnx")
    prepare.run([RaiseOpset(max(target.opset_for(dtype), known.OLDEST_OPSET))], model)
    for node in graph.nodes(model):
        for value in node.inputs:
            if value is not None and isinstance(value.const_value, GivenTensor):
                value.const_value = graph.lazily(value.const_value, lambda w: w)
    choices = {}
    for weight in find_weights(model):
        name = weight.node.name or ""
        if dtype == "float16":
            called = weight.value.meta.get(ORIGIN, weight.value.name)
            require = functools.partial(_in_range, what=f"weight '{called}' of '{name}'")
            weight.value.const_value = graph.lazily(weight.tensor, require)
        choices[name] = Choice(name, weight.node.op_type, Method.STORED, dtype, None, weight.elements)
    return rewrite(model, Plan(dtype, target.name, choices), NO_RANGES, Recipe(dtype), target)


def _in_range(w: NDArray, what: str) -> NDArray:
    """`w`, which float16 holds.

    Raises:
        BadModel: it does not.
    """
    largest, most = float(np.max(np.abs(w), initial=0)), float(np.finfo(np.float16).max)
    if most < largest < np.inf:
        raise BadModel(f"{what} is up to {largest:g}, and float16 up to {most:g}: choose --dtype bfloat16 or float32")
    return w
