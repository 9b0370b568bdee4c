"""One of two models that are compared: the nodes that compute, and where what they make can be read as floats."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.passes import prepare
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.restore.standard_pairs import OPSET, StandardPairs, has_own_pairs
from onnxq.passes.restore.unfold_integer_operators import UnfoldIntegerOperators

#: Operators after which a value is what it was before, in another form.
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "Cast", "Identity")
#: Operators after which its numbers lie elsewhere.
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
#: Nodes in a row that unpack a constant, at most.
_DEPTH = 12
_PRODUCTS_OF_CODES = ("MatMulInteger", "ConvInteger")


class Side:
    """A model as it is compared.

    Operators on codes (QLinearConv …) become operators on floats between DequantizeLinear and QuantizeLinear, which
    runtimes fuse again: so every value is there in floats. Functions are inlined, but for those of our own operators.

    Attributes:
        nodes: those that compute, in the order of execution, but for those in bodies of Loop and Scan. A product of
            codes is one with what makes floats of its sums.
        maker: by what they make, the nodes.
        values: by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = load_model(path)
        lift = LiftConstantsToInitializersPass(True, size_limit=0)
        first = [InlineFunctions(), DropInitializerInputs(), lift, UniqueNames()]
        prepare.run([*first, UnfoldIntegerOperators(), RemoveUnused(), UniqueNames()], self.model)
        self.model.graph.sort()
        _use_standard_pairs(self.model)
        _read_codes(self.model)
        self.values: dict[str, ir.Value] = {}
        for each in graph.graphs(self.model):
            for value in (*each.inputs, *(output for node in each for output in node.outputs)):
                self.values[value.name or ""] = value
        hidden = _in_loops(self.model)
        self._visible = {id(each) for each in graph.graphs(self.model)} - hidden
        self.nodes = [node for node in graph.nodes(self.model) if id(node.graph) not in hidden and self._computes(node)]
        products = {self.made_by(node).name or "": node for node in self.nodes if _is_of_codes(node)}
        self.nodes = [node for node in self.nodes if products.get(node.outputs[0].name or "", node) is node]
        self.maker = {self.made_by(node).name or "": node for node in self.nodes}
        self.maker |= {value.name or "": node for node in self.nodes for value in others_of(node)}

    @property
    def made(self) -> list[ir.Value]:
        """What goes into the model, then what its nodes make of that."""
        found = list(self.model.graph.inputs)
        for node in self.nodes:
            found += [self.made_by(node), *others_of(node)]
        return [value for value in found if value.name]  # of an LSTM the first may be left out

    def _computes(self, node: ir.Node) -> bool:
        if is_conversion(node) or (node.op_type in (*_MOVES, "DynamicQuantizeLinear") and node.domain == ""):
            return False
        read = [value for value in node.inputs if is_activation(value)]
        is_of_scales = graph.is_op(node, "Mul") and all(_only_of_scales(value) for value in read)
        return bool(node.outputs) and bool(read) and not is_of_scales

    def made_by(self, node: ir.Node) -> ir.Value:
        """What a node makes: of a product of codes, the floats that its sums become behind it."""
        y = node.outputs[0]
        if not _is_of_codes(node):
            return y
        reader = graph.only_consumer(y)
        while reader is not None and (graph.is_op(reader, "Cast") or _only_scales(reader, y)):
            y, scaled = reader.outputs[0], reader.op_type == "Mul"
            reader = None if scaled else graph.only_consumer(y)
        return y

    def root(self, value: ir.Value, *, moved: bool = True) -> ir.Value:
        """What `value` was before it was converted, or moved; itself, if it was not."""
        node = value.producer()
        while node is not None and (is_conversion(node) or _quantizes(node, value) or (moved and is_move(node))):
            before = node.inputs[0]
            if before is None or id(before.graph) not in self._visible or not is_activation(before):
                break
            value, node = before, before.producer()
        return value

    def forms(self, root: ir.Value) -> list[ir.Value]:
        """`root` and all that it is converted to, in the order in which that happens."""
        found = [root]
        for value in found:
            found += [use.node.outputs[0] for use in value.uses() if is_conversion(use.node) and use.idx == 0]
        return [value for value in found if id(value.graph) in self._visible]

    def stand(self, root: ir.Value) -> ir.Value | None:
        """The form that later layers read as floats: rounded to codes and back, where it is; None: codes alone."""
        forms = self.forms(root)
        rounded = [value for value in forms if graph.is_op(value.producer(), "DequantizeLinear")]
        return next(iter(rounded), None if quantizer(root) is not None else root)


def cloned(model: ir.Model) -> ir.Model:
    """
    Raises:
        BadModel: a function of the model reads what nothing makes.
    """
    try:
        return model.clone()
    except RuntimeError:
        raise BadModel("a local function reads a value that nothing makes") from None


def others_of(node: ir.Node) -> list[ir.Value]:
    """What a node makes besides its first output."""
    return [value for value in node.outputs[1:] if value.name]


def is_activation(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Whether a value depends on what goes into the model: it is no constant, nor made of constants alone."""
    if value is None or graph.constant(value) is not None:
        return False
    node = value.producer()
    is_far = depth == 0 or node is None or not node.inputs or graph.has_body(node)
    return is_far or any(is_activation(each, depth - 1) for each in node.inputs)  # type: ignore[union-attr]


def is_move(node: ir.Node) -> bool:
    return graph.is_op(node, *_MOVES)


def is_conversion(node: ir.Node) -> bool:
    """Whether `node` gives the same numbers in another type: rounded or not, but not cut to whole ones."""
    if not graph.is_op(node, *_CONVERSIONS) or not is_activation(node.inputs[0]):
        return False
    return node.op_type != "Cast" or graph.attribute_int(node, "to", 0) in {int(dtype) for dtype in graph.FLOATS}


def quantizer(codes: ir.Value) -> ir.Node | None:
    """The QuantizeLinear whose codes a value holds, perhaps moved or the largest of several; None if it holds none."""
    node = codes.producer()
    while node is not None and not graph.is_op(node, "QuantizeLinear"):
        if not (is_move(node) or graph.is_op(node, "MaxPool", "Slice", "Identity")) or node.inputs[0] is None:
            return None
        node = node.inputs[0].producer()
    return node


def _quantizes(node: ir.Node, value: ir.Value) -> bool:
    return graph.is_op(node, "DynamicQuantizeLinear") and value is node.outputs[0]


def _only_scales(node: ir.Node, y: ir.Value) -> bool:
    """Whether a Mul multiplies sums of codes by scales: constants, or products of those of DynamicQuantizeLinear."""
    if not graph.is_op(node, "Mul"):
        return False
    return all(_only_of_scales(value) for value in node.inputs if value is not y)


def _only_of_scales(value: ir.Value | None) -> bool:
    return all(graph.is_op(node, "DynamicQuantizeLinear") for node in _sources(value))


def _is_of_codes(node: ir.Node) -> bool:
    return graph.is_op(node, *_PRODUCTS_OF_CODES)


def _sources(value: ir.Value | None) -> Iterator[ir.Node | None]:
    """The nodes, other than Mul and Cast, that a product of scales comes from; None of an input."""
    if value is None or not is_activation(value):
        return
    node = value.producer()
    if node is not None and graph.is_op(node, "Mul", "Cast"):
        for each in node.inputs:
            yield from _sources(each)
    else:
        yield node


def _use_standard_pairs(model: ir.Model) -> None:
    """Pairs of onnxruntime's domain are read like ONNX's; where the opset cannot be raised for them, they stay."""
    if has_own_pairs(model):
        with contextlib.suppress(BadModel):
            prepare.run([RaiseOpset(OPSET), UniqueNames(), StandardPairs()], model)


def _read_codes(model: ir.Model) -> None:
    """Codes that only operators on codes read become floats too, for us to see."""
    names = graph.Names(model)
    for node in list(graph.nodes(model)):
        if not graph.is_op(node, "QuantizeLinear") or not is_activation(node.inputs[0]):
            continue
        codes = node.outputs[0]
        if not any(graph.is_op(use.node, "DequantizeLinear") for use in codes.uses()):
            name = names.fresh(f"{codes.name}_floats")
            seen = ir.node("DequantizeLinear", [codes, *node.inputs[1:3]], name=name)
            seen.attributes.update({key: a for key, a in node.attributes.items() if key in ("axis", "block_size")})
            seen.outputs[0].name = name
            node.append(seen)


def _in_loops(model: ir.Model) -> set[int]:
    """Graphs of which a value has one form a turn: bodies of Loop and Scan, and what lies in them."""
    found: set[int] = set()
    for node in graph.nodes(model):
        if graph.has_body(node) and (node.op_type != "If" or id(node.graph) in found):
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    found.add(id(attribute.as_graph()))
    return found
