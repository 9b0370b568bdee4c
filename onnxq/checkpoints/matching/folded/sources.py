"""What torch's newer exporter computed its constants from, as it says: parameters of modules, which checkpoints hold,
by operators of torch, whose results are called by these (`mul_1`), and numbers that stand in the program (`val_3`).

Constants that the metadata say nothing of are told by what a call was passed: `%p_fc_weight` is a parameter, `%mul`
was computed.

Source: onnxscript's optimizer (_constant_folding.py, FOLDED_FROM_KEY), torch.export's names of what it traces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.checkpoints.matching.folded import told
from onnxq.checkpoints.matching.names import Renaming
from onnxq.model import graph
from onnxq.model.origin import ORIGIN

#: Key of a constant's metadata in which the names of all that it was folded from are listed, in Python's words.
FOLDED = "pkg.onnxscript.optimizer.folded_from"
#: In the graph's metadata: parameters and buffers by their names in the model.
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_NAME, _SIGNED = re.compile(r"'([^']*)'"), re.compile(r"\b(PARAMETER|BUFFER) target='([^']*)'")
#: Of results of torch's operators: the operator.
_NUMBER = re.compile(r"(_\d+)+$")
#: What is no operator on parameters: numbers, and inputs of operators that are made of them.
_PLAIN = {"val", "scalar_tensor_default", "lifted_tensor", "lift_fresh_copy", "arange", "zeros", "ones", "full"}
#: Operators that keep all numbers of a parameter, in their order or turned.
WHOLE = {"permute", "transpose", "t", "numpy_t", "mt", "adjoint", "view", "reshape", "_unsafe_view", "unsqueeze"}
WHOLE |= {"squeeze", "flatten", "unflatten", "contiguous", "clone", "detach", "alias", "to", "_to_copy"}
#: And those that keep some, or repeat them.
PARTS = {"slice", "select", "narrow", "index", "index_select", "gather", "embedding", "expand", "repeat", "tile"}
PARTS |= {"split", "split_with_sizes", "chunk", "unbind", "getitem", "expand_as", "broadcast_in_dim"}

_AS_IT_IS = Renaming()


@dataclass(frozen=True)
class Made:
    """What a constant was folded from.

    Attributes:
        parameters: what these are called in the checkpoint, parameters and buffers.
        operators: of torch, the last one first if the constant is called by it.
    """

    parameters: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return WHOLE.issuperset(self.operators)

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

    def __init__(self, model: ir.Model, tensors: Collection[str], renamed: Renaming = _AS_IT_IS) -> None:
        self.renamed = renamed
        values = {name: value for owner in graph.graphs(model) for name, value in owner.initializers.items()}
        listed = {name: said for name, value in values.items() if (said := value.metadata_props.get(FOLDED))}
        signature = "".join(owner.metadata_props.get(SIGNATURE, "") for owner in graph.graphs(model))
        signed = _SIGNED.findall(signature)
        self.parameters, self.buffers = (
            {renamed(name) for kind, name in signed if kind == word} for word in ("PARAMETER", "BUFFER")
        )
        self._made = {
            name: Made(
                tuple(renamed(each) for each in _NAME.findall(said) if "." in each or renamed(each) in tensors),
                tuple(_operators([name, *(x for x in _NAME.findall(said) if renamed(x) not in tensors)])),
            )
            for name, said in listed.items()
        }
        self._live = {value.name for node in graph.nodes(model) for value in node.outputs}
        self._live |= {value.name for value in model.graph.inputs}

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self._made)

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
            is_other = made.is_whole or parameter not in made.parameters
            return "" if is_other else ", ".join(each for each in made.operators if each not in WHOLE)
        passed = told.operand(node, index) or (value.name if value is not None else "") or ""
        if passed in self._live or not told.is_passed(node, passed):
            return ""
        return next((each for each in _operators([passed]) if each not in WHOLE), "")


def _operators(names: Collection[str]) -> Iterator[str]:
    """Those that results are called by."""
    words = dict.fromkeys(_NUMBER.sub("", name) for name in names if "." not in name)
    return (word for word in words if word not in _PLAIN)
