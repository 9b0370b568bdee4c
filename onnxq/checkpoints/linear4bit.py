"""Which tensors of a Linear4bit checkpoint belong to which products of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import Weight, weights_of

WEIGHT, SCALES, BIAS = ".weight_4bit", ".scales_4bit", ".bias"
#: Blocks that kernels have, the longest first.
BLOCKS = (256, 128, 64, 32, 16)


@dataclass
class Match:
    """What of a checkpoint goes where.

    Attributes:
        blocks: weights that share a scale, by node.
        prefixes: of the tensors, by node.
        missing: products of the model that the checkpoint has nothing for.
        surplus: tensors of the checkpoint that the model has no product for.
        misfits: sentences about tensors that do not fit.
        unused: other tensors of the checkpoint.
    """

    blocks: dict[str, int] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def put_in(model: ir.Model, checkpoint: Mapping[str, NDArray]) -> Match:
    """Give the products of a prepared model the weights and biases of `checkpoint`.

    A prefix names a product if it is the name of the node, of its weight, or of the constant its weight was made from,
    slashes read as dots, without `.weight`, `/MatMul` and `/Gemm` at the end.
    """
    match, names = Match(), Names(model)
    products: dict[str, list[Weight]] = {}
    weights = list(_products(model))
    for weight in weights:
        for name in _names_of(weight):
            products.setdefault(name, []).append(weight)
    used: set[str] = set()
    prefixes = [name.removesuffix(WEIGHT) for name in checkpoint if name.endswith(WEIGHT)]
    lone = [name for name in checkpoint if name.endswith(SCALES) and name.removesuffix(SCALES) not in prefixes]
    match.misfits += [f"'{name}' has no {name.removesuffix(SCALES)}{WEIGHT}" for name in lone]
    used |= set(lone)
    for prefix in prefixes:
        used |= {prefix + suffix for suffix in (WEIGHT, SCALES, BIAS)}
        found = products.get(_plain(prefix), [])
        if not found:
            match.surplus.append(prefix)
            continue
        for weight in found:
            problem = _put(weight, prefix, checkpoint, match, names)
            if problem:
                match.misfits.append(problem)
    match.missing = [w.node.name or "" for w in weights if w.node.name not in match.blocks]
    match.unused = [name for name in checkpoint if name not in used]
    return match


def _products(model: ir.Model) -> Iterator[Weight]:
    for node in graph.nodes(model):
        for weight in weights_of(node):
            if graph.is_op(node, "MatMul", "Gemm") and weight.role.index == 1 and len(weight.shape) == 2:
                yield weight


def _names_of(weight: Weight) -> set[str]:
    names = {weight.node.name, weight.value.name, weight.value.meta.get(ORIGIN)}
    return {_plain(name.removesuffix(".weight")) for name in names if name}


def _plain(name: str) -> str:
    for op in ("/MatMul", "/Gemm"):
        name = name.removesuffix(op)
    return name.strip("/").replace("/", ".")


def _put(weight: Weight, prefix: str, checkpoint: Mapping[str, NDArray], match: Match, names: Names) -> str:
    """What does not fit, or "" after the tensors were put in."""
    node, name = weight.node, weight.node.name or ""
    if prefix + SCALES not in checkpoint:
        return f"'{prefix}{WEIGHT}' has no {prefix}{SCALES}"
    try:
        q = layouts.from_linear4bit(checkpoint[prefix + WEIGHT], checkpoint[prefix + SCALES], prefix)
    except BadModel as error:
        return str(error)
    n, k = (weight.shape[axis] for axis in (weight.role.channel, weight.role.contraction))
    if q.shape != (n, k):
        return f"'{prefix}{WEIGHT}' is of {q.shape[0]} × {q.shape[1]} weights, node '{name}' of {n} × {k}"
    assert q.granularity.block is not None and q.scales is not None
    if not np.isfinite(q.scales.astype(np.float32)).all():
        return f"'{prefix}{SCALES}' holds numbers that are not finite"
    block = next((block for block in BLOCKS if q.granularity.block % block == 0), None)
    if block is None:
        return f"'{prefix}{SCALES}' is for groups of {q.granularity.block}, which no kernel's blocks divide"
    if graph.attribute_float(node, "alpha", 1.0) != 1.0:
        return f"node '{name}' multiplies by an alpha, which packed weights have no place for"
    bias = checkpoint.get(prefix + BIAS)
    if bias is not None:
        problem = _put_bias(weight, bias, n, f"'{prefix}{BIAS}'", names)
        if problem:
            return problem
    given = _reader(checkpoint, prefix, block, transposed=weight.role.contraction == 0)
    half = q.scales.dtype == np.float16
    tensor = GivenTensor(given, weight.shape, weight.tensor.dtype, half_scales=half)
    assert isinstance(weight.value.graph, ir.Graph)
    new = graph.add_constant(weight.value.graph, names.fresh(f"{prefix}.weight"), tensor)
    node.replace_input_with(1, new)
    match.blocks[name], match.prefixes[name] = block, prefix
    return ""


def _reader(
    checkpoint: Mapping[str, NDArray], prefix: str, block: int, *, transposed: bool
) -> Callable[[], QuantizedTensor]:
    """Reads the weight, in shorter blocks of the same scale, as it lies in the model."""

    def read() -> QuantizedTensor:
        q = layouts.from_linear4bit(checkpoint[prefix + WEIGHT], checkpoint[prefix + SCALES], prefix)
        assert q.granularity.block is not None and q.scales is not None
        scales = np.repeat(q.scales, q.granularity.block // block, axis=1)
        if transposed:
            return QuantizedTensor(q.format, Granularity(0, block), q.codes.T, scales.T)
        return QuantizedTensor(q.format, Granularity(1, block), q.codes, scales)

    return read


def _put_bias(weight: Weight, bias: NDArray, n: int, what: str, names: Names) -> str:
    """Replace the bias of a Gemm or of the Add behind a MatMul, or add one where there is none."""
    node = weight.node
    if bias.shape != (n,):
        return f"{what} is of shape {list(bias.shape)}, node '{node.name}' makes {n} numbers"
    if node.op_type == "Gemm" and graph.attribute_float(node, "beta", 1.0) != 1.0:
        return f"node '{node.name}' multiplies its bias by a beta, which {what} does not know of"
    tensor = ir.tensor(bias.astype(weight.tensor.dtype.numpy()))
    owner = weight.node.graph
    assert isinstance(owner, ir.Graph)
    value = graph.add_constant(owner, names.fresh(f"{node.name}_bias"), tensor)
    if node.op_type == "Gemm":
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, value)
        return ""
    add = graph.only_consumer(node.outputs[0])
    index = _bias_of(add, node.outputs[0], n)
    if add is not None and index is not None:
        add.replace_input_with(index, value)
        return ""
    y = node.outputs[0]
    out = ir.node("Add", [None, value], name=names.fresh(f"{node.name}_add_bias"))
    node.append(out)
    graph.replace_value(y, out.outputs[0])
    y.name = names.fresh(f"{node.name}_product")
    out.replace_input_with(0, y)
    return ""


def _bias_of(add: ir.Node | None, product: ir.Value, n: int) -> int | None:
    """Which input of the Add behind a product is a constant bias of `n` numbers."""
    if add is None or not graph.is_op(add, "Add"):
        return None
    index = 1 if add.inputs[0] is product else 0
    tensor = graph.constant(add.inputs[index])
    return index if tensor is not None and tensor.size == n and tensor.shape.numpy()[-1] == n else None
