"""Which nodes have to compute in float32, as shorter floats do not hold what they count."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.planning.counts import bodies, spans
from onnxq.planning.counts.arithmetic import SUMS, WHOLE, computed, is_small, is_switch
from onnxq.planning.counts.spans import ANY, ANY_WHOLE, COUNT, SWITCH, Span
from onnxq.planning.counts.uses import (
    CARRIES,
    LOOKUPS,
    MOST_COORDINATES,
    MOVES,
    PLACES_BESIDE,
    PRODUCTS,
    STEPS,
    Uses,
    is_layer,
    kernels_of,
    numbers_of,
    uses_in,
)

#: Why such a node is kept.
REASON = "counts places, steps or lengths, which half precision rounds"
_NORMS = frozenset(
    [
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization"),
        *("LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    ]
)
#: Functions whose results are small, whatever they are of.
BOUNDED = frozenset(
    [
        *("Acos", "Asin", "Atan", "Cos", "Erf", "HardSigmoid", "Hardmax", "LogSoftmax", "Sigmoid", "Sin", "Softmax"),
        *("Softsign", "Tanh", *_NORMS),
    ]
)
#: What makes sizes and places, whatever it reads.
_COUNT = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})
#: What makes floats of integers.
_MAKE_FLOATS = frozenset({"Cast", "CastLike", "Range"})
#: What makes something to count, even of constants.
_MAKE_NUMBERS = frozenset({"OneHot", "Range"})


@dataclass
class Counts:
    """Nodes that compute with numbers that come of integers, which may be large and yet have to be exact.

    Attributes:
        nodes: those that shorter floats would make wrong.
        exact: those of them whose constants have to be exact too, as angles are multiples of them.
    """

    nodes: dict[ir.Node, None] = field(default_factory=dict)
    exact: set[ir.Node] = field(default_factory=set)


def counts_in(model: ir.Model, types: Types, digits: int = spans.HALF) -> Counts:
    """Numbers that come of integers, from where they become floats to where a function bounds them, or a float
    activation of the network takes them as a factor.

    1. An integer may be any, unless it is of a type of 8 bits, a truth value, or computed of such: `spans.py` has the
       bounds. Those up to 2048 are exact in float16, and fractions up to 16 good enough; up to 256 and 2 in bfloat16.
       Activations that are made whole are integers: durations that a network tells are added up to places.
    2. Masks are 0 or 1: what is multiplied by -1000 or less to hide scores, or becomes a truth value in one place and a
       factor in all others.
    3. Sums of them and of activations are as large, and stay what they are up to what takes them for activations: a
       layer, a norm or a factor. Products are activations, but where sines, whole numbers, comparisons or places in a
       picture are made of them (`uses.py`).
    4. There also floats that are given to the model count, and constants are exact. What is looked up in a vector
       counts everywhere: of what is left of a picture by then, steps of diffusion make differences that nearly cancel.
    5. A convolution or product with a constant kernel makes activations, which count no more, and is good enough for
       pixels in few digits; not if the kernel is of whole numbers, as ones add up and move, or turns coordinates.
    6. All this holds in subgraphs and through them. What a loop begins with a constant counts if each turn adds no
       activation to it.

    Args:
        types: of the model's values.
        digits: of the shorter floats, in bits.
    """
    uses = uses_in([node for node in graph.nodes(model) if node.domain == "" and node.outputs], types)
    activations: set[ir.Value] = set()
    while True:
        finder = _Finder(types, uses, digits, activations, set(model.graph.inputs))
        finder.walk(model.graph)
        if finder.refuted <= activations:
            return finder.found
        activations |= finder.refuted


class _Finder:
    """One walk through a model.

    Attributes:
        given: what the model is given, and its subgraphs of that.
        mixed: numbers that are made of activations too.
        refuted: what loops carry on that begins with a constant, and turned out to be activations.
    """

    def __init__(self, types: Types, uses: Uses, digits: int, activations: set[ir.Value], given: set[ir.Value]) -> None:
        self.types, self.uses, self.digits, self.found = types, uses, digits, Counts()
        self.spans: dict[ir.Value, Span] = {}
        self.mixed: set[ir.Value] = set()
        self.activations, self.given, self.refuted = activations, given, set[ir.Value]()

    def walk(self, body: ir.Graph) -> None:
        for node in body:
            inner = list(graph.bodies(node))
            if inner:
                self._enter(node)
                for each in inner:
                    self.walk(each)
                self._leave(node)
            elif node.domain == "" and node.outputs:
                self.visit(node)

    def _enter(self, node: ir.Node) -> None:
        """What counts in a subgraph; of what a loop begins with only numbers, as it changes."""
        for link in bodies.into(node):
            outer, inner = link.before, link.after
            if outer in self.given:
                self.given.add(inner)
            may_count = outer in self.spans or graph.constant(outer) is not None
            if link.is_carried and self._is_float(inner) and may_count and inner not in self.activations:
                self.spans[inner] = ANY
            elif not link.is_carried and outer in self.spans:
                self.spans[inner] = self.spans[outer]
            if outer in self.mixed:
                self.mixed.add(inner)

    def _leave(self, node: ir.Node) -> None:
        """What comes out of subgraphs counts if it does in each, and what loops carry on if it still does after a turn;
        else it is made of activations too."""
        for link in bodies.around(node):
            is_count = link.before in self.spans and link.before not in self.mixed
            if link.after in self.spans and not is_count:
                self.refuted.add(link.after)
        made: dict[ir.Value, list[ir.Value]] = {}
        for link in bodies.out_of(node):
            made.setdefault(link.after, []).append(link.before)
        for output, inner in made.items():
            known = [self.spans[value] for value in inner if value in self.spans]
            coarse = any(self._is_coarse(value, self.spans.get(value)) for value in inner)
            if len(known) < len(inner) or not self.mixed.isdisjoint(inner):
                self.mixed.add(output)
                known = [ANY] if coarse else []
            if known:
                self.spans[output] = functools.reduce(Span.joined, known)

    def visit(self, node: ir.Node) -> None:
        numbers = numbers_of(node)
        if self._is_float(node.outputs[0]) and node.op_type not in _MAKE_FLOATS:
            numbers = [value for value in numbers if self._is_float(value)]
        read = self._read(numbers, node)
        makes_activations = self._is_layer(node, numbers, read) or node.op_type in _NORMS
        is_bounded = makes_activations or node.op_type in BOUNDED
        made = None if is_bounded else self._made(node, numbers, read)
        if node.op_type in PLACES_BESIDE:
            self.spans.update(dict.fromkeys(node.outputs[1:], COUNT))
        if made is not None:
            is_float = self._is_float(node.outputs[0])
            self.spans.update(dict.fromkeys((v for v in node.outputs if self._is_float(v) is is_float), made))
            if (None in read and is_float) or not self.mixed.isdisjoint(numbers):
                self.mixed.update(node.outputs)
        coarse = {value: span for value, span in zip(numbers, read, strict=True) if self._is_coarse(value, span)}
        if makes_activations:
            coarse = {v: span for v, span in coarse.items() if v not in self.mixed and span and not span.is_wide}
        coarse_made = [output for output in node.outputs if self._is_coarse(output, self.spans.get(output))]
        if coarse or coarse_made:
            self.found.nodes[node] = None
        if not self.uses.turned.isdisjoint(coarse_made):
            self.found.exact.add(node)

    def _dtype(self, value: ir.Value) -> ir.DataType | None:
        tensor = graph.constant(value)
        return tensor.dtype if tensor is not None else value.dtype or self.types.of(value).dtype

    def _is_float(self, value: ir.Value) -> bool:
        return self._dtype(value) in graph.FLOATS

    def _is_coarse(self, value: ir.Value, span: Span | None) -> bool:
        if span is None or not self._is_float(value) or graph.constant(value) is not None:
            return False
        return not span.fits(self.digits) or (value in self.uses.stepped and not span.whole)

    def _read(self, numbers: list[ir.Value], reader: ir.Node) -> list[Span | None]:
        """The bounds of numbers as `reader` reads them; None for floats that come of no integers."""
        found = [self._of(value, reader) for value in numbers if graph.constant(value) is None]
        if found and not any(found):
            return [None] * len(numbers)  # an activation, whatever constants are beside it: those are not looked into
        return [self._of(value, reader) for value in numbers]

    def _of(self, value: ir.Value, reader: ir.Node) -> Span | None:
        if value in self.spans:
            return self.spans[value]
        tensor, is_turned = graph.constant(value), not self.uses.turned.isdisjoint(reader.outputs)
        if tensor is not None:
            is_table = reader.op_type in MOVES and self._is_float(value) and (is_turned or _looks_steps_up(reader))
            return ANY if is_table else spans.of_tensor(tensor)
        dtype = self._dtype(value)
        if dtype not in graph.FLOATS:
            return SWITCH if value in self.uses.switches else spans.OF_TYPE.get(dtype or ir.DataType.INT64, ANY_WHOLE)
        is_used = is_turned or not self.uses.stepped.isdisjoint(reader.outputs)
        counts = reader.op_type in STEPS or (is_used and reader.op_type in CARRIES and not is_layer(reader))
        return ANY if counts and value in self.given else None

    def _is_layer(self, node: ir.Node, numbers: list[ir.Value], read: list[Span | None]) -> bool:
        """Whether it makes activations by a constant kernel of whatever it reads: one of learned numbers, not of whole
        ones, which move and count, nor one that turns coordinates."""
        kernels = kernels_of(node)
        constant = {weight.value for weight in kernels}
        known = [span for value, span in zip(numbers, read, strict=True) if value in constant]
        if not kernels or all(span is not None and span.whole for span in known):
            return False
        is_used = not self.uses.stepped.isdisjoint(node.outputs)
        return is_layer(node) or not (is_used or all(max(w.shape) <= MOST_COORDINATES for w in kernels))

    def _made(self, node: ir.Node, numbers: list[ir.Value], read: list[Span | None]) -> Span | None:
        """The bounds of what a node makes; None for activations, and what is made of constants alone."""
        output = node.outputs[0]
        dtype, is_float = self._dtype(output), self._is_float(output)
        if not is_float and (dtype in spans.OF_TYPE or output in self.uses.switches):
            return spans.OF_TYPE.get(dtype or ir.DataType.BOOL, SWITCH)
        if node.op_type in _COUNT:
            return COUNT
        if node.op_type in WHOLE and read == [None]:
            return ANY_WHOLE
        known = [span for span in read if span is not None]
        if len(known) < len(read):
            coarse = any(map(self._is_coarse, numbers, read))
            is_sum = node.op_type in CARRIES - PRODUCTS
            is_used = is_sum or (node.op_type in CARRIES and not self.uses.stepped.isdisjoint(node.outputs))
            return ANY if coarse and is_float and is_used else None
        counts = [s for v, s in zip(numbers, known, strict=True) if graph.constant(v) is None]
        if is_float and not counts and node.op_type not in _MAKE_NUMBERS:
            is_table = node.op_type in MOVES and (output in self.uses.turned or _looks_steps_up(node))
            return ANY if is_table else None
        made, adds = computed(node, known, is_float=is_float), node.op_type in SUMS or bool(kernels_of(node))
        if is_float and not made.fits(self.digits) and not adds and all(map(is_switch, counts)):
            return None  # of two numbers only, which may be any
        return None if is_float and is_small(node, known, counts) and output not in self.uses.stepped else made


def _looks_steps_up(node: ir.Node) -> bool:
    """Whether it reads one number each out of a constant, as what is left of a picture after so many steps."""
    tensor = graph.constant(node.inputs[0]) if node.op_type in LOOKUPS else None
    return tensor is not None and len(tensor.shape) == 1
