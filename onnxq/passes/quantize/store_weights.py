"""Weights in a shorter format that onnxruntime unpacks once, when it loads the model."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxq import formats, layouts, own_ops
from onnxq.encoding.lazy import Encoding, GivenTensor
from onnxq.formats import Format, Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN, SOURCE, STORED_TYPE
from onnxq.model.weights import Weight, has_weights, other_constants, weights_of
from onnxq.passes.low_rank import onto
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._onnxq_weights import unpacked as unpacked_by_node
from onnxq.passes.quantize._weight_forms import WeightForms
from onnxq.plan import Choice, Method, Plan
from onnxq.targets import is_standard

#: Blocks of rows that are shorter than the block of the plan: those that kernels know, should the codes go there.
SHORT_BLOCKS = (16, 32, 64, 128)


class StoreWeights(PlanPass):
    """Replace each weight of a STORED node by codes and the standard operators that turn them back into floats.

    The chain has constant inputs only, so runtimes fold it at load: the file is small and the speed that of the float
    model. DequantizeLinear would be the natural spelling, but onnxruntime does not fold it (it waits for a fusion that
    these nodes have not) and loses its blocked convolution layout behind it: measured 1.36 times slower than float.

    1. float16, bfloat16: Cast.
    2. Types that ONNX has (8 and 16 bits), one scale a channel: Cast, Sub of the zero point, Mul.
    3. 4-bit and 8-bit blocks: unpack nibbles by arithmetic (floor and multiply exist in every opset), then subtract the
       zero point or look the level up, multiply by the scale, and put the axes back in order.
    4. With `own_nodes`, formats beyond these: the function onnxq.DequantizeNBits.
    """

    def __init__(self, plan: Plan, *, own_nodes: bool = False) -> None:
        super().__init__(plan)
        self.own_nodes = own_nodes

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, own_nodes=work.target.has_onnxq_ops)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        unpacked: dict[tuple[int, str, Granularity, Granularity | None, int], ir.Value] = {}
        opset, stored = graph.opset(model), 0
        for weight, choice in self._weights(model):
            granularity, groups = _granularity(weight, choice)
            rank = constants.rank(choice.node)
            key = (id(weight.value), choice.format or "", granularity, groups, rank)
            if key not in unpacked:
                format = formats.get(choice.format or "")
                has_fields = format.code_type.kind in "iu"  # of bits, which our own node reads
                by_node = self.own_nodes and has_fields and not is_standard(format, granularity.block)
                op_type = weight.node.op_type
                half = by_node and granularity.block is not None
                if not by_node and op_type == "Conv" and granularity.block is not None:
                    encoding = _of_kernels(constants, weight, format, granularity.block)
                else:
                    encoding = constants.encoding(
                        weight.value, format, granularity, op_type, groups=groups, prefer_half=half
                    )
                x = _call(constants, weight, encoding) if by_node else _unpack(constants, weight, encoding, opset)
                unpacked[key] = onto(x, weight, encoding, rank, constants)
            weight.node.replace_input_with(weight.role.index, unpacked[key])
            stored += 1
        own_ops.add_functions(model, constants.called)
        return ir.passes.PassResult(model, modified=stored > 0)

    def _weights(self, model: ir.Model) -> list[tuple[Weight, Choice]]:
        choices = {choice.node: choice for choice in self.plan.those(Method.STORED)}
        found = [(w, choices[n.name]) for n in graph.nodes(model) if n.name in choices for w in weights_of(n)]
        tables = [(w, choices[w.node.name]) for w in other_constants(model) if w.node.name in choices]
        alone = {node.name for node in graph.nodes(model) if not has_weights(node)}
        # The choice of a node with weights is about those; a type without scales suits everything it reads.
        return found + [(w, c) for w, c in tables if w.node.name in alone or _is_cast(c)]


def _is_cast(choice: Choice) -> bool:
    return formats.get(choice.format or "").scale_type is None


def _call(constants: WeightForms, weight: Weight, encoding: Encoding) -> ir.Value:
    x = unpacked_by_node(constants, weight.value, encoding)
    if weight.tensor.dtype is ir.DataType.FLOAT:
        return x
    node, owner = x.producer(), weight.value.graph
    assert node is not None and isinstance(owner, ir.Graph)
    name = constants.names.fresh(f"{x.name}_cast")
    cast = ir.node("Cast", [x], {"to": int(weight.tensor.dtype)}, name=name)
    cast.outputs[0].name = name
    owner.insert_after(node, cast)
    return cast.outputs[0]


def _granularity(weight: Weight, choice: Choice) -> tuple[Granularity, Granularity | None]:
    """Which weights have a scale in the file, and whose scale each block of those repeats."""
    if _is_cast(choice) or (choice.block is None and choice.granularity == "tensor"):
        return Granularity(), None
    if choice.block is None:
        return Granularity(weight.role.channel), None
    axis, block = weight.role.contraction, choice.block
    format, given = formats.get(choice.format or ""), weight.tensor
    if isinstance(given, GivenTensor):
        if given.form is not None and _is_shortened(given.form, format, Granularity(axis, block), weight.shape[axis]):
            block = given.form[1].block or block
    elif choice.granularity is None and not format.has_fixed_block and is_standard(format, block):
        # A row that is shorter than a block is not filled up to a whole one; of a table, of which rows are the most of
        # the bytes, to none at all where its codes fill bytes.
        row = weight.shape[axis]
        is_bare = row < SHORT_BLOCKS[0] and row * format.bits % 8 == 0 and weight.node.op_type == "Gather"
        block = row if is_bare else next((short for short in SHORT_BLOCKS if row <= short < block), block)
    return Granularity(axis, block), choice.groups(len(weight.shape), axis)


def _is_shortened(form: tuple[Format, Granularity], format: Format, how: Granularity, row: int) -> bool:
    """Whether a weight of this form has the blocks that were asked for, but for rows that are shorter than these."""
    was = form[1]
    return form[0].name == format.name and was.axis == how.axis and was.block in (*SHORT_BLOCKS, row)


def _unpack(constants: WeightForms, weight: Weight, encoding: Encoding, opset: int) -> ir.Value:
    """The float value that the nodes added here compute from the codes of `weight`."""
    chain, format, granularity = Chain(constants, weight, opset), encoding.format, encoding.granularity
    if format.scale_type is None:
        return chain.cast(chain.initializer(f"_{format.name}", encoding.part(layouts.codes)), weight.tensor.dtype)
    x = _unpack_channels(chain, encoding) if granularity.block is None else _unpack_blocks(chain, encoding)
    if encoding.shape != weight.shape:
        x = chain.op("Reshape", x, chain.small("shape", np.array(weight.shape, np.int64)))
    x.dtype = ir.DataType.FLOAT
    return chain.cast(x, weight.tensor.dtype)


def _unpack_channels(chain: Chain, encoding: Encoding) -> ir.Value:
    """Codes of a type that ONNX has, with one scale a channel."""
    format, typed = encoding.format, encoding.part(layouts.codes)
    steps = encoding.part(layouts.by_channel(layouts.scales), ir.DataType.FLOAT)
    x = chain.cast(chain.initializer(f"_{format.name}", typed), ir.DataType.FLOAT)
    if format.offset_type is not None:
        zeros = encoding.part(layouts.by_channel(layouts.zero_points))
        x = chain.op("Sub", x, chain.cast(chain.initializer("_zero_point", zeros), ir.DataType.FLOAT))
    return chain.op("Mul", x, chain.initializer("_scale", steps))


def _of_kernels(constants: WeightForms, weight: Weight, format: formats.Format, block: int) -> Encoding:
    """Kernels of a convolution, flattened so that blocks are full ones however few channels there are."""
    rows = (weight.shape[0], math.prod(weight.shape[1:]))
    flat = graph.flattened(weight.tensor, rows)
    return constants.new_encoding(weight.value, format, Granularity(1, block), "Conv", tensor=flat, channel=0)


def _unpack_blocks(chain: Chain, encoding: Encoding) -> ir.Value:
    """Blocks along one axis: [rows · blocks, B] codes become the weight in its own shape."""
    shape, axis, outline = encoding.shape, encoding.granularity.axis, encoding.outline
    assert axis is not None
    word, levels = encoding.format.name, encoding.format.levels
    if encoding.format.bits == 4:
        packed = encoding.part(layouts.halves)
        x = chain.split_nibbles(chain.cast(chain.initializer(f"_{word}", packed), ir.DataType.FLOAT))
    else:
        rows = encoding.part(layouts.block_rows)
        x = chain.cast(chain.initializer(f"_{word}", rows), ir.DataType.FLOAT)
    is_signed = encoding.format.code_type == np.int8
    if levels is not None:
        x = chain.op("Gather", chain.small(word, levels), chain.cast(x, ir.DataType.INT64))
    elif is_signed and encoding.format.bits == 4:
        x = chain.op("Sub", x, chain.small("middle", np.float32(8)))
    elif encoding.format.offset_type is not None:
        zeros = encoding.part(layouts.column(layouts.zero_points_by_row))
        x = chain.op("Sub", x, chain.cast(chain.initializer("_zero_point", zeros), ir.DataType.FLOAT))
    x = chain.op("Mul", x, chain.scales_of_blocks(encoding))
    rest = [size for i, size in enumerate(shape) if i != axis]
    x = chain.op("Reshape", x, chain.small("shape", np.array([*rest, outline.blocks * outline.block], np.int64)))
    if outline.blocks * outline.block != shape[axis]:
        x = chain.cut_last(x, len(rest), shape[axis])
    if axis != len(shape) - 1:
        order = list(range(len(rest)))
        x = chain.op("Transpose", x, perm=[*order[:axis], len(rest), *order[axis:]])
    return x


class Chain:
    """Nodes that turn a weight's codes into floats, at the head of the graph that owns the weight."""

    def __init__(self, constants: WeightForms, weight: Weight, opset: int) -> None:
        owner = weight.value.graph
        assert isinstance(owner, ir.Graph)
        self.owner, self.constants, self.weight, self.opset = owner, constants, weight.value, opset
        self.first = next(iter(owner), None)

    def initializer(self, suffix: str, tensor: ir.TensorProtocol) -> ir.Value:
        name = self.constants.names.fresh(f"{self.weight.name}{suffix}")
        made = graph.add_constant(self.owner, name, tensor)
        made.meta[ORIGIN] = self.weight.meta.get(ORIGIN, self.weight.name)
        made.meta[SOURCE] = self.weight.meta.get(SOURCE, self.weight.name)
        return made

    def scales_of_blocks(self, encoding: Encoding) -> ir.Value:
        """As float32; in the file they are float16 where they, and the weight, are: a head's are, too."""
        made = self.initializer("_scale", encoding.part(layouts.column(layouts.scales_by_row), ir.DataType.FLOAT))
        if encoding.half_scales and self.weight.dtype is ir.DataType.FLOAT16:
            made.meta[STORED_TYPE] = ir.DataType.FLOAT16
        return made

    def small(self, wish: str, array: ArrayLike) -> ir.Value:
        return self.constants.array(self.owner, f"{wish}_onnxq", array)

    def op(self, op_type: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        name = self.constants.names.fresh(f"{self.weight.name}_{op_type.lower()}")
        node = ir.node(op_type, inputs, attributes=attributes, name=name)
        node.outputs[0].name = self.constants.names.fresh(f"{name}_out")
        if self.first is None:
            self.owner.append(node)
        else:
            self.owner.insert_before(self.first, node)
        return node.outputs[0]

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        if x.dtype == dtype:
            return x
        out = self.op("Cast", x, to=int(dtype))
        out.dtype = dtype
        return out

    def split_nibbles(self, x: ir.Value) -> ir.Value:
        """[G, B] codes from [G, B/2] bytes as floats: low nibbles first, then high ones."""
        high = self.op("Floor", self.op("Mul", x, self.small("sixteenth", np.float32(1 / 16))))
        low = self.op("Sub", x, self.op("Mul", high, self.small("sixteen", np.float32(16))))
        return self.op("Concat", low, high, axis=1)

    def cut_last(self, x: ir.Value, axis: int, size: int) -> ir.Value:
        """The first `size` elements along `axis`."""
        if self.opset < 10:
            return self.op("Slice", x, axes=[axis], starts=[0], ends=[size])
        bounds = [self.small(n, np.array([v], np.int64)) for n, v in (("start", 0), ("end", size), ("axis", axis))]
        return self.op("Slice", x, *bounds)
