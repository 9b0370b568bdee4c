"""How tensors of three and four dimensions lie in a region: as images, channels last, or as stacks of matrices, whose
last dimension lies together. Products read and make stacks, convolutions and pools images, what changes shape or order
either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.passes.regions.group import Group, Tensor

#: Steps whose tensors all lie in one way, whichever that is.
_ALIKE = ("table", "add", "sub", "mul", "concat", "slice", "pad")
_PRODUCTS = ("gemm", "product")
#: What reads or makes rows, as stacks of matrices; what is float32 is always rows.
_OF_ROWS = ("encode", "plus", "layer_norm", "softmax", "rotary", "attention", "matmul")
#: What leaves one way for another, or begins with it; of both products are matrices of two dimensions.
_FREE = ("arrange", "flatten", "quantize", "constant")


@dataclass(frozen=True)
class Forms:
    """By QuantizeLinear, how its codes lie.

    Attributes:
        stacks: those that are stacks of matrices; the others of three or four dimensions are images.
        images: those that products would read or make as stacks, and others need as images.
    """

    stacks: frozenset[ir.Node] = frozenset()
    images: frozenset[ir.Node] = frozenset()

    def may_be_stack(self, quantize: ir.Node) -> bool:
        return quantize not in self.images

    def is_stack(self, quantize: ir.Node) -> bool:
        return quantize in self.stacks


def forms_of(groups: Mapping[Tensor, Group], ranks: Mapping[ir.Node, int | None], images: frozenset[ir.Node]) -> Forms:
    """What the steps of these groups ask of their tensors. Where one is asked to be both it is an image.

    Args:
        ranks: of the tensors.
        images: what was found to be such before.
    """
    sets = _Sets()
    as_stack: set[ir.Node] = set()
    as_image: set[ir.Node] = set()
    for group in groups.values():
        made = [group.made] if group.makes_tensor else []
        tensors = [each for each in (*group.sources, *made) if isinstance(each, ir.Node)]
        if group.does in _ALIKE:
            sets.join(tensors)
        elif group.does in (*_PRODUCTS, *_OF_ROWS):
            as_stack |= set(tensors)
        elif group.does not in _FREE:
            as_image |= set(tensors)
    as_stack = {each for each in as_stack if (ranks.get(each) or 0) > 2}
    stacks, others = sets.all_of(as_stack), sets.all_of(as_image | images)
    return Forms(frozenset(stacks - others), images | (stacks & others))


@dataclass
class _Sets:
    """Disjoint sets of tensors."""

    members: dict[ir.Node, list[ir.Node]] = field(default_factory=dict)

    def of(self, tensor: ir.Node) -> list[ir.Node]:
        return self.members.setdefault(tensor, [tensor])

    def join(self, tensors: list[ir.Node]) -> None:
        for other in tensors[1:]:
            some, more = self.of(tensors[0]), self.of(other)
            if some is not more:
                some += more
                self.members |= dict.fromkeys(more, some)

    def all_of(self, tensors: Iterable[ir.Node]) -> set[ir.Node]:
        return {member for tensor in tensors for member in self.of(tensor)}
