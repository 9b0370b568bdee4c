"""One stored weight put into one place of a model: its form there, its orientation, the order of its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching import forms
from onnxq.checkpoints.matching.forms import Form
from onnxq.checkpoints.stored import Stored
from onnxq.encoding.lazy import GivenTensor, turned
from onnxq.errors import BadModel
from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.formats.kinds.super_blocks import StoredScales
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import STORED_TYPE
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.quality import sqnr
from onnxq.targets import Target, is_standard

#: What a layer's weights and the model's own must have in common where names do not tell that they are the same:
#: SQNR in dB, of codes of four bits or more, and of fewer.
LIKE, LIKE_COARSE = 5.0, 2.0


@dataclass(frozen=True)
class Placing:
    """Where the model will run, as far as it decides how a weight is stored.

    Attributes:
        refusal: why the model cannot have the operators of blocks; empty if it can.
        is_exact: whether activations have to stay as they are.
    """

    target: Target
    refusal: str = ""
    is_exact: bool = False


def place(weight: Weight, stored: Stored, how: Placing) -> tuple[Choice, Form | None, float | None]:
    """(what becomes of its node, in which form, SQNR in dB where that is not exact).

    Without a form its floats stay floats.
    """
    node, op = weight.node.name or "", weight.node.op_type
    exact = list(forms.exact_forms(stored))
    for method in (Method.PACKED, Method.STORED):
        for form in exact:
            choice = _placed(weight, form, method, how)
            if choice is not None:
                return choice, form, None
    raw = stored.weights()
    if isinstance(raw, QuantizedTensor):
        options, wanted = list(forms.rounded_forms(stored)), raw.dequantize()
    else:
        options, wanted = [Form("int8", 32, forms.encoded_floats, is_exact=False)], np.asarray(raw, np.float32)
    for form in options:
        choices = (_placed(weight, form, method, how) for method in (Method.PACKED, Method.STORED))
        choice = next((choice for choice in choices if choice is not None), None)
        if choice is None:
            continue
        try:
            made = form.make(raw)
        except BadModel:  # its minima are no zero points
            continue
        return choice, form, sqnr(wanted, made.dequantize())
    reason = "no form of it there: kept in float"
    return Choice(node, op, Method.KEEP, None, None, weight.elements, reason), None, None


def _placed(weight: Weight, form: Form, method: Method, how: Placing) -> Choice | None:
    """The choice, if the target takes the form by this method and leaves it as it is."""
    block, target = form.block, how.target
    wish = Choice(weight.node.name or "", weight.node.op_type, Method.PACKED, form.word, block, weight.elements)
    if target.refusal(form.word):
        return None
    why = ""
    if block is None:
        why = f"no kernel multiplies by {form.word}: unpacked when the model loads"
    elif block not in forms.BLOCKS:
        why = f"no kernel reads groups of {block}: unpacked when the model loads"
    elif how.refusal and graph.MICROSOFT not in target.domains:
        why = how.refusal
    elif how.is_exact and not target.domains:  # runtimes that fuse standard operators round activations
        why = "activations in float: unpacked when the model loads"
    elif _is_ragged(weight, form, target):
        why = "MatMulBnb4's blocks would reach over the ends of its rows: unpacked when the model loads"
    if method is Method.STORED:
        has_type = form.word in target.spelled
        if not has_type and not (target.stores(form.word, block) and _is_spelled(form)):
            return None
        wish = in_float(wish, why or f"no kernel multiplies by {form.word}: unpacked when the model loads")
    elif why:
        return None
    placed = target.place(weight, wish)
    kept = (placed.format, placed.block, placed.method) == (form.word, block, method)
    return placed if kept else None


def _is_spelled(form: Form) -> bool:
    """Whether nodes unpack it: nibbles are by halves of blocks, and our own nodes take integers and tables only."""
    if not is_standard(form.format, form.block):
        return form.format.code_type.kind in "iu"
    return form.block is None or form.format.bits != 4 or form.block % 2 == 0


def _is_ragged(weight: Weight, form: Form, target: Target) -> bool:
    """Whether the only kernel counts blocks over the ends of rows."""
    k = weight.shape[weight.role.contraction]
    return form.format.bnb4 is not None and graph.MICROSOFT in target.domains and bool(k % (form.block or 1))


def given(weight: Weight, stored: Stored, form: Form, rows: NDArray[np.int64] | None) -> GivenTensor:
    """The weight as it lies in the model, read when it is written.

    Args:
        rows: which row of the stored weight each of the model's is; None: as they lie.
    """
    is_turned = weight.role.contraction == 0

    def read() -> QuantizedTensor:
        made = form.make(stored.weights())
        made = made if rows is None else taken(made, rows)
        return turned(made) if is_turned else made

    return GivenTensor(read, weight.shape, weight.tensor.dtype, half_scales=form.half_scales)


def floats(weight: Weight, read: Callable[[], NDArray]) -> ir.LazyTensor:
    """The floats [out, in] as they lie in the model, with the digits that it has in the file.

    Raises, when it is read:
        BadModel: a number is not finite, or too large for the model's type.
    """

    def evaluate() -> ir.TensorProtocol:
        with np.errstate(over="ignore", invalid="ignore"):
            w = read().astype((weight.value.meta.get(STORED_TYPE) or weight.tensor.dtype).numpy())
        if not np.isfinite(w.astype(np.float32)).all():
            raise BadModel(f"the weight for node '{weight.node.name}' holds numbers that are not finite in {w.dtype}")
        w = w.astype(weight.tensor.dtype.numpy(), copy=False)
        return ir.tensor(np.ascontiguousarray(w.T if weight.role.contraction == 0 else w))

    return ir.LazyTensor(evaluate, dtype=weight.tensor.dtype, shape=ir.Shape(weight.shape))


def taken(q: QuantizedTensor, rows: NDArray[np.int64]) -> QuantizedTensor:
    """A matrix [out, in] with its rows in another order."""
    nested = q.nested
    if isinstance(nested, StoredScales):
        nested = StoredScales(taken(nested.scales, rows), None if nested.minima is None else taken(nested.minima, rows))
    scales, zeros = (part if part is None or not part.ndim else part[rows] for part in (q.scales, q.zero_points))
    return QuantizedTensor(q.format, q.granularity, q.codes[rows], scales, zeros, nested)


class Orders:
    """Inputs whose columns are gathered in another order, once for all products that want the same."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._made: dict[tuple[int, int, bytes], ir.Value] = {}

    def gather(self, node: ir.Node, order: NDArray[np.int64]) -> None:
        """Let a MatMul or Gemm read its first input in this order."""
        x = node.inputs[0]
        assert x is not None and isinstance(node.graph, ir.Graph)
        is_turned = node.op_type == "Gemm" and bool(graph.attribute_int(node, "transA", 0))
        key = (id(x), id(node.graph), order.tobytes() + bytes([is_turned]))
        if key not in self._made:
            index = graph.add_constant(node.graph, self._names.fresh(f"{node.name}_order"), ir.tensor(order))
            name = self._names.fresh(f"{node.name}_ordered")
            made = ir.node("Gather", [x, index], {"axis": 0 if is_turned else -1}, name=name)
            made.outputs[0].name, made.outputs[0].type = name, x.type
            made.outputs[0].shape = x.shape
            producer = x.producer()
            if producer is not None and producer.graph is node.graph:
                node.graph.insert_after(producer, made)
            else:
                node.graph.insert_before(next(iter(node.graph)), made)
            self._made[key] = made.outputs[0]
        node.replace_input_with(0, self._made[key])


def lying_right(weight: Weight, stored: Stored) -> Stored:
    """Floats as [out, in]: some frameworks keep them the other way (GPT-2's Conv1D), squares if numbers tell."""
    n, k = sizes(weight)
    turned = replace(stored, shape=(n, k), read=lambda: np.asarray(stored.read()).T)
    if stored.shape != (k, n):
        return stored
    if n == k:
        plain, other = alike(weight, stored)[0], alike(weight, turned)[0]
        if plain is None or other is None or plain >= other or other < max(plain, 0.0) + LIKE:
            return stored
    return turned


def alike(weight: Weight, stored: Stored) -> tuple[float | None, NDArray[np.int64] | None]:
    """(SQNR of the layer against the model's own weight, the order of rows that it is of); None: it has none."""
    w = arguments.numbers(weight.tensor.numpy()).astype(np.float32)
    w = w.T if weight.role.contraction == 0 else w
    if isinstance(weight.tensor, GivenTensor) or not np.isfinite(w).all() or not np.ptp(w):
        return None, stored.rows
    found = stored.floats()
    plain = sqnr(w, found)
    if stored.rows is None:
        return plain, None
    sorted_rows = sqnr(w, found[stored.rows])
    return (plain, None) if plain > sorted_rows else (sorted_rows, stored.rows)


def sizes(weight: Weight) -> tuple[int, int]:
    return weight.shape[weight.role.channel], weight.shape[weight.role.contraction]


def is_blank(weight: Weight) -> bool:
    return not np.ptp(weight.tensor.numpy().astype(np.float32))


def first_row(weight: Weight) -> bytes:
    w = weight.tensor.numpy()
    return bytes(np.ascontiguousarray(w[:, 0] if weight.role.contraction == 0 else w[0]).tobytes())


def is_same(a: Weight, b: Weight) -> bool:
    x, y = a.tensor.numpy(), b.tensor.numpy()
    is_turned = a.role.contraction != b.role.contraction
    return x.dtype == y.dtype and np.array_equal(x, y.T if is_turned else y) and bool(np.ptp(x.astype(np.float32)))
