"""Shared by the passes that replace MatMul and Gemm: one view of both as y = x · W + bias."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.planning.absorbed import behind_product
from onnxq.planning.rows.int8_attention import STEP, Int8Attention

#: From this version of the standard operators on ReduceMax reads its axes.
AXES_ARE_INPUTS = 18

#: The Add behind a MatMul, and the vector that it adds.
AddedBias = tuple[ir.Node, ir.Value] | None


@dataclass(frozen=True)
class Product:
    """x · W + bias, whatever the node is called.

    Attributes:
        x: [..., K], already transposed if Gemm asked for that.
        weight: [K, N] if `k_axis` is 0, [N, K] if it is 1; alpha is in it.
        bias: beta · C, or None.
    """

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    k_axis: int
    bias: ir.Value | None
    names: Names
    has_half_kernel: bool

    @property
    def model_dtype(self) -> ir.DataType:
        return tensor_of(self.weight).dtype

    @property
    def dtype(self) -> ir.DataType:
        """The type the kernel computes in: that of the model, or float32 where no kernel has that one."""
        half = self.model_dtype is ir.DataType.FLOAT16 and self.has_half_kernel
        return ir.DataType.FLOAT16 if half else ir.DataType.FLOAT

    @property
    def k(self) -> int:
        return self._size(self.k_axis)

    @property
    def n(self) -> int:
        return self._size(1 - self.k_axis)

    def _size(self, axis: int) -> int:
        return int(tensor_of(self.weight).shape.numpy()[axis])

    @property
    def bias_is_vector(self) -> bool:
        """Whether a kernel can add the bias: a constant of N numbers."""
        tensor = graph.constant(self.bias)
        return self.dtype is self.model_dtype and tensor is not None and tuple(tensor.shape.numpy()) == (self.n,)

    def without_bias(self) -> Product:
        return dataclasses.replace(self, bias=None)

    def new_names(self) -> tuple[str, str]:
        """The node's own name for the node that takes its place, and a fresh one for that node's output."""
        name = self.node.name or ""
        self.node.name = self.names.fresh(f"{name}_float")
        return name, self.names.fresh(f"{name}_out")

    def finish(self, y: ir.Value) -> None:
        """Add the bias that is left and let everyone who read the old node's output read the result."""
        y = self._cast(y, self.model_dtype)
        if self.bias is not None:
            name = self.names.fresh(f"{y.name}_bias")
            y = graph.add_node(self.node, "Add", [y, self.bias], name, name)
        graph.replace_value(self.node.outputs[0], y)
        assert self.node.graph is not None
        self.node.graph.remove(self.node, safe=True)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if self.dtype is self.model_dtype:
            return value
        name = self.names.fresh(f"{self.node.name}_cast")
        return graph.add_node(self.node, "Cast", [value], name, name, {"to": int(dtype)})

    def for_kernel(self) -> Product:
        """This product with x in the type the kernel takes."""
        return dataclasses.replace(self, x=self._cast(self.x, self.dtype))


def read_product(node: ir.Node, constants: WeightForms, *, has_half_kernel: bool) -> Product:
    """The product that a MatMul or Gemm with a constant right-hand matrix computes, x as its kernel takes it."""
    return _read_product(node, constants, has_half_kernel).for_kernel()


def _read_product(node: ir.Node, constants: WeightForms, has_half_kernel: bool) -> Product:
    x, weight = node.inputs[0], node.inputs[1]
    assert x is not None
    assert weight is not None
    if node.op_type == "MatMul":
        return Product(node, x, weight, 0, None, constants.names, has_half_kernel)
    if graph.attribute_int(node, "transA", 0):
        name = constants.names.fresh(f"{node.name}_transposed")
        x = graph.add_node(node, "Transpose", [x], name, name, {"perm": [1, 0]})
    alpha = graph.attribute_float(node, "alpha", 1.0)
    if alpha != 1.0:
        weight = constants.value(weight, "_alpha", alpha, graph.scaled(tensor_of(weight), alpha))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    beta = graph.attribute_float(node, "beta", 1.0)
    if bias is not None and beta != 1.0:
        tensor = graph.constant(bias)
        if tensor is not None:
            bias = constants.value(bias, "_beta", beta, graph.scaled(tensor, beta))
        else:
            assert isinstance(node.graph, ir.Graph)
            factor = constants.array(node.graph, "beta", np.array(beta, tensor_of(weight).dtype.numpy()))
            name = constants.names.fresh(f"{node.name}_beta")
            bias = graph.add_node(node, "Mul", [bias, factor], name, name)
    k_axis = 1 if graph.attribute_int(node, "transB", 0) else 0
    return Product(node, x, weight, k_axis, bias, constants.names, has_half_kernel)


def tensor_of(weight: ir.Value) -> ir.TensorProtocol:
    tensor = graph.constant(weight)
    assert tensor is not None
    return tensor


def added_bias(node: ir.Node) -> AddedBias:
    """The Add behind a MatMul of a number for each of its outputs, and these numbers."""
    add, vector = (graph.added_vector(node) if node.op_type == "MatMul" else None) or (node, None)
    behind = behind_product(node)
    tensor = graph.constant(vector)
    if vector is None or tensor is None or tensor.dtype is not ir.DataType.FLOAT:
        return None
    return (add, vector) if behind and behind[0] is add else None


def to_gemm(node: ir.Node, names: Names) -> ir.Node:
    """A Gemm in the place of a MatMul on matrices, with the vector that is added behind it as its bias."""
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    last, bias = graph.added_vector(node) or (node, None)
    tensor = graph.constant(bias)
    if tensor is not None and tuple(tensor.shape.numpy()) != (weight.shape[1],):
        last, bias = node, None
    name, node.name = node.name or "", names.fresh(f"{node.name}_float")
    inputs = [*node.inputs, *([] if bias is None else [bias])]
    y = graph.add_node(node, "Gemm", inputs, name, names.fresh(f"{name}_out"))
    graph.replace_value(last.outputs[0], y)
    assert node.graph is not None
    gemm = y.producer()
    assert gemm is not None
    node.graph.remove([node] if last is node else [last, node], safe=True)
    return gemm


def keep_bias_apart(node: ir.Node, constants: WeightForms) -> None:
    """Gives the vector that is added behind a MatMul of three or more dimensions as many as three."""
    add, bias = graph.added_vector(node) or (node, None)
    tensor = graph.constant(bias)
    if bias is None or tensor is None:
        return
    rows = tensor.numpy().reshape(1, 1, -1)
    other = constants.array(owner_of(node), f"{bias.name}_of_rows", rows, tensor.dtype)
    add.replace_input_with(list(add.inputs).index(bias), other)


def weigh_in_codes(found: Int8Attention, constants: WeightForms, opset: int) -> None:
    """Write the weights of an attention as `int8_attention_at` finds them again.

    1. weights / largest, which is 1 at most, behind a QuantizeLinear and DequantizeLinear; what v is multiplied to,
       times the largest.
    2. A Where that hides scores becomes an Add of 0, or of the number that it puts there, which swallows any score.
    """
    softmax, product, names = found.softmax, found.product, constants.names
    owner, name = owner_of(softmax), softmax.name or ""
    if found.hides is not None:
        _add_mask(found, constants)
    axes: list[ir.Value | None] = []
    attributes: graph.Attributes = {"keepdims": 1, "axes": [-1]}
    if opset >= AXES_ARE_INPUTS:
        axes, attributes = [constants.array(owner, "last_axis", np.array([-1], np.int64))], {"keepdims": 1}
    weights = softmax.outputs[0]

    def add(op: str, inputs: list[ir.Value | None], word: str, given: graph.Attributes | None = None) -> ir.Value:
        made = names.fresh(f"{name}_{word}")
        return graph.add_node(product, op, inputs, made, made, given or {})

    largest = add("ReduceMax", [weights, *axes], "largest", attributes)
    parameters = [constants.array(owner, "weight_step", np.float32(STEP)), constants.array(owner, "none", np.uint8(0))]
    codes = add("QuantizeLinear", [add("Div", [weights, largest], "relative"), *parameters], "codes")
    product.replace_input_with(0, add("DequantizeLinear", [codes, *parameters], "decoded"))
    y = product.outputs[0]
    node = ir.node("Mul", [y, largest], name=names.fresh(f"{name}_scaled"))
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = y.name, y.type, y.shape
    y.name = names.fresh(f"{y.name}_relative")
    y.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    node.replace_input_with(0, y)
    product.append(node)


def _add_mask(found: Int8Attention, constants: WeightForms) -> None:
    """Once for all attentions that hide the same scores by the same number."""
    where = found.hides
    assert where is not None
    owner = owner_of(where)
    zero = constants.array(owner, "seen", np.zeros((), np.float32))
    inputs = [zero if value is found.scores else value for value in where.inputs]

    def made() -> ir.Value:
        name = constants.names.fresh(f"{where.name}_mask")
        return graph.add_node(where, "Where", inputs, name, name)

    mask = constants.once(("mask", owner, *inputs), made)
    name = constants.names.fresh(f"{where.name}_masked")
    y = graph.add_node(where, "Add", [found.scores, mask], name, name)
    graph.replace_value(where.outputs[0], y)
    assert where.graph is not None
    where.graph.remove(where, safe=True)
