"""What torch's newer exporter computed its constants from, as it says: parameters of modules, which checkpoints hold,
by operators of torch, whose results are called by these (`mul_1`), and numbers that stand in the program (`val_3`).

Constants that the metadata say nothing of are told by what a call was passed: `%p_fc_weight` is a parameter, `%mul`
was computed. What is called by a number itself was made by the call that reads it, as `linear` turns a weight and
`add` multiplies by its alpha.

Of operators that turn a tensor no axes are said: its order is known where sizes tell it, and of a matrix that is
turned last.

Source: onnxscript's optimizer (_constant_folding.py, FOLDED_FROM_KEY), torch.export's names of what it traces.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded import told
from onnxq.checkpoints.matching.folded.views import turned
from onnxq.checkpoints.matching.names import Renaming
from onnxq.model import graph
from onnxq.model.origin import ORIGIN, call_of
from onnxq.model.weights import Weight, weights_of

#: Key of a constant's metadata in which the names of all that it was folded from are listed, in Python's words.
FOLDED = "pkg.onnxscript.optimizer.folded_from"
#: In the graph's metadata: parameters and buffers by their names in the model.
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_NAME, _SIGNED = re.compile(r"'([^']*)'"), re.compile(r"\b(PARAMETER|BUFFER) target='([^']*)'")
#: What is no operator on parameters: numbers, and inputs of operators that are made of them.
_PLAIN = {"val", "scalar_tensor_default", "lifted_tensor", "lift_fresh_copy", "arange", "zeros", "ones", "full"}
#: Operators that keep all numbers of a parameter in their order: in another shape, in one with other axes of 1, and as
#: they are.
_SHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten"}
_IN_ORDER = _SHAPES | {"unsqueeze", "squeeze", "contiguous", "clone", "detach", "alias", "to", "_to_copy"}
#: And in another one, as their arguments say, which nothing tells.
_TURNS = {"permute", "transpose", "t", "numpy_t", "mt", "adjoint"}
WHOLE = _IN_ORDER | _TURNS
#: And those that keep some, or repeat them.
PARTS = {"slice", "select", "narrow", "index", "index_select", "gather", "embedding", "expand", "repeat", "tile"}
PARTS |= {"split", "split_with_sizes", "chunk", "unbind", "getitem", "expand_as", "broadcast_in_dim"}

#: Calls that compute nothing of a parameter before they do what they are for, but for turning it; without a number
#: that they multiply by.
_PLAIN_CALL = re.compile(
    r"target=torch\.ops\.aten\.(linear|matmul|mm|bmm|baddbmm|addmm|addbmm|conv\w*|\w*_norm\w*|_?prelu\w*|embedding\w*"
    r"|add|sub|mul|div|index\w*|gather|select|slice|expand|where|cat|stack|einsum)\."
    r"(?!.*\b(alpha|beta|value): )"
)
_CALLED = re.compile(r"target=torch\.ops\.\w+\.(\w+)")
#: Input of recurrent operators that is their first state; then come a cell and weights of peepholes, which torch lacks.
_FIRST_STATE = 5
_AS_IT_IS = Renaming()


@dataclass(frozen=True)
class Made:
    """What a constant was folded from.

    Attributes:
        parameters: what these are called in the checkpoint, parameters and buffers.
        operators: of torch, each call of them, the last one first if the constant is called by it.
        is_last: whether it is called by it.
        is_turned: whether the call that reads it, as its weight, has turned it.
        is_right: whether products that read it have turned it as they do the weight of a Linear, as far as that is
            known.
    """

    parameters: tuple[str, ...]
    operators: tuple[str, ...]
    is_last: bool = True
    is_turned: bool = False
    is_right: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether it has all numbers of its parameters, in any order."""
        return WHOLE.issuperset(self.operators)

    @property
    def is_in_order(self) -> bool:
        return _IN_ORDER.issuperset(self.operators) and not self.is_turned

    @property
    def is_reshaped(self) -> bool:
        return not _SHAPES.isdisjoint(self.operators)

    @property
    def turns(self) -> int:
        return sum(each in _TURNS for each in self.operators) + self.is_turned

    def laid(self, p: NDArray, shape: tuple[int, ...]) -> NDArray | None:
        """What has all numbers of a parameter, as they lie in a constant of that shape; None if nothing tells it."""
        if p.size != math.prod(shape):
            return None
        return p.reshape(shape) if not self.turns else None if self.is_reshaped else turned(p, shape)

    @property
    def told(self) -> str:
        """The operators, for a sentence: those that move numbers if there are no others."""
        others = [each for each in self.operators if each not in WHOLE]
        turns = [each for each in self.operators if each in _TURNS]
        return ", ".join(dict.fromkeys(others or turns or self.operators))

    @property
    def is_moved(self) -> bool:
        return (WHOLE | PARTS).issuperset(self.operators)


class Sources:
    """What is said of the constants of a model, before anything is done to it.

    Attributes:
        parameters, buffers: of the model, by their names in the checkpoint.
        renamed: what a name of the model is in the checkpoint.

    Args:
        tensors: of the checkpoint.
    """

    def __init__(self, model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming = _AS_IT_IS) -> None:
        self.renamed = renamed
        values = {name: value for owner in graph.graphs(model) for name, value in owner.initializers.items()}
        listed = {name: said for name, value in values.items() if (said := value.metadata_props.get(FOLDED))}
        signature = "".join(owner.metadata_props.get(SIGNATURE, "") for owner in graph.graphs(model))
        signed = _SIGNED.findall(signature)
        self.parameters, self.buffers = (
            {renamed(name) for kind, name in signed if kind == word} for word in ("PARAMETER", "BUFFER")
        )
        self._tensors = tensors
        self._made = {name: self._read(values[name], said) for name, said in listed.items()}
        self._live = {value.name for node in graph.nodes(model) for value in node.outputs}
        self._live |= {value.name for value in model.graph.inputs}

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self._made)

    def _read(self, value: ir.Value, said: str) -> Made:
        name, renamed = value.name or "", self.renamed
        parameters = tuple(renamed(x) for x in _NAME.findall(said) if "." in x or renamed(x) in self._tensors)
        operators = list(_operators([name, *(x for x in _NAME.findall(said) if renamed(x) not in self._tensors)]))
        is_last = bool([*_operators([name])])
        readers = [use.node for use in value.uses()]
        others = [] if is_last else [use.node for use in value.uses() if not _is_state(use.node, use.idx)]
        calls = [call for node in others if (call := call_of(node)) and not _PLAIN_CALL.search(call)]
        operators += [found[1] for call in calls[:1] if (found := _CALLED.search(call))]
        weights = [w for node in readers for w in weights_of(node, least=1) if w.value is value and _is_product(w)]
        made = Made(parameters, tuple(operators), is_last, is_turned=bool(weights) and not is_last)
        tensor = graph.constant(value)
        if not weights or tensor is None or not made.is_whole or len(parameters) != 1:
            return made
        shape, is_odd = tuple(tensor.shape.numpy()), bool(made.turns % 2)
        before = [size for size in (shape[::-1] if is_odd else shape) if size != 1]
        given = [size for size in getattr(self._tensors.get(parameters[0]), "shape", before) if size != 1]
        is_last = made.turns == 0 or (made.turns == 1 and (made.is_turned or operators[0] in _TURNS))
        is_known = not made.is_reshaped or (is_last and (len(given) != 2 or given == before))
        is_square = len(shape) == 2 and shape[0] == shape[1]
        is_right = not is_square or all((w.role.contraction == 0) == is_odd for w in weights)
        return dataclasses.replace(made, is_right=is_known and is_right)

    def of(self, value: ir.Value | None) -> Made | None:
        names = () if value is None else (value.name, value.meta.get(ORIGIN))
        return next((self._made[name] for name in names if name in self._made), None)

    def names(self, value: ir.Value | None) -> list[str]:
        """The module whose weight a constant is."""
        made = self.of(value)
        found = made.parameters if made is not None and made.is_whole and len(made.parameters) == 1 else ()
        return [name.removesuffix(".weight") for name in found]

    def computed(self, node: ir.Node, index: int, parameter: str) -> str:
        """How a constant that a node reads was computed from a parameter; "" if nothing tells that it was."""
        value = node.inputs[index]
        made = self.of(value)
        if made is not None:
            is_product = graph.is_op(node, "MatMul", "Gemm") and index == 1
            is_it = made.is_whole and (made.is_right if is_product else made.is_in_order)
            return "" if is_it or parameter not in made.parameters else made.told
        passed = told.operand(node, index) or (value.name if value is not None else "") or ""
        if passed in self._live or not told.is_passed(node, passed):
            return ""
        return next((each for each in _operators([passed]) if each not in WHOLE), "")


def _is_product(weight: Weight) -> bool:
    return graph.is_op(weight.node, "MatMul", "Gemm") and weight.role.index == 1


def _is_state(node: ir.Node, index: int) -> bool:
    """What a recurrent module begins with, and no weight, whose gates exporters put in another order."""
    return graph.is_op(node, "LSTM", "GRU", "RNN") and index >= _FIRST_STATE


def _operators(names: Collection[str]) -> Iterator[str]:
    """Those that results are called by, each of several calls."""
    words = [told.operator(name) for name in dict.fromkeys(names) if "." not in name]
    return (word for word in words if word not in _PLAIN)
