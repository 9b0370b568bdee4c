"""Steps of int8 regions that read or make float32, or compute in it: between codes in the blocks of a transformer."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import TypeAndShape, Types
from onnxq.passes.regions.forms import Forms
from onnxq.passes.regions.group import FloatGroup, Group, Tensor, Words, is_quantize, source_of
from onnxq.planning import chains, moves
from onnxq.planning.rows.int8_attention import Int8Attention, fits, int8_attention_at
from onnxq.planning.rows.norms import RowNorm, row_norm_at
from onnxq.planning.rows.rotary import rotary_at, turns_rows

Groups = dict[Tensor, Group]


class Rows:
    """Finds the steps of one graph, beside those of codes that were found before.

    1. Attentions whose operands are codes; products of two tensors of codes.
    2. Normalizations of rows, Softmax, and sums of two tensors of which at least one is float32; where one
       QuantizeLinear alone reads what they make, they make codes.
    3. Changes of shape and order, and parts, of what steps make, where steps read them.
    4. A QuantizeLinear of float32 that a step makes.

    Args:
        types: of values, by the names that they had in float.
    """

    def __init__(self, types: Types, forms: Forms) -> None:
        self.types, self.forms = types, forms

    def find(self, subgraph: ir.Graph, found: Groups) -> Groups:
        """`found` with more steps."""
        # First what has moves of its own among its nodes.
        whole = [group for node in subgraph if (group := self._attention(node) or self._rotary(node)) is not None]
        taken = {node for group in whole for node in group.nodes}
        made = {key: group for key, group in found.items() if taken.isdisjoint(group.nodes)}
        made |= {group.made: group for group in whole}
        taken |= {node for group in made.values() for node in group.nodes}
        for node in subgraph:
            for group in self._groups(node, made) if node not in taken else ():
                if taken.isdisjoint(group.nodes):
                    made[group.made] = group
                    taken |= set(group.nodes)
        return self._read_by_steps(made)

    def _groups(self, node: ir.Node, made: Groups) -> list[Group]:
        if is_quantize(node):
            return self._encode(node, made)
        if node.domain == "" and node.op_type in chains.ORDERS:
            return self._arranged(node, made)
        if moves.is_move(node):
            return self._moved(node, made)
        group = self._norm(node) or self._plus(node, made) or self._softmax(node) or self._matmul(node)
        return [] if group is None else [group]

    # --- what is known of values

    def of(self, value: ir.Value | None) -> TypeAndShape:
        """Type and shape, by its name, by that of what was made codes, or by what it was made of here."""
        if value is None:
            return self.types[""]
        known, quantize = self.types.of(value), source_of(value)
        if known.dtype is None and quantize is not None and quantize.inputs[0] is not None:
            return self.of(quantize.inputs[0])
        if known.dtype is None and value.dtype is not None:
            shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
            known = TypeAndShape(value.dtype, shape)
        if known.rank is None and graph.is_op(value.producer(), "Where"):
            node = value.producer()
            assert node is not None
            ranks = [self._rank_of(each) for each in node.inputs]
            if None not in ranks:
                most = max(rank for rank in ranks if rank is not None)
                return TypeAndShape(self.of(node.inputs[2]).dtype or ir.DataType.FLOAT, (None,) * most)
        return known

    def _rank_of(self, value: ir.Value | None) -> int | None:
        tensor = graph.constant(value)
        return self.of(value).rank if tensor is None else len(tensor.shape)

    def _is_rows(self, value: ir.Value | None) -> bool:
        """Whether it is float32 that may be a matrix, or a stack of them."""
        known = self.of(value)
        return known.dtype is ir.DataType.FLOAT and known.rank in moves.RANKS and graph.constant(value) is None

    def _tensor(self, value: ir.Value | None) -> Tensor | None:
        """What a step would read: codes, if these are made float32 again, else float32; None if it cannot."""
        quantize = source_of(value)
        if value is None or (quantize is None and not self._is_rows(value)):
            return None
        if quantize is None:
            return value
        rank = self._rank(quantize, value)
        return quantize if rank in moves.RANKS and (rank == 2 or self.forms.may_be_stack(quantize)) else None

    def _rank(self, quantize: ir.Node, value: ir.Value) -> int | None:
        known = [quantize.inputs[0], value, *(use.node.outputs[0] for use in quantize.outputs[0].uses())]
        return next((self.of(each).rank for each in known if self.of(each).rank is not None), None)

    @staticmethod
    def _constant(value: ir.Value) -> Tensor | None:
        """A constant that a step reads as any other tensor."""
        tensor = graph.constant(value)
        is_known = tensor is not None and tensor.dtype is ir.DataType.FLOAT and len(tensor.shape) in moves.RANKS
        return value if is_known else None

    # --- steps

    def _finished(self, does: str, nodes: tuple[ir.Node, ...], sources: tuple[Tensor, ...], words: Words) -> Group:
        """With the QuantizeLinear that alone reads what it makes; else it makes float32."""
        operands = tuple(dict.fromkeys(_decoders(nodes)))
        quantize = graph.only_consumer(nodes[-1].outputs[0])
        if quantize is not None and is_read_here(quantize) and self._may_be_rows(quantize):
            codes: Words = {"scale": quantize.inputs[1], "zero": quantize.inputs[2]}
            return Group(does, operands, (*nodes, quantize), sources, {**words, **codes}, reads_stack=True)
        return FloatGroup(does, operands, nodes, sources, words, reads_stack=True)

    def _may_be_rows(self, quantize: ir.Node) -> bool:
        return is_quantize(quantize) and self.forms.may_be_stack(quantize)

    def _norm(self, node: ir.Node) -> Group | None:
        value = node.inputs[0] if node.inputs else None
        found: RowNorm | None = row_norm_at(node, self.of(value).rank)
        source = None if found is None else self._tensor(found.x)
        if found is None or source is None:
            return None
        size = (self.of(found.x).shape or (None,))[-1]
        vectors = [graph.constant(each) for each in (found.weight, found.bias) if each is not None]
        if any(vector is None or vector.size != size for vector in vectors):
            return None
        words: Words = {"weight": found.weight, "bias": found.bias, "epsilon": np.array(found.epsilon, np.float32)}
        if not found.centred:
            words["centred"] = 0
        return self._finished("layer_norm", found.nodes, (source,), words)

    def _rotary(self, node: ir.Node) -> Group | None:
        found = rotary_at(node)
        if found is None:
            return None
        values = (found.x, found.cos, found.sin)
        is_read = all(self._is_rows(value) and source_of(value) is None for value in values)
        if not is_read or not turns_rows(found, _Known(self)):
            return None
        return self._finished("rotary", found.nodes, values, {})

    def _plus(self, node: ir.Node, made: Groups) -> Group | None:
        if not graph.is_op(node, "Add"):
            return None
        sources = tuple(self._tensor(value) for value in node.inputs)
        known = tuple(source for source in sources if source is not None)
        ranks = {self.of(value).rank for value in node.inputs}
        if len(known) != 2 or len(ranks) != 1 or not any(isinstance(source, ir.Value) for source in known):
            return None
        group = FloatGroup("plus", tuple(_decoders((node,))), (node,), known, {}, reads_stack=True, decodes=True)
        return group if any(source in made for source in known) else None

    def _softmax(self, node: ir.Node) -> Group | None:
        if not graph.is_op(node, "Softmax"):
            return None
        source, rank = self._tensor(node.inputs[0]), self.of(node.inputs[0]).rank
        axis = graph.attribute_int(node, "axis", -1)
        if source is None or rank is None or axis not in (-1, rank - 1):
            return None
        return self._finished("softmax", (node,), (source,), {})

    def _matmul(self, node: ir.Node) -> Group | None:
        """Of two tensors of codes."""
        if not graph.is_op(node, "MatMul"):
            return None
        sources = tuple(source_of(value) for value in node.inputs)
        known = tuple(source for source in sources if source is not None)
        ranks = {self.of(value).rank for value in node.inputs}
        fits_ = all(len(ranks) == 1 and self._tensor(value) is not None for value in node.inputs)
        size = (self.of(node.inputs[0]).shape or (None,))[-1]
        if len(known) != 2 or not fits_ or not isinstance(size, int) or not 0 < size < 1 << 15:
            return None
        return self._finished("matmul", (node,), known, {})

    def _attention(self, node: ir.Node) -> Group | None:
        found = int8_attention_at(node) if graph.is_op(node, "Softmax") else None
        if found is None or not found.weights or found.hides is not None:
            return None
        quantize = graph.only_consumer(found.result)
        roots = [source_of(each.root) for each in found.operands]
        mask = None if found.mask is None else self._tensor(found.mask) or self._constant(found.mask)
        known = [root for root in roots if root is not None and self.forms.may_be_stack(root)]
        if (
            len(known) != 3
            or not fits(found, _Known(self))
            or (found.mask is not None and not isinstance(mask, ir.Value))
        ):
            return None
        if quantize is None or not is_read_here(quantize) or not self._may_be_rows(quantize):
            return None
        sources: tuple[Tensor, ...] = (*known, *([] if mask is None else [mask]))
        words = {**_words_of(found), "scale": quantize.inputs[1], "zero": quantize.inputs[2]}
        operands = tuple(dict.fromkeys(_decoders(found.nodes)))
        return Group("attention", operands, (*found.nodes, quantize), sources, words, reads_stack=True)

    def _encode(self, quantize: ir.Node, made: Groups) -> list[Group]:
        value = quantize.inputs[0]
        is_made = value in made and isinstance(made[value], FloatGroup)
        if not is_made or value is None or not is_read_here(quantize) or not self._may_be_rows(quantize):
            return []
        words: Words = {"scale": quantize.inputs[1], "zero": quantize.inputs[2]}
        return [Group("encode", (), (quantize,), (value,), words, reads_stack=True)]

    def _arranged(self, node: ir.Node, made: Groups) -> list[Group]:
        """The longest chain that ends here, of what a step makes."""
        out = node.outputs[0]
        chain = chains.chain_to(out)
        followers = [use.node for use in out.uses()]
        goes_on = len(followers) == 1 and followers[0].domain == "" and followers[0].op_type in chains.ORDERS
        if chain is None or chain.root not in made or (goes_on and not out.is_graph_output()):
            return []
        move = moves.order_of(chain, self.of(chain.root).rank)
        if move is None or not self._is_rows(chain.root):
            return []
        words: Words = {**move.words, **({"stack": 1} if move.does == "arrange" else {})}
        return [FloatGroup(move.does, (), chain.nodes, (chain.root,), words, reads_stack=True)]

    def _moved(self, node: ir.Node, made: Groups) -> list[Group]:
        value = node.inputs[0]
        rank = self.of(value).rank
        found = moves.moves_of(node, rank) if value in made and graph.is_op(node, "Slice", "Split") else None
        stacked = [moves.in_stack(move, rank) for move in found or ()]
        known = [move for move in stacked if move is not None]
        if value is None or not known or len(known) != len(node.outputs) or not self._is_rows(value):
            return []
        return [
            FloatGroup(move.does, (), (node,), (value,), dict(move.words), reads_stack=True, output=number)
            for number, move in enumerate(known)
        ]

    @staticmethod
    def _read_by_steps(made: Groups) -> Groups:
        """Without moves of float32 that no step reads."""
        moving = ("arrange", "flatten", "slice")
        while True:
            read = {source for group in made.values() for source in group.sources}
            lost = [
                key
                for key, group in made.items()
                if isinstance(group, FloatGroup) and group.does in moving and key not in read
            ]
            if not lost:
                return made
            made = {key: group for key, group in made.items() if key not in lost}


class _Known(Types):
    """What `Rows.of` says of values."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.types)
        self.rows = rows

    def of(self, value: ir.Value) -> TypeAndShape:
        return self.rows.of(value)


def is_read_here(quantize: ir.Node) -> bool:
    """Whether these are codes that become float again in the same graph, by whoever reads them."""
    if not is_quantize(quantize):
        return False
    readers = [use.node for use in quantize.outputs[0].uses()]
    is_plain = all(reader.op_type == "DequantizeLinear" and reader.graph is quantize.graph for reader in readers)
    return bool(readers) and is_plain and not quantize.outputs[0].is_graph_output()


def with_floats(group: Group) -> FloatGroup:
    """A product that makes float32, which others may read."""
    given = {each.name: getattr(group, each.name) for each in dataclasses.fields(Group)}
    return FloatGroup(**given)


def _decoders(nodes: tuple[ir.Node, ...]) -> list[ir.Node]:
    """Who makes codes float32 that these read."""
    inside = set(nodes)
    made = [value.producer() for node in nodes for value in node.inputs if value is not None]
    return [node for node in made if node is not None and graph.is_op(node, "DequantizeLinear") and node not in inside]


def _words_of(found: Int8Attention) -> Words:
    words: Words = {"factor": np.array(found.scale, np.float32)}
    if found.turned:
        words["transposed"] = 1
    if not found.heads and not found.merges:
        return words
    joined = [int(each.heads > 0) for each in found.operands] + [int(found.merges)]
    words["joined"] = joined
    if found.heads:
        words["heads"] = found.heads
        words["width"] = [max(found.q.size, found.k.size) or 1, found.v.size or 1]
        first = [each.first for each in found.operands]
        if any(first):
            words["first"] = first
    return words
