"""What ONNX's converter does not keep of old versions of operators: it is written so that the numbers stay the same.

What an old version computes where its definition leaves it open is what onnxruntime computes for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import infer_types
from onnxq.runtime import known

#: First opsets with: places of pixels that a Resize names; one axis of a Hardmax and of Softmax; a scale for each
#: channel; a mask of Dropout that says what is kept.
_RESIZE, _ONE_AXIS, _GROUP_NORMALIZATION, _DROPOUT = 11, 13, 21, 12
#: The opsets in which a mask of Dropout is of numbers, of those that onnxruntime runs.
_MASK_OF_NUMBERS = (7, 9)
_PLACES = "coordinate_transformation_mode"
#: Until here Clip and Pad had their numbers as attributes; the converter makes float32 of them whatever they are for.
_NUMBERS = {"Clip": 11, "Pad": 11}


def require_known(model: ir.Model, version: int) -> None:
    """Look for nodes of which no node of `version` computes the same.

    Raises:
        BadModel: there is one.
    """
    opset = graph.opset(model)
    groups = [node for node in graph.nodes(model) if graph.is_op(node, "GroupNormalization")]
    for node in graph.nodes(model):
        if graph.is_op(node, "Scan") and opset == 8 < version:
            raise BadModel(f"node '{node.name}' (Scan) runs over batches, which no later version does")
    if not groups or not opset < _GROUP_NORMALIZATION <= version:
        return
    types = infer_types(model)
    for node in groups:
        if types.of(_data(node)).dtype is ir.DataType.DOUBLE:
            raise BadModel(f"node '{node.name}' (GroupNormalization) has a scale for each group, of doubles")


def before(nodes: Iterable[ir.Node], names: Names, opset: int, version: int, *, has_shapes: bool = True) -> None:
    """Rewrite nodes of `opset` that the converter would turn into others on the way to `version`.

    Args:
        has_shapes: whether the converter knows them; in functions it does not.
    """
    of_rows = ("Hardmax",) if has_shapes else ("Hardmax", "Softmax", "LogSoftmax")
    for node in list(nodes):
        if graph.is_op(node, *of_rows) and opset < _ONE_AXIS <= version:
            _flatten(node, names)
        elif graph.is_op(node, "Dropout") and _MASK_OF_NUMBERS[0] <= opset < _DROPOUT <= version:
            _empty_mask(node, names, of_numbers=opset <= _MASK_OF_NUMBERS[1])
        elif graph.is_op(node, "Pad") and graph.attribute_string(node, "mode", "constant") != "constant":
            node.attributes.pop("value", None)  # it is not read, and later versions do not know it


def name_defaults(nodes: Iterable[ir.Node], opset: int) -> None:
    """Give nodes of `opset` the attributes by which `after` tells them from older ones that lie beside them."""
    for node in nodes:
        if graph.is_op(node, "Resize") and opset >= _RESIZE:
            node.attributes.setdefault(_PLACES, ir.AttrString(_PLACES, "half_pixel"))
        elif graph.is_op(node, "GroupNormalization") and opset >= _GROUP_NORMALIZATION:
            node.attributes.setdefault("stash_type", ir.AttrInt64("stash_type", ir.DataType.FLOAT))


def types_of_numbers(model: ir.Model, opset: int) -> Mapping[str, ir.DataType]:
    """By output, the types of Clip and Pad nodes of `opset` that compute in others than float32, for `after`."""
    found = [node for node in graph.nodes(model) if node.domain == "" and opset < _NUMBERS.get(node.op_type, 0)]
    if not found:
        return {}
    types = infer_types(model)
    known = {node.outputs[0].name or "": types.of(_data(node)).dtype for node in found}
    return {name: dtype for name, dtype in known.items() if dtype is not None and dtype is not ir.DataType.FLOAT}


def after(model: ir.Model, opset: int, numbers: Mapping[str, ir.DataType]) -> None:
    """Mend what the converter made of nodes of `opset` or above, which may lie beside ones that have named defaults."""
    names, version = Names(model), graph.opset(model)
    for node in list(graph.nodes(model)):
        if graph.is_op(node, "Resize") and opset < _RESIZE <= version and _PLACES not in node.attributes:
            _resize_as_before(node, names)
        elif graph.is_op(node, "GroupNormalization") and opset < _GROUP_NORMALIZATION <= version:
            if "stash_type" not in node.attributes:
                _normalize_instances(node, names)
        elif graph.is_op(node, *_NUMBERS) and (dtype := numbers.get(node.outputs[0].name or "")):
            for value in node.inputs[1:]:
                _change_type(value, dtype)


def _flatten(node: ir.Node, names: Names) -> None:
    """It looked for the largest number of a row of a matrix, which begins at its axis; now of that axis alone."""
    x, out = _data(node), node.outputs[0]
    axis = node.attributes.pop("axis", ir.AttrInt64("axis", 1))
    name = f"{out.name}_rows"
    flat = ir.node("Flatten", [x], name=names.fresh(name))
    flat.attributes["axis"] = axis
    flat.outputs[0].name = flat.name
    node.prepend(flat)
    size = graph.add_node(node, "Shape", [x], names.fresh(f"{out.name}_shape"), names.fresh(f"{out.name}_shape"))
    node.replace_input_with(0, flat.outputs[0])
    node.attributes["axis"] = ir.AttrInt64("axis", 1)
    _shape_behind(node, size, names)


def _empty_mask(node: ir.Node, names: Names, *, of_numbers: bool) -> None:
    """Where nothing is dropped the mask was zeros, and is ones now."""
    x, mask = _data(node), next((value for value in node.outputs[1:] if known.is_wanted(value)), None)
    if mask is None:
        return
    name = names.fresh(f"{mask.name}_none")
    made = graph.add_node(node, "Greater", [x, x], name, name)  # no number is greater than itself, nor is NaN
    if of_numbers:
        name = names.fresh(f"{mask.name}_zeros")
        made = graph.add_node(node, "Cast", [made], name, name, {"to": mask.dtype or x.dtype or ir.DataType.FLOAT})
    graph.replace_value(mask, made)


def _shape_behind(node: ir.Node, size: ir.Value, names: Names) -> None:
    """Everyone who read what `node` makes reads it in the shape `size`."""
    out = node.outputs[0]
    name = names.fresh(f"{out.name}_shaped")
    shaped = ir.node("Reshape", [out, size], name=name)
    shaped.outputs[0].name = name
    node.append(shaped)
    made = shaped.outputs[0]
    made.type, made.shape = out.type, out.shape
    out.replace_all_uses_with(made, replace_graph_outputs=True)
    shaped.replace_input_with(0, out)
    out.name, made.name, out.shape = name, out.name, None


def _resize_as_before(node: ir.Node, names: Names) -> None:
    """Pixel i lay at i / scale. The nearest one was below it, but above it along axes that became smaller."""
    node.attributes[_PLACES] = ir.AttrString(_PLACES, "asymmetric")
    if graph.attribute_string(node, "mode", "nearest") != "nearest":
        return
    scales = node.inputs[2]
    assert scales is not None
    known = ir.convenience.get_const_tensor(scales)
    shrinks = known is None or bool((known.numpy() < 1).any())
    grows = known is None or bool((known.numpy() > 1).any())
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")
    if not (shrinks and grows):
        return
    name = names.fresh(f"{node.outputs[0].name}_grown")
    one = graph.add_constant(_graph_of(node), names.fresh(f"{name}_by"), ir.tensor([1.0], ir.DataType.FLOAT))
    up, down = (
        graph.add_node(node, op, [scales, one], made, made)
        for op, made in (("Max", names.fresh(f"{name}_up")), ("Min", names.fresh(f"{name}_down")))
    )
    says = {"mode": "nearest", "nearest_mode": "floor", _PLACES: "asymmetric"}
    node.replace_input_with(0, graph.add_node(node, "Resize", [node.inputs[0], node.inputs[1], up], name, name, says))
    node.replace_input_with(2, down)


def _normalize_instances(node: ir.Node, names: Names) -> None:
    """It had a scale for each group: so has InstanceNormalization, of groups in the place of channels."""
    x, out = node.inputs[0], node.outputs[0]
    groups = graph.attribute_int(node, "num_groups", 1)
    shape = graph.add_constant(
        _graph_of(node), names.fresh(f"{out.name}_groups_shape"), ir.tensor([0, groups, -1], ir.DataType.INT64)
    )
    grouped, size = (
        graph.add_node(node, op, inputs, name, name)
        for op, inputs, name in (
            ("Reshape", [x, shape], names.fresh(f"{out.name}_groups")),
            ("Shape", [x], names.fresh(f"{out.name}_shape")),
        )
    )
    epsilon = {"epsilon": graph.attribute_float(node, "epsilon", 1e-5)}
    name = names.fresh(f"{out.name}_normalized")
    normalized = graph.add_node(node, "InstanceNormalization", [grouped, *node.inputs[1:]], name, name, epsilon)
    name = names.fresh(f"{node.name or out.name}_whole")
    graph.replace_value(out, graph.add_node(node, "Reshape", [normalized, size], name, name))
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _change_type(value: ir.Value | None, dtype: ir.DataType) -> None:
    constant = graph.producer(value)
    if constant is None or not graph.is_op(constant, "Constant") or "value" not in constant.attributes:
        return
    tensor = constant.attributes["value"].as_tensor()
    if tensor.dtype is ir.DataType.FLOAT:
        constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(tensor.numpy().astype(dtype.numpy())))


def _data(node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    return x


def _graph_of(node: ir.Node) -> ir.Graph:
    owner = node.graph
    assert isinstance(owner, ir.Graph)
    return owner
