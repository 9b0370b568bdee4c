"""Elements of tensors of integers that are computed of shapes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.known import INTEGERS, MOST, Dim, Dims, Elements, Sizes


def elements_of(node: ir.Node, sizes: Sizes) -> Elements | None:
    """Of what a node computes of shapes."""
    make = _ELEMENT_MAKERS.get(node.op_type) if node.domain == "" else None
    found = None if make is None else make(node, sizes)
    return None if found is None or len(found.sizes) > MOST else found


def axes_of(node: ir.Node, sizes: Sizes) -> list[int] | None:
    """Of a Squeeze, an Unsqueeze or a sum, given as an input or, in older files, as an attribute; None where they are
    computed."""
    return sizes.numbers(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("axes", []))


def _shape(node: ir.Node, sizes: Sizes) -> Elements | None:
    dims = sizes.of(node.inputs[0])
    if dims is None:
        return None
    start, end = graph.attribute_int(node, "start", 0), graph.attribute_int(node, "end", len(dims))
    return Elements(dims[start:end], False, ir.DataType.INT64)


def _gathered(node: ir.Node, sizes: Sizes) -> Elements | None:
    of, index = sizes.elements_of(node.inputs[0]), sizes.elements_of(node.inputs[1])
    numbers = None if index is None else index.numbers
    if of is None or index is None or numbers is None or of.is_scalar or graph.attribute_int(node, "axis", 0):
        return None
    if any(not -len(of.sizes) <= number < len(of.sizes) for number in numbers):
        return None
    return Elements(tuple(of.sizes[number] for number in numbers), index.is_scalar, of.dtype)


def _sliced_elements(node: ir.Node, sizes: Sizes) -> Elements | None:
    of, bounds = sizes.elements_of(node.inputs[0]), [sizes.numbers(value) for value in node.inputs[1:]]
    known = [bound[0] for bound in bounds if bound is not None and len(bound) == 1]
    if of is None or of.is_scalar or len(known) != len(bounds) or len(known) not in (2, 3, 4):
        return None
    start, stop, axis, step = (*known, 0, 1)[:4] if len(known) != 3 else (*known, 1)
    return Elements(of.sizes[start:stop:step], False, of.dtype) if step > 0 and axis in (0, -1) else None


def _joined(node: ir.Node, sizes: Sizes) -> Elements | None:
    parts = [sizes.elements_of(value) for value in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or not known or any(part.is_scalar for part in known):
        return None
    return Elements(tuple(size for part in known for size in part.sizes), False, known[0].dtype)


def _as_they_are(node: ir.Node, sizes: Sizes) -> Elements | None:
    """The same ones, with one dimension or none; Cast and Identity leave those too."""
    of = sizes.elements_of(node.inputs[0])
    if of is None:
        return None
    if node.op_type in ("Identity", "Cast"):
        to = ir.DataType(graph.attribute_int(node, "to", int(of.dtype)))
        fits = to in INTEGERS and all(abs(number) < 1 << 31 for number in of.sizes if isinstance(number, int))
        return Elements(of.sizes, of.is_scalar, to) if fits or to is of.dtype else None
    if node.op_type == "Squeeze":
        return Elements(of.sizes, True, of.dtype) if len(of.sizes) == 1 else None
    if node.op_type == "Unsqueeze":
        return Elements(of.sizes, False, of.dtype) if of.is_scalar and len(axes_of(node, sizes) or ()) == 1 else None
    shape = sizes.numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape == [-1] and not of.is_scalar:
        return of
    return Elements(of.sizes, shape == [], of.dtype) if shape in ([], [1], [-1]) and len(of.sizes) == 1 else None


def _computed(node: ir.Node, sizes: Sizes) -> Elements | None:
    one, other = (sizes.elements_of(value) for value in node.inputs[:2])
    if one is None or other is None:
        return None
    pairs = _side_by_side(one.sizes, other.sizes)
    if one.numbers is None or other.numbers is None or pairs is None:
        return None
    made = [_ARITHMETIC[node.op_type](x, y) for x, y in pairs if isinstance(x, int) and isinstance(y, int)]
    numbers = tuple(number for number in made if number is not None)
    fits = len(numbers) == len(made) and all(abs(number) < 1 << 31 for number in numbers)
    return Elements(numbers, one.is_scalar and other.is_scalar, one.dtype) if fits else None


def _filled(node: ir.Node, sizes: Sizes) -> Elements | None:
    """Of ConstantOfShape, a vector of one number."""
    length, value = sizes.numbers(node.inputs[0]), node.attributes.get("value")
    tensor = None if value is None else value.as_tensor()
    if (
        length is None
        or len(length) != 1
        or not 0 <= length[0] <= MOST
        or tensor is None
        or tensor.dtype not in INTEGERS
    ):
        return None
    return Elements((int(tensor.numpy().reshape(())),) * length[0], False, tensor.dtype)


def _equal(node: ir.Node, sizes: Sizes) -> Elements | None:
    """Whether sizes are alike: none is negative."""
    one, other = (sizes.elements_of(value) for value in node.inputs[:2])
    pairs = None if one is None or other is None else _side_by_side(one.sizes, other.sizes)
    if one is None or other is None or pairs is None:
        return None
    made = [_is_same(a, b) for a, b in pairs]
    known = tuple(int(each) for each in made if each is not None)
    scalar = one.is_scalar and other.is_scalar
    return Elements(known, scalar, ir.DataType.BOOL) if len(known) == len(made) else None


def _is_same(a: Dim, b: Dim) -> bool | None:
    if a == b:
        return True
    numbers = [each for each in (a, b) if isinstance(each, int)]
    return False if len(numbers) == 2 or any(number < 0 for number in numbers) else None


def _chosen(node: ir.Node, sizes: Sizes) -> Elements | None:
    """Of Where: sizes in the place of −1, as torch's `expand` has it."""
    which, one, other = (sizes.elements_of(value) for value in node.inputs)
    if which is None or which.numbers is None or one is None or other is None:
        return None
    pairs = _side_by_side(one.sizes, other.sizes)
    places = None if pairs is None else _side_by_side(which.sizes, tuple(range(len(pairs))))
    if pairs is None or places is None or len(places) != len(pairs):
        return None
    made = tuple(pair[0] if yes else pair[1] for (yes, _), pair in zip(places, pairs, strict=True))
    return Elements(made, which.is_scalar and one.is_scalar and other.is_scalar, one.dtype)


def _side_by_side(one: Dims, other: Dims) -> list[tuple[Dim, Dim]] | None:
    """Elements of two vectors, of which one may have a single one for all of the other."""
    if len(one) != len(other) and 1 not in (len(one), len(other)):
        return None
    length = max(len(one), len(other))
    return list(zip(one * length if len(one) == 1 else one, other * length if len(other) == 1 else other, strict=False))


_ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a // b if a >= 0 and b > 0 else None,
}
_ELEMENT_MAKERS: dict[str, Callable[[ir.Node, Sizes], Elements | None]] = {
    "Shape": _shape,
    "Gather": _gathered,
    "Slice": _sliced_elements,
    "Concat": _joined,
    "ConstantOfShape": _filled,
    "Equal": _equal,
    "Where": _chosen,
    **dict.fromkeys(("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"), _as_they_are),
    **dict.fromkeys(_ARITHMETIC, _computed),
}
