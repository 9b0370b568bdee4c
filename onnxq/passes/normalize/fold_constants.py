"""Weights behind Transpose, Reshape, Cast, DequantizeLinear and the like become plain initializers."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnxq.model import graph
from onnxq.model.origin import ORIGIN, TURNED, inherit_type, is_whole
from onnxq.model.types import TypeAndShape, infer_types

#: Below this many bytes of input a node is evaluated at once; above, when its result is needed.
EAGER_BYTES = 1 << 16
#: Operators that the reference implements only from this opset on, with the meaning they had before.
_IMPLEMENTED_FROM = {"DequantizeLinear": 19}
#: Operators whose result is as large as numbers among their inputs say.
_GROWING = {"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Pad", "Range", "Tile"}
#: Operators of which the reference computes what onnxruntime does, in every opset.
EVALUATED = frozenset(
    {
        *("Cast", "CastLike", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten"),
        *("Gather", "GatherElements", "GatherND", "Identity", "OneHot", "Pad", "Range", "Reshape", "ScatterElements"),
        *("ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
        *("Abs", "Add", "Ceil", "Clip", "Cos", "CumSum", "Div", "Einsum", "Erf", "Exp", "Floor", "Gemm", "Log"),
        *("MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign"),
        *("Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "And", "Equal", "Greater", "GreaterOrEqual", "IsNaN"),
        *("Less", "LessOrEqual", "Not", "Or", "Where", "Xor", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "DequantizeLinear", "QuantizeLinear"),
    }
)


class FoldConstants(ir.passes.InPlacePass):
    """Replace nodes whose inputs are all constant by their result.

    1. Those of `EVALUATED` with one output.
    2. Small ones are evaluated at once, large ones lazily: then the output's type and shape must be inferable.
    3. Nothing grows: a result more than `growth` times as large as its inputs (Expand, Tile) stays a node. Four, as
       DequantizeLinear turns bytes into floats.
    4. The same node on the same inputs is folded once, into the graph that owns its largest input: subgraphs which
       derive their weights from those of an outer graph do not each get a copy.

    Args:
        only: the operators to fold; None: all.
        spared: names of nodes that stay.
        decodes: whether weights are decoded of operators that read decoded activations too, and so compute in integers.
    """

    def __init__(
        self,
        growth: int = 4,
        only: frozenset[str] | None = None,
        spared: Collection[str] = (),
        *,
        decodes: bool = True,
    ) -> None:
        super().__init__()
        self.growth, self.only, self.spared, self.decodes = growth, only, spared, decodes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        candidates = [node for node in graph.nodes(model) if _is_constant(node)]
        if not candidates:
            return ir.passes.PassResult(model, modified=False)
        types = infer_types(model)
        version = graph.opset(model)
        made: dict[tuple[Hashable, ...], ir.Value] = {}
        folded = 0
        for node in list(graph.nodes(model)):
            if not _is_constant(node) or not self._is_meant(node):
                continue
            owner = _owner(node)
            key = (id(owner), node.op_type, str(node.attributes), *(_identity(value) for value in node.inputs))
            if key not in made:
                tensor = _fold(node, version, types.of(node.outputs[0]), self.growth)
                if tensor is None:
                    continue
                name, node.outputs[0].name = node.outputs[0].name or "", None
                made[key] = graph.add_constant(owner, name, tensor)
                source = _largest_input(node)
                made[key].meta[ORIGIN] = source.meta.get(ORIGIN, source.name)
                inherit_type(made[key], source)
                if node.op_type == "Transpose" and len(tensor.shape) == 2 and is_whole(source):
                    made[key].meta[TURNED] = True
            node.outputs[0].replace_all_uses_with(made[key])
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            folded += 1
        return ir.passes.PassResult(model, modified=folded > 0)

    def _is_meant(self, node: ir.Node) -> bool:
        is_asked = (self.only is None or node.op_type in self.only) and node.name not in self.spared
        return is_asked and (self.decodes or not _is_for_integers(node))


def _is_constant(node: ir.Node) -> bool:
    if not graph.is_op(node, *EVALUATED) or len(node.outputs) != 1 or not node.inputs:
        return False
    if node.outputs[0].is_graph_output() or not node.outputs[0].uses():
        return False
    return all(value is None or graph.constant(value) is not None for value in node.inputs)


def _is_for_integers(node: ir.Node) -> bool:
    """Whether it decodes a constant for operators alone that read decoded activations beside it."""
    return node.op_type == "DequantizeLinear" and all(map(_reads_codes, node.outputs[0].consumers()))


def _reads_codes(node: ir.Node) -> bool:
    makers = (value.producer() for value in node.inputs if value is not None)
    return any(x is not None and graph.is_op(x, "DequantizeLinear") and not _is_constant(x) for x in makers)


def _fold(node: ir.Node, version: int, inferred: TypeAndShape, growth: int) -> ir.TensorProtocol | None:
    inputs = {value.name or "": tensor for value in node.inputs if value and (tensor := graph.constant(value))}
    nbytes = sum(tensor.nbytes for tensor in inputs.values())
    most = growth * nbytes + 1024
    evaluator = _evaluator(node, version)
    if evaluator is None or _differs(node, inferred):
        return None

    def evaluate() -> ir.TensorProtocol:
        with np.errstate(all="ignore"):  # numpy's warnings would be for whoever made the model
            (result,) = evaluator.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return ir.tensor(np.asarray(result, order="C"))

    if _repeats(node) > most:
        return None
    if inferred.is_static and math.prod(d for d in inferred.shape or () if isinstance(d, int)) > most:
        return None
    if node.op_type in _GROWING and not inferred.is_static:
        return None
    if nbytes <= EAGER_BYTES:
        try:
            tensor = evaluate()
        except Exception:  # the evaluator's own limits, whatever they are, only mean that the node stays
            return None
        is_its_type = inferred.dtype in (None, tensor.dtype)
        return tensor if tensor.nbytes <= most and is_its_type else None
    if inferred.dtype is None or not inferred.is_static:
        return None
    shape = ir.Shape([int(dim) for dim in inferred.shape or () if isinstance(dim, int)])
    lazy = ir.LazyTensor(evaluate, dtype=inferred.dtype, shape=shape)
    return lazy if lazy.nbytes <= most else None


def _repeats(node: ir.Node) -> int:
    """Numbers that the reference makes of scales of blocks before it looks whether there are so many codes."""
    block = graph.attribute_int(node, "block_size", 0)
    sizes = (tensor.size for value in node.inputs[1:2] if (tensor := graph.constant(value)))
    return max(block, 0) * max(sizes, default=0)


def _differs(node: ir.Node, inferred: TypeAndShape) -> bool:
    """Whether these constants are among the few of which the reference makes something else: texts, and means of
    nothing."""
    if node.op_type == "QuantizeLinear":
        return _overflows(node)
    is_mean_of_none = node.op_type == "ReduceMean" and any(
        tensor.size == 0 for value in node.inputs[:1] if (tensor := graph.constant(value))
    )
    return is_mean_of_none or inferred.dtype is ir.DataType.STRING


def _overflows(node: ir.Node) -> bool:
    """Whether the reference, which rounds to 32 bits first, may make small codes of numbers far beyond the largest."""
    x, scale = (np.abs(tensor.numpy().astype(np.float32)) for v in node.inputs[:2] if (tensor := graph.constant(v)))
    return bool(np.max(x, initial=0) >= np.min(scale, initial=np.inf) * 2.0**30)


def _evaluator(node: ir.Node, version: int) -> ReferenceEvaluator | None:
    """The reference implementation of this one node, its inputs under their own names."""
    proto = ir.serde.serialize_node(node)
    named = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(proto.input) if name]
    body = onnx.helper.make_graph([proto], "node", named, [onnx.ValueInfoProto(name=proto.output[0])])
    imports = [onnx.helper.make_opsetid("", max(version, _IMPLEMENTED_FROM.get(node.op_type, 0)))]
    try:
        return ReferenceEvaluator(onnx.helper.make_model(body, opset_imports=imports))
    except Exception:  # no reference implementation of this operator or version
        return None


def _identity(value: ir.Value | None) -> Hashable:
    """What tells an input from another: small constants (axes, shapes) by content, all else as the value it is."""
    tensor = graph.constant(value)
    if tensor is None or tensor.nbytes > 256:
        return id(value)
    return tensor.dtype, str(tensor.shape), tensor.tobytes()


def _owner(node: ir.Node) -> ir.Graph:
    """The graph of the largest input: every reader of the node's output can see it, as the node itself does."""
    owner = _largest_input(node).graph
    assert isinstance(owner, ir.Graph)
    return owner


def _largest_input(node: ir.Node) -> ir.Value:
    inputs = [
        (tensor.nbytes, value) for value in node.inputs if value and (tensor := graph.constant(value)) is not None
    ]
    return max(inputs, key=lambda entry: entry[0])[1]
