"""Which tensors of a Linear4bit checkpoint belong to which products of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts
from onnxq.checkpoints.layer_names import BIAS, GROUP, SCALES, WEIGHT, group_of, key_of, names_in
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import Weight, weights_of

#: Blocks that kernels have, the longest first.
BLOCKS = (256, 128, 64, 32, 16)


@dataclass
class Match:
    """What of a checkpoint goes where.

    Attributes:
        blocks: weights that share a scale in the model, by node: `BLOCKS` that fill the checkpoint's groups, or, where
            none do, those groups themselves.
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


def put_in(model: ir.Model, checkpoint: Mapping[str, NDArray], group: int | None = None) -> Match:
    """Give the products of a prepared model the weights and biases of `checkpoint`.

    A prefix names a product if it is the name of the node, of its weight, or of the constant its weight was made from,
    slashes read as dots, without `.weight`, `/MatMul` and `/Gemm` at the end. Tensors without a prefix are those of the
    only product.

    Args:
        group: inputs that share a scale; None: as the checkpoint says, or `layouts.group_size` finds it.
    """
    match, names = Match(), Names(model)
    weights, prefixes = list(_products(model)), list(names_in(checkpoint))
    by_name = {_plain(prefix): prefix for prefix in prefixes}
    products: dict[str, list[Weight]] = {}
    for weight in weights:
        known = (by_name[name] for name in [*_names_of(weight), *[""] * (len(weights) == 1)] if name in by_name)
        products.setdefault(next(known, ""), []).append(weight)
    used: set[str] = set()
    lone = [name for name in checkpoint if name.endswith(SCALES) and name.removesuffix(SCALES) not in prefixes]
    match.misfits += [f"'{name}' has no {name.removesuffix(SCALES)}{WEIGHT}" for name in lone]
    used |= set(lone)
    for prefix in prefixes:
        used |= {key_of(prefix, part) for part in (WEIGHT, SCALES, BIAS, GROUP)}
        found = products.get(prefix, []) if prefix or len(weights) == 1 else []
        if not found:
            match.surplus.append(prefix or WEIGHT[1:])
            continue
        for weight in found:
            problem = _put(weight, prefix, checkpoint, group, match, names)
            if problem:
                match.misfits.append(problem)
    match.missing = [w.node.name or "" for w in weights if w.node.name not in match.blocks]
    match.unused = [name for name in checkpoint if name not in used]
    return match


def _products(model: ir.Model) -> Iterator[Weight]:
    for node in graph.nodes(model):
        for weight in weights_of(node, least=1):
            if graph.is_op(node, "MatMul", "Gemm") and weight.role.index == 1 and len(weight.shape) == 2:
                yield weight


def _names_of(weight: Weight) -> list[str]:
    """What a product may be called, its own name first: a value may be another's too, whose numbers are the same."""
    names = (weight.node.name, weight.value.name, weight.value.meta.get(ORIGIN))
    return [_plain(name.removesuffix(".weight")) for name in names if name]


def _plain(name: str) -> str:
    for op in ("/MatMul", "/Gemm"):
        name = name.removesuffix(op)
    return name.strip("/").replace("/", ".")


def _put(
    weight: Weight, prefix: str, checkpoint: Mapping[str, NDArray], group: int | None, match: Match, names: Names
) -> str:
    """What does not fit, or "" after the tensors were put in."""
    node, name = weight.node, weight.node.name or ""
    packed, scales, bias, stored = (checkpoint.get(key_of(prefix, part)) for part in (WEIGHT, SCALES, BIAS, GROUP))
    if packed is None or scales is None:
        return f"'{key_of(prefix, WEIGHT)}' has no {key_of(prefix, SCALES)}"
    try:
        size = group_of(stored, prefix) if group is None else group
        size, scales = layouts.linear4bit_groups(packed, scales, prefix, size)
    except BadModel as error:
        return str(error)
    n, k = (weight.shape[axis] for axis in (weight.role.channel, weight.role.contraction))
    shape = (len(packed), 2 * packed.shape[1])
    if shape != (n, k):
        return f"'{key_of(prefix, WEIGHT)}' is of {shape[0]} × {shape[1]} weights, node '{name}' of {n} × {k}"
    if not np.isfinite(scales.astype(np.float32)).all():
        return f"'{key_of(prefix, SCALES)}' holds numbers that are not finite"
    block = block_for(size, k)
    if block is None:
        return f"'{key_of(prefix, SCALES)}' is for groups of {size}, an odd number, which nothing unpacks"
    if graph.attribute_float(node, "alpha", 1.0) != 1.0:
        return f"node '{name}' multiplies by an alpha, which packed weights have no place for"
    if bias is not None:
        problem = _put_bias(weight, bias, n, f"'{key_of(prefix, BIAS)}'", names)
        if problem:
            return problem
    given = _reader(checkpoint, prefix, size, block, transposed=weight.role.contraction == 0)
    tensor = GivenTensor(given, weight.shape, weight.tensor.dtype, half_scales=scales.dtype == np.float16)
    assert isinstance(weight.value.graph, ir.Graph)
    new = graph.add_constant(weight.value.graph, names.fresh(f"{prefix or name}.weight"), tensor)
    node.replace_input_with(1, new)
    match.blocks[name], match.prefixes[name] = block, prefix
    return ""


def block_for(group: int, k: int) -> int | None:
    """The longest block of a kernel that fills groups of this size in rows of `k`; else the group, if it is even.

    Where all of a row shares one scale any block will do.
    """
    if group >= k:
        return next((block for block in BLOCKS if block <= k), BLOCKS[-1])
    return next((block for block in BLOCKS if group % block == 0), group if group % 2 == 0 else None)


def _reader(
    checkpoint: Mapping[str, NDArray], prefix: str, group: int, block: int, *, transposed: bool
) -> Callable[[], QuantizedTensor]:
    """Reads the weight, in shorter blocks of the same scale, as it lies in the model."""

    def read() -> QuantizedTensor:
        packed, steps = (checkpoint[key_of(prefix, part)] for part in (WEIGHT, SCALES))
        q = layouts.from_linear4bit(packed, steps, prefix, group)
        assert q.scales is not None
        k = q.shape[1]
        scales = np.repeat(q.scales, -(-min(group, k) // block), axis=1)[:, : -(-k // block)]
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
    try:
        with np.errstate(over="ignore"):
            numbers = arguments.numbers(bias, "bias").astype(weight.tensor.dtype.numpy())
    except ValueError:
        return f"{what} is of type {bias.dtype}, not of real numbers"
    if not np.isfinite(numbers).all():
        return f"{what} holds numbers that are not finite, or too large for {numbers.dtype}"
    tensor = ir.tensor(numbers)
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
