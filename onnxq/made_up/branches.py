"""Which branches of a model's Ifs a sample takes, as onnxruntime's profile of the run tells."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.errors import BadModel, listed
from onnxq.model import graph
from onnxq.runtime.session import Feed, Session

#: A branch: the name of its If, and 'then_branch' or 'else_branch'.
Branch = tuple[str, str]

#: Branches that a sentence names, at most.
NAMED = 3


class Branches:
    """The branches of every If, nested ones too, that compute anything; of Ifs whose condition is not a constant.

    Attributes:
        all: every branch.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._nodes: dict[Branch, set[str]] = {}
        for node in graph.nodes(model):
            if graph.is_op(node, "If") and graph.constant(node.inputs[0]) is None:
                for name, attribute in node.attributes.items():
                    inside = (inner for inner in attribute.as_graph() if not graph.is_op(inner, "Constant"))
                    own = {inner.name or "" for inner in inside} - {""}
                    if own:
                        self._nodes[node.name or "", name] = own
        self.all = frozenset(self._nodes)

    def taken(self, feeds: Sequence[Feed]) -> frozenset[Branch]:
        """The branches that any of `feeds` takes."""
        if not self._nodes:
            return frozenset()
        session = Session(self._model, optimize=False, threads=0, profile=True)
        for feed in feeds:
            try:
                session.run(feed)
            except BadModel:
                continue
        ran = {kernel.name for kernel in session.kernels()}
        return frozenset(branch for branch, own in self._nodes.items() if own & ran)


def in_words(branches: frozenset[Branch]) -> str:
    return listed([f"the {kind.replace('_', '-')} of If '{name}'" for name, kind in sorted(branches)], NAMED)
