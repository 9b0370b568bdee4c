"""Which form a target has for weights that are quantized already: the same codes wherever it can hold them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import formats, own_ops
from onnxq.checkpoints.matching.forms import MICRO, doubled
from onnxq.encoding.lazy import GivenTensor, in_blocks
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.super_blocks import StoredScales
from onnxq.model import graph
from onnxq.model.weights import Weight, find_weights
from onnxq.plan import BLOCKS, Choice, Method, Plan, in_float
from onnxq.targets import Target

#: What takes the place of a format that a target has no form for, and of blocks that no kernel has.
WIDER, LENGTH = "int8", 32


@dataclass(frozen=True)
class Codes:
    """What becomes of the weights of a restored model.

    Attributes:
        plan: a choice for each node that reads some.
        again: by node, why codes are chosen anew.
    """

    plan: Plan
    again: dict[str, str]


def plan_codes(model: ir.Model, target: Target) -> Codes:
    """A plan for the weights of `model` that know their codes; those whose codes cannot stay become plain floats.

    Args:
        model: restored (`restore.restore_products`); where a kernel wants shorter blocks, its weights get them.
    """
    choices: dict[str, Choice] = {}
    again: dict[str, str] = {}
    for weight in list(find_weights(model)):
        if not isinstance(weight.tensor, GivenTensor) or weight.tensor.form is None or not weight.elements:
            continue
        node = weight.node.name or ""
        _fit_blocks(weight)
        beside = _of_recurrent(weight, target) or _beside_integers(weight, target)
        if beside is not None:
            _as_stored(weight)
            choices[node] = _joined(choices.get(node), beside)
            continue
        _unnest(weight, target)
        _widen(weight, target)
        wish, placed, reason = _tried(weight, target)
        while (reason or not _is_kept(wish, placed)) and _widen(weight, target, is_refused=True):
            wish, placed, reason = _tried(weight, target)
        if reason or not _is_kept(wish, placed):
            again[node] = reason or placed.reason
            tensor = weight.value.const_value
            assert tensor is not None
            weight.value.const_value = graph.lazily(tensor, lambda w: w)
            block = wish.block if wish.block in BLOCKS else LENGTH
            is_coarse = placed.block is None and formats.get(placed.format or WIDER).bits <= 8
            placed = target.place(weight, wish.to(Method.PACKED, WIDER, block) if reason or is_coarse else placed)
        elif wish.format in target.spelled:
            _as_stored(weight)
        choices[node] = _joined(choices.get(node), placed)
    return Codes(Plan("codes", target.name, choices), again)


def _joined(one: Choice | None, other: Choice) -> Choice:
    """Of a node that reads two weights: the numbers of both, in the longer of their blocks."""
    if one is None:
        return other
    block = other.block and max(other.block, one.block or 0)
    return dataclasses.replace(other, block=block, elements=one.elements + other.elements)


def _tried(weight: Weight, target: Target) -> tuple[Choice, Choice, str]:
    """(the form with the codes that a weight has, the nearest to that which the target has, why there is none)."""
    tensor = weight.value.const_value
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    wish = _wish(weight, format, how)
    reason = target.refusal(format.name) or _no_kernels(weight, how)
    placed = wish if reason else _placed(weight, wish, how, target)
    return wish, placed, reason or _no_form(placed, target)


def _beside_integers(weight: Weight, target: Target) -> Choice | None:
    """The blocks that the target has for products in integers only, where the codes are in such blocks and the product
    stands between DequantizeLinear and QuantizeLinear already; None where not."""
    tensor = weight.value.const_value
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    if format.name != target.in_blocks or not _is_in_integers(weight) or _no_kernels(weight, how):
        return None
    asked = Choice(weight.node.name or "", weight.node.op_type, Method.KEEP, elements=weight.elements)
    wish = asked.to(Method.STATIC, format.name, how.block)
    # The rounding around the product is in the graph: of the method only the weight is left to be written.
    return wish.to(Method.STORED, format.name, how.block) if _is_kept(wish, target.place(weight, wish)) else None


def _of_recurrent(weight: Weight, target: Target) -> Choice | None:
    """The kernel that the target has for a recurrent layer whose rows have a scale each; None where not."""
    tensor, node = weight.tensor, weight.node
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    if not _is_by_row(weight, how):
        return None
    asked = Choice(node.name or "", node.op_type, Method.KEEP, elements=weight.elements)
    wish = asked.to(Method.PACKED, format.name, None)
    placed = target.place(weight, wish)
    return placed if placed.method is Method.PACKED and _is_kept(wish, placed) else None


def _is_by_row(weight: Weight, how: Granularity) -> bool:
    """Whether each row of a recurrent layer's weight is a block."""
    is_whole = how == Granularity(weight.role.contraction, weight.shape[weight.role.contraction])
    return weight.node.op_type in own_ops.CELLS and is_whole


def _is_in_integers(weight: Weight) -> bool:
    """Whether the other operand of a product comes from a DequantizeLinear, and a QuantizeLinear reads the result."""
    node = weight.node
    other = node.inputs[1 - weight.role.index] if len(node.inputs) == 2 else None
    made, reader = graph.producer(other), graph.only_consumer(node.outputs[0])
    is_rounded = reader is not None and graph.is_op(reader, "QuantizeLinear")
    return made is not None and graph.is_op(made, "DequantizeLinear") and is_rounded


def _is_kept(wish: Choice, placed: Choice) -> bool:
    return (placed.format, placed.block) == (wish.format, wish.block)


def _no_kernels(weight: Weight, how: Granularity) -> str:
    """Why blocks along these axes have no form; empty if they have."""
    if how.block is None:
        return ""
    if len(weight.shape) != 2 and weight.node.op_type not in own_ops.CELLS:
        return "kernels of convolutions are unpacked in blocks of other weights"
    return "" if how.axis == weight.role.contraction else "blocks of weights lie along what is summed"


def _no_form(placed: Choice, target: Target) -> str:
    """Why nothing holds codes in such blocks; empty if something does."""
    if placed.block is None:
        return ""
    format, block = formats.get(placed.format or ""), placed.block
    if placed.method is Method.PACKED and not _has_kernel(target, block):
        return f"no kernel has blocks of {block}"
    if format.name not in target.spelled and (format.code_type.kind not in "iu" or format.bits > 8):
        return f"nothing unpacks {format.name} in blocks"
    if placed.method is Method.STORED and format.bits == 4 and block % 2:
        return f"nothing unpacks 4 bits in blocks of {block}"
    return ""


def _has_kernel(target: Target, block: int) -> bool:
    """Whether its operators on codes have such blocks: those of ONNX have any."""
    return not target.domains or block in BLOCKS


def _wish(weight: Weight, format: Format, how: Granularity) -> Choice:
    """The fastest form with these codes."""
    asked = Choice(weight.node.name or "", weight.node.op_type, Method.KEEP, elements=weight.elements)
    if how.block is not None and how.axis == weight.role.contraction:
        return asked.to(Method.PACKED, format.name, how.block)
    return asked.to(Method.STORED, format.name, how.block)


def _placed(weight: Weight, wish: Choice, how: Granularity, target: Target) -> Choice:
    """What the target can run, unpacked when it loads where only that keeps the codes."""
    placed, format = target.place(weight, wish), formats.get(wish.format or "")
    if not _is_kept(wish, placed) and target.stores(format.name, how.block):
        stored = in_float(wish, placed.reason.partition(":")[0] + ": unpacked when the model loads")
        # Recurrent layers that read no codes at all do not read those either.
        if wish.op not in own_ops.CELLS or _is_kept(stored, target.place(weight, stored)):
            return stored
    if placed.method is Method.PACKED and how.block is not None and not _has_kernel(target, how.block):
        return in_float(placed, f"no kernel has blocks of {how.block}: unpacked when the model loads")
    by_bnb4 = placed.method is Method.PACKED and format.bnb4 is not None and not target.has_onnxq_ops
    if by_bnb4 and _ends_inside(weight, how):
        return in_float(placed, "MatMulBnb4's blocks reach over the ends of its rows: unpacked when it loads")
    return placed


def _ends_inside(weight: Weight, how: Granularity) -> bool:
    """Whether the last block of a row is not a full one."""
    return how.block is not None and how.axis is not None and weight.shape[how.axis] % how.block > 0


def _unnest(weight: Weight, target: Target) -> None:
    """Where nothing reads scales in 8 bits, the same codes with the floats that those stand for."""
    tensor = weight.value.const_value
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    base = format.base
    if base is None or format.nested_type is None or not target.refusal(format.name) or target.refusal(base.name):
        return
    given = tensor.given

    def plain() -> QuantizedTensor:
        q = given()
        return QuantizedTensor(base, how, q.codes, q.scales, q.zero_points)

    weight.value.const_value = GivenTensor(
        plain, weight.shape, tensor.dtype, half_scales=tensor.half_scales, form=(base, how)
    )


def _as_stored(weight: Weight) -> None:
    """Where scales that are codes stay so, in float32 what those stand for, which was rounded to float16 before."""
    tensor = weight.value.const_value
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    if not tensor.half_scales or tensor.form[0].stored_scales is None:
        return
    given = tensor.given

    def exact() -> QuantizedTensor:
        q = given()
        assert isinstance(q.nested, StoredScales)
        return QuantizedTensor(q.format, q.granularity, q.codes, *q.nested.values, q.nested)

    weight.value.const_value = GivenTensor(exact, weight.shape, tensor.dtype, half_scales=False, form=tensor.form)


def _widen(weight: Weight, target: Target, *, is_refused: bool = False) -> bool:
    """Where nothing reads the format, whole numbers that stand for the same: the same codes, or twice the code; with
    scales in floats, if those were codes themselves. Whether there are any.

    Args:
        is_refused: nothing reads it for this weight, though the target has it for others.
    """
    tensor = weight.value.const_value
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    if how.block is None or not (is_refused or target.refusal(format.name)):
        return False
    sign, given = "int" if format.code_type == np.int8 else "uint", tensor.given
    if format.name in MICRO:
        words = [WIDER]
    elif format.is_integer and not format.has_minimum and format.bits <= 8:
        words = [f"{sign}{bits}" for bits in (2, 4, 8) if bits >= format.bits]
    else:
        return False
    word = next((word for word in words if word != format.name and not target.refusal(word)), None)
    if word is None:
        return False
    form = (formats.get(word), how)
    weight.value.const_value = GivenTensor(
        lambda: doubled(given()) if format.name in MICRO else _renamed(given(), form[0]),
        weight.shape,
        tensor.dtype,
        half_scales=tensor.half_scales,
        form=form,
    )
    return True


def _renamed(q: QuantizedTensor, format: Format) -> QuantizedTensor:
    """The same codes and scales in a format of as many bits, or more."""
    return QuantizedTensor(format, q.granularity, q.codes, q.scales, q.zero_points)


def _fit_blocks(weight: Weight) -> None:
    """Where groups of a scale are longer than kernels know, the same codes in blocks that repeat it; where they are
    whole rows shorter than any block, in the shortest."""
    tensor = weight.tensor
    assert isinstance(tensor, GivenTensor) and tensor.form is not None
    format, how = tensor.form
    if how.block is None or how.block in BLOCKS or how.axis != weight.role.contraction or _is_by_row(weight, how):
        return
    if format.stored_scales is not None:  # which are codes themselves, and not repeated
        return
    k = weight.shape[how.axis]
    block = next((b for b in BLOCKS if how.block % b == 0 or k <= b < how.block or (b <= k <= how.block)), None)
    block = BLOCKS[-1] if block is None and k <= how.block else block
    if block is None:
        return
    finer, given = Granularity(how.axis, block), tensor.given
    weight.value.const_value = GivenTensor(
        lambda: in_blocks(given(), finer),
        weight.shape,
        tensor.dtype,
        half_scales=tensor.half_scales,
        form=(format, finer),
    )
