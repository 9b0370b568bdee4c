"""Which layers of a checkpoint belong to which products and tables of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching import put, structure, ties
from onnxq.checkpoints.matching.folded import biases
from onnxq.checkpoints.matching.folded.sources import Sources
from onnxq.checkpoints.matching.folded.unnamed import Parameters
from onnxq.checkpoints.matching.names import dotted, names_of, shared_out
from onnxq.checkpoints.matching.put import LIKE, LIKE_COARSE, Orders, Placing
from onnxq.checkpoints.schemes import FLOATS
from onnxq.checkpoints.stored import Layer, Stored
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, one_line
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN, WEIGHT_TURNED, inherit_type
from onnxq.model.weights import Weight, weights_of
from onnxq.plan import Choice, Method

#: How layers are matched: by names and structure, by names alone, by structure without comparing numbers.
WAYS = ("auto", "names", "unchecked")


@dataclass
class Match:
    """What of a checkpoint goes where.

    Attributes:
        blocks: weights that share a scale in the model, by node.
        prefixes: of the tensors, by node.
        missing: products of the model that the checkpoint has nothing for.
        surplus: layers of the checkpoint that the model has no product for.
        misfits: sentences about tensors that do not fit.
        unused: other tensors of the checkpoint.
        lost: those of them that are floats of the shape of something in the model that was given nothing.
        kept: products by node, and constants, of the model that these may belong to.
        advice: what is said of these.
        bare: other parameters of the model that were given nothing: products by module or node, and constants.
        formats: what the weights are in the model, by node; `float` where they are in floats.
        proposed: how nodes were found whose names are others, by node.
        rounded: where the model has no form for the codes: what they became, and SQNR in dB, by node.
        constants: other constants of the model that were given the checkpoint's numbers.
        turned: squares of floats that were read as [in, out], since the model's own numbers lie so.
        notes: sentences about what numbers do not tell, and what was taken.
    """

    blocks: dict[str, int | None] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    advice: str = ""
    bare: list[str] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)
    proposed: dict[str, str] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    turned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Matched:
    """What was found, and what becomes of the nodes."""

    match: Match
    choices: dict[str, Choice]


def put_in(
    model: ir.Model,
    checkpoint: Mapping[str, Any],
    layers: Sequence[Layer],
    how: Placing,
    way: str = "auto",
    placed: Collection[str] = (),
    sources: Sources | None = None,
    *,
    is_tied: bool = False,
) -> Matched:
    """Give the products and tables of a prepared model the weights and biases of `layers`.

    A layer belongs to a product if its name is that of the node, of its weight, or of the constant its weight was made
    from, slashes read as dots, without `.weight`, `/MatMul` and `/Gemm` at the end. A layer without a name is that of
    the only product. What is left is proposed by `structure.py`, and taken if the numbers are alike. Last come products
    of a weight that another one with a layer reads too.

    Args:
        way: one of `WAYS`.
        placed: tensors of floats that constants of their own name and shape have already, whatever way they lie; and
            the names of those constants.
        sources: what the exporter says of constants, and what a name of the model is in the checkpoint.
        is_tied: whether the head is the table of words where it has no layer of its own.
    """
    sources = Sources(model, checkpoint) if sources is None else sources
    renamed = sources.renamed
    work = _Work(model, how, placed, Parameters(checkpoint, sources, is_checked=way != "unchecked"), renamed)
    weights = list(_weights(model))
    products = [weight for weight in weights if weight.node.op_type != "Gather"]
    by_name = {dotted(layer.name): layer for layer in layers}
    known = list[list[str]]()
    for weight in weights:
        lone = [""] if len(products) == 1 and weight is products[0] else []
        names = [*names_of(weight), *sources.names(weight.value)]
        known.append([by_name[name].name for name in [*names, *map(renamed, names), *lone] if name in by_name])
    wanted: dict[str | None, list[Weight]] = {}
    for weight, name in zip(weights, shared_out(known), strict=True):
        wanted.setdefault(name, []).append(weight)
    free = wanted.pop(None, [])
    rest = []
    for layer in layers:
        if layer.name in wanted:
            work.put_all(layer, wanted[layer.name])
        else:
            rest.append(layer)
    rest = _propose(work, rest, free, way) if way != "names" and free else rest
    _join(work, [w for w in free if w.node.name not in work.match.prefixes and not _is_placed(w, placed)])
    if is_tied and products and products[-1].node.name not in work.match.prefixes:
        _tie(work, products[-1])
    ties.store_once([(layer.name, weight) for layer, weight, _ in work.done], work.names)
    for layer in rest:
        work.leave(layer)
    match = work.match
    match.missing = [w.node.name or "" for w in products if w.node.name not in match.prefixes]
    used = {name for layer in layers for name in layer.tensors if layer.name in work.used}
    used -= {name for layer in layers if not work.biased.get(layer.name, True) for name in _biases(layer)}
    match.notes = work.parameters.notes()
    match.unused = [name for name in checkpoint if name not in used]
    return Matched(match, work.choices)


class _Work:
    """What is done to one model."""

    def __init__(
        self,
        model: ir.Model,
        how: Placing,
        placed: Collection[str],
        parameters: Parameters,
        renamed: Callable[[str], str] = str,
    ) -> None:
        self.placed, self.parameters, self.renamed = placed, parameters, renamed
        self.how, self.match, self.choices = how, Match(), dict[str, Choice]()
        self.names = Names(model)
        self.orders = Orders(self.names)
        self.done: list[tuple[Layer, Weight, NDArray[np.int64] | None]] = []
        #: Constants by what they hold, and how: nodes that read the same share one.
        self.made: dict[Hashable, ir.Value] = {}
        #: Names of layers whose tensors are accounted for; of those with a bias, whether a product reads that.
        self.used: set[str] = set()
        self.biased: dict[str, bool] = {}

    def put_all(
        self, layer: Layer, weights: Sequence[Weight], rows: NDArray[np.int64] | None = None, *, is_other: bool = False
    ) -> None:
        """Put a layer where it belongs, or into other weights, too, than its own."""
        self.used.add(layer.name)
        try:
            stored = layer.open()
        except BadModel as error:
            self.match.misfits.append(str(error))
            return
        for weight in weights:
            try:
                self._put(weight, layer, stored, rows, is_other=is_other)
                self.done.append((layer, weight, rows))
            except BadModel as error:
                self.match.misfits.append(str(error))

    def leave(self, layer: Layer) -> None:
        """A layer that goes nowhere; one of plain floats is like any other tensor."""
        if layer.scheme == FLOATS and not layer.is_joined:
            return
        try:
            stored = layer.open()
        except BadModel as error:
            self.match.misfits.append(str(error))
        else:
            if stored.is_float:
                return
            self.match.surplus.append(layer.name or layer.tensors[0])
        self.used.add(layer.name)

    def _own_name(self, weight: Weight, layer: Layer) -> str:
        """What the model calls a layer, whose other names begin with the same word: it takes a checkpoint again."""
        wanted = dotted(layer.name)
        names = (name for name in names_of(weight) if name != wanted and self.renamed(name) == wanted)
        return next(names, layer.name or weight.node.name or "")

    def _put(
        self, weight: Weight, layer: Layer, stored: Stored, rows: NDArray[np.int64] | None, *, is_other: bool
    ) -> None:
        node, name, source = weight.node, weight.node.name or "", stored.source
        n, k = put.sizes(weight)
        is_there, is_turned = stored.is_float and source in self.placed and not is_other, False
        if stored.is_float and not is_there:
            given, stored = stored, put.lying_right(weight, stored)
            is_turned = stored is not given
            if n == k and is_turned and source not in self.match.turned:
                self.match.turned.append(source)
        if stored.shape != (n, k) and not is_there:
            raise BadModel(
                f"'{source}' is of {stored.shape[0]} × {stored.shape[1]} weights, node '{name}' of {n} × {k}"
            )
        if graph.attribute_float(node, "alpha", 1.0) != 1.0 and not stored.is_float:
            raise BadModel(f"node '{name}' multiplies by an alpha, which packed weights have no place for")
        if stored.order is not None and node.op_type == "Gather":
            raise BadModel(f"'{source}' has its columns in another order, which a table has no place for")
        if not is_there:
            self.parameters.require_weight(weight, layer.name, stored, is_turned=is_turned)
        choice = Choice(name, node.op_type, Method.KEEP, None, None, weight.elements, "float in the checkpoint")
        form = error = None
        if not stored.is_float:
            choice, form, error = put.place(weight, stored, self.how)
        self._put_bias(weight, layer, stored, rows)
        if form is None:
            tensor: ir.TensorProtocol = put.floats(weight, lambda: _rows_of(stored.floats(), rows))
        else:
            tensor = put.given(weight, stored, form, rows)
            if stored.order is not None:
                self.orders.gather(node, stored.order)
        owner = weight.value.graph
        assert isinstance(owner, ir.Graph)
        if not is_there:
            kept = (
                layer.name,
                id(owner),
                weight.role,
                tensor.dtype,
                weight.shape,
                is_turned,
                choice.method,
                choice.label,
            )
            if kept not in self.made:
                lies_turned = form is None and (weight.role.contraction == 0) != is_turned
                self.made[kept] = self._constant(weight, layer, tensor, lies_turned=lies_turned)
            node.replace_input_with(weight.role.index, self.made[kept])
        self.choices[name] = choice
        self.match.blocks[name], self.match.prefixes[name] = choice.block, layer.name
        self.match.formats[name] = choice.format or "float"
        if error is not None:
            was = "" if stored.format is None else f"{stored.format.name} as "
            self.match.rounded[name] = f"{was}{choice.format}, {error:.1f} dB"

    def _constant(self, weight: Weight, layer: Layer, tensor: ir.TensorProtocol, *, lies_turned: bool) -> ir.Value:
        owner, own = weight.value.graph, self._own_name(weight, layer) + (WEIGHT_TURNED if lies_turned else ".weight")
        assert isinstance(owner, ir.Graph)
        if weight.value.name == own:
            weight.value.name = self.names.fresh(f"{own}_before")
        else:
            own = self.names.fresh(own)
        made = graph.add_constant(owner, own, tensor)
        if not isinstance(tensor, GivenTensor):
            inherit_type(made, weight.value)
        return made

    def _put_bias(self, weight: Weight, layer: Layer, stored: Stored, rows: NDArray[np.int64] | None) -> None:
        """Modules of floats may have one that nothing reads, where only their weight is; those of codes read theirs.

        Where neither the model nor the call has one, another call may have added zeros: it goes nowhere then.
        """
        if stored.bias is None or weight.node.op_type == "Gather" or stored.bias[0] in self.placed:
            return
        columns = put.sizes(weight)[0]
        is_read = layer.scheme != FLOATS or biases.is_read(weight, columns, self.placed)
        self.biased[layer.name] = self.biased.get(layer.name, False) or is_read
        if is_read:
            if (place := biases.place_of(weight, columns)) is not None:
                self.parameters.require_bias(*place, *stored.bias)
            biases.put_bias(weight, *stored.bias, columns, self.names, rows)


def _propose(work: _Work, layers: list[Layer], free: list[Weight], way: str) -> list[Layer]:
    """Put in what structure tells; the layers that are left."""
    opened: dict[int, Stored] = {}
    for i, layer in enumerate(layers):
        try:
            opened[i] = layer.open()
        except BadModel:
            continue
    groups: dict[object, list[Weight]] = {}
    for weight in free:  # a table that is also multiplied by is one layer
        origin = weight.value.meta.get(ORIGIN, weight.value.name) or id(weight.value)
        origin = weight.node.name if put.is_blank(weight) else origin  # those are one whatever their products are
        groups.setdefault((origin, put.sizes(weight)), []).append(weight)
    shared = list(groups.values())
    here = [structure.Side(i, (dotted(layers[i].name),), stored.shape) for i, stored in opened.items()]
    there = [structure.Side(i, _all_names(found), put.sizes(found[0])) for i, found in enumerate(shared)]
    names = {i: tuple(map(dotted, layer.aliases)) for i, layer in enumerate(layers)}
    done: set[int] = set()
    for proposal in structure.proposals(here, there, names):
        layer, stored, weights = layers[proposal.layer], opened[proposal.layer], shared[proposal.weight]
        node = weights[0].node.name or ""
        likeness, rows = (None, stored.rows) if way == "unchecked" else put.alike(weights[0], stored)
        bits = 16 if stored.format is None else stored.format.bits
        if likeness is not None and likeness < (LIKE if bits >= 4 else LIKE_COARSE):
            if stored.is_float and not layer.is_joined:
                continue
            done.add(proposal.layer)
            work.used.add(layer.name)
            work.match.misfits.append(
                f"'{layer.name}' would go to node '{node}' {proposal.why}, but their weights are not alike "
                f"({likeness:.1f} dB); give the layer the node's name, or --match unchecked if they need not be"
            )
            continue
        if likeness is None and proposal.is_weak and way != "unchecked":
            continue  # the model has no numbers of its own, and nothing else speaks for it
        done.add(proposal.layer)
        work.put_all(layer, weights, rows)
        told = proposal.why if likeness is None else f"{proposal.why}, {likeness:.1f} dB"
        for weight in weights:
            if weight.node.name in work.match.prefixes:
                work.match.proposed[weight.node.name or ""] = one_line(told)
    return [layer for i, layer in enumerate(layers) if i not in done]


def _join(work: _Work, free: Sequence[Weight]) -> None:
    """Let products read the layer that others of the same weight were given: modules that run several times.

    Weights without numbers of their own are all the same, and tell nothing.
    """
    sizes = {put.sizes(weight) for weight in free}
    given: dict[bytes, list[tuple[Layer, Weight, NDArray[np.int64] | None]]] = {}
    for each in work.done:
        if put.sizes(each[1]) in sizes:
            given.setdefault(put.first_row(each[1]), []).append(each)
    for weight in free if given else ():
        known = given.get(put.first_row(weight), [])
        same = {layer.name: (layer, w, rows) for layer, w, rows in known if put.is_same(weight, w)}
        if len(same) == 1:
            ((layer, other, rows),) = same.values()
            work.put_all(layer, [weight], rows)
            if weight.node.name in work.match.prefixes:
                work.match.proposed[weight.node.name or ""] = one_line(f"by its weight, that of '{other.node.name}'")


def _tie(work: _Work, head: Weight) -> None:
    """Let the last product read the layer of the table of its shape."""
    tables = {layer.name: (layer, rows) for layer, w, rows in work.done if _is_table_of(w, head)}
    if len(tables) == 1:
        ((layer, rows),) = tables.values()
        work.put_all(layer, [head], rows, is_other=True)
        if head.node.name in work.match.prefixes:
            work.match.proposed[head.node.name or ""] = "tied to the table of words"


def _is_table_of(weight: Weight, head: Weight) -> bool:
    is_lookup = weight.node.op_type == "Gather" and weight.role.index == 0
    return is_lookup and put.sizes(weight) == put.sizes(head) and ties.are_words(weight.node.inputs[1])


def _is_placed(weight: Weight, placed: Collection[str]) -> bool:
    return any(name in placed for name in (weight.value.name, weight.value.meta.get(ORIGIN)))


def _biases(layer: Layer) -> list[str]:
    return [name for name in layer.tensors if name.rpartition(".")[2] == "bias"]


def _rows_of(w: NDArray, rows: NDArray[np.int64] | None) -> NDArray:
    return w if rows is None else w[rows]


def _weights(model: ir.Model) -> Iterator[Weight]:
    """Products with a matrix on the right, and tables."""
    for node in graph.nodes(model):
        for weight in weights_of(node, least=1):
            is_product = graph.is_op(node, "MatMul", "Gemm") and weight.role.index == 1
            if (is_product or graph.is_op(node, "Gather")) and len(weight.shape) == 2:
                yield weight


def _all_names(weights: Sequence[Weight]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for weight in weights for name in names_of(weight)))
