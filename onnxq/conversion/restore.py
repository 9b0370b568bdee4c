"""Read a quantized model as one whose weights are floats that know their codes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import (
    InlinePass,
    LiftConstantsToInitializersPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedOpsetsPass,
    TopologicalSortPass,
)

from onnxq import own_ops
from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import OF_BODY, ORIGIN, lie_by_inputs, modules_of, name_lying, name_modules
from onnxq.model.weights import MIN_ELEMENTS, find_weights, weights_of
from onnxq.passes import prepare
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.regions.step_names import forget_steps
from onnxq.passes.restore.drop_activation_pairs import DropActivationPairs
from onnxq.passes.restore.read_chains import ReadChains
from onnxq.passes.restore.read_channels import ReadChannels
from onnxq.passes.restore.read_dequantize_linear import ReadDequantizeLinear, behind
from onnxq.passes.restore.read_gathers import ReadGathers
from onnxq.passes.restore.read_layers import ReadLayers
from onnxq.passes.restore.read_matmul_bnb4 import ReadMatMulBnb4
from onnxq.passes.restore.read_matmul_nbits import ReadMatMulNBits
from onnxq.passes.restore.read_onnxq_nodes import ReadOnnxqNodes
from onnxq.passes.restore.restore_dynamic_products import RestoreDynamicProducts
from onnxq.passes.restore.unfold_integer_operators import UnfoldIntegerOperators

#: Of the standard operators, in which DequantizeLinear has scales of channels, and Clip bounds that are inputs.
_OPSET = 13
_PACKED = (ReadMatMulNBits(), ReadMatMulBnb4(), ReadGathers())
#: How the names of operators begin that compute with codes.
_ON_CODES = ("QuantizeLinear", "QLinear", "QGemm", "QAttention")


def restore_products(model: ir.Model, *, keeps_own: bool = False, channels: bool = False, wide: bool = True) -> None:
    """Give products and lookups on packed weights float weights; all else stays as it is, int8 islands among it.

    Args:
        keeps_own: whether calls of our own functions that no pass reads may stay; else their bodies take their place.
        channels: restore weights too that are unpacked when the model is loaded, one scale a channel, or kernels of
            convolutions in blocks.
        wide: restore codes of 16 bits in blocks, which no operator multiplies by; else their DequantizeLinear stays.

    Raises:
        BadModel: the graph cannot be read.
    """
    reads = _is_of_product if channels else _lies_as_read
    others = [
        *_PACKED,
        ReadChains(kernels=channels),
        *[ReadChannels()] * channels,
        ReadDequantizeLinear(functools.partial(_is_read, reads=reads, wide=wide)),
        ReadDequantizeLinear(_is_for_newer),
    ]
    _run(model, others, keeps_own=keeps_own)


def restore_all(model: ir.Model) -> None:
    """Let every node compute in floats: restore all weights, and drop what rounds activations.

    Raises:
        BadModel: the graph cannot be read.
    """
    raising = [RaiseOpset(_OPSET)] * any(node.op_type.startswith(_ON_CODES) for node in graph.nodes(model))
    activations = [*raising, UnfoldIntegerOperators(), RemoveUnused(), DropActivationPairs()]
    _run(
        model,
        [
            *_PACKED,
            ReadChains(kernels=True),
            ReadLayers(),
            RestoreDynamicProducts(),
            *activations,
            ReadDequantizeLinear(),
        ],
    )


def restore_weights(model: ir.Model) -> None:
    """`restore_all` for who wants the weights: those of products first, in codes of channels too where they lie so.

    Raises:
        BadModel: the graph cannot be read.
    """
    restore_products(model, channels=True)
    restore_all(model)


def tie_tables(model: ir.Model) -> None:
    """Say of matrices of products that they come from the table of their shape, or that turned: whoever writes a model
    looks into what comes from one weight, and writes it once where it is equal. In a quantized model the codes of both
    have names of their own."""
    weights = [weight for weight in find_weights(model) if len(weight.shape) == 2]
    tables = {tuple(sorted(w.shape)): w.value for w in reversed(weights) if graph.is_op(w.node, "Gather")}
    for weight in weights:
        table = tables.get(tuple(sorted(weight.shape)))
        if table is not None and graph.is_op(weight.node, "MatMul", "Gemm"):
            weight.value.meta[ORIGIN] = table.meta.get(ORIGIN, table.name)


def move_alpha(model: ir.Model) -> None:
    """Let a Gemm of codes multiply its input by alpha: kernels have none, and codes stay what they are."""
    names = Names(model)
    for weight in list(find_weights(model)):
        node, alpha = weight.node, graph.attribute_float(weight.node, "alpha", 1.0)
        if node.op_type != "Gemm" or alpha == 1 or not isinstance(weight.tensor, GivenTensor):
            continue
        with np.errstate(over="ignore", under="ignore"):
            number = np.asarray(alpha, weight.tensor.dtype.numpy())
        if not np.isfinite(number) or not number:
            weight.value.const_value = graph.lazily(weight.tensor, lambda w: w)  # its Gemm stays, in floats
            continue
        owner, name = node.graph, names.fresh(f"{node.name}_alpha")
        assert isinstance(owner, ir.Graph)
        factor = ir.tensor(number, dtype=weight.tensor.dtype)
        factors = [node.inputs[1 - weight.role.index], graph.add_constant(owner, names.fresh(f"{name}_of"), factor)]
        node.replace_input_with(1 - weight.role.index, graph.add_node(node, "Mul", factors, name, name))
        node.attributes.pop("alpha")


class Read(NamedTuple):
    """A weight as a product or lookup reads it: whether rows of its outputs are columns."""

    tensor: ir.TensorProtocol
    is_turned: bool

    def numbers(self) -> NDArray:
        """[outputs, inputs] of a product, the table of a lookup."""
        return self.tensor.numpy().T if self.is_turned else self.tensor.numpy()


def weights_by_node(model: ir.Model, least: int = MIN_ELEMENTS) -> dict[tuple[str, int], Read]:
    """Weights of products, lookups and recurrent layers, by the node's name and which of its operands they are.

    Args:
        least: of how many numbers a constant is that is a weight.
    """
    found = {}
    for weight in (weight for node in graph.nodes(model) for weight in weights_of(node, least)):
        is_turned = weight.role.contraction == 0 and len(weight.shape) == 2
        found[weight.node.name or "", weight.role.index] = Read(weight.tensor, is_turned)
    return found


class _InlineOwn(ir.passes.InPlacePass):
    """Calls of our own functions become what is in their bodies, whose constants are known as such."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in graph.nodes(model):
            forget_steps(node)
        known = {id(value) for each in graph.graphs(model) for value in each.initializers.values()}
        modified = InlinePass(lambda function: function.domain == own_ops.DOMAIN)(model).modified
        LiftConstantsToInitializersPass(True, size_limit=0)(model)
        for value in (value for each in graph.graphs(model) for value in each.initializers.values()):
            if id(value) not in known:
                value.meta[OF_BODY] = True
        return ir.passes.PassResult(model, modified=modified)


class _FoldShared(ir.passes.InPlacePass):
    """Codes that two operators read are stored as one of them reads them (`share_codes.py`): the others' are made.

    1. In another shape.
    2. Rows of bytes without the end of their last blocks.
    3. Blocks, or their scales, of columns of a matrix.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        others = ("Slice", "Transpose", "Pad")
        spared = [n.name or "" for n in graph.nodes(model) if graph.is_op(n, *others) and not _is_of_codes(n)]
        return FoldConstants(only=frozenset({"Reshape", *others}), spared=spared)(model)


def _is_of_codes(node: ir.Node) -> bool:
    """Cases 2 and 3 of `_FoldShared`."""
    if node.op_type == "Slice":
        source = node.inputs[0]
        shaped = graph.producer(source)
        codes = graph.constant(shaped.inputs[0] if shaped is not None and graph.is_op(shaped, "Reshape") else source)
        return codes is not None and codes.dtype is ir.DataType.UINT8
    reader: ir.Node | None = node
    while reader is not None and graph.is_op(reader, "Transpose", "Pad"):
        reader = graph.only_consumer(reader.outputs[0])
    uses = () if reader is None or not graph.is_op(reader, "Reshape") else reader.outputs[0].uses()
    return bool(uses) and all(graph.is_op(use.node, "Cast", "Mul") for use in uses)


def _run(model: ir.Model, readers: Sequence[ir.passes.PassBase], *, keeps_own: bool = False) -> None:
    """Names stay; modules are told of what takes a node's place too."""
    lift = LiftConstantsToInitializersPass(True, size_limit=0)
    prepare.run([InlineFunctions(), DropInitializerInputs(), lift, UniqueNames()], model)
    modules, turned = modules_of(model), lie_by_inputs(model)
    own = [ReadOnnxqNodes(), RemoveUnused()]
    if not keeps_own:
        own += [_InlineOwn(), UniqueNames()]
    prepare.run(
        [
            *own,
            _FoldShared(),
            *readers,
            RemoveUnused(),
            RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
            RemoveUnusedOpsetsPass(),
            TopologicalSortPass(),
            UniqueNames(),
        ],
        model,
    )
    name_modules(model, modules)
    name_lying(model, turned)


def _is_read(dequantize: ir.Node, *, reads: Callable[[ir.Node], bool], wide: bool) -> bool:
    codes = graph.constant(dequantize.inputs[0])
    return (wide or codes is None or codes.dtype.bitwidth < 16) and reads(dequantize)


def _is_of_product(dequantize: ir.Node) -> bool:
    """Whether a DequantizeLinear makes blocks of codes the weight of products that multiply floats, and only that."""
    made = [dequantize, *behind(dequantize)][-1].outputs[0]
    operators = all(graph.is_op(use.node, "MatMul", "Gemm", "Gather") for use in made.uses())
    has_blocks = graph.attribute_int(dequantize, "block_size", 0) > 0
    return has_blocks and bool(made.uses()) and not made.is_graph_output() and operators


def _lies_as_read(dequantize: ir.Node) -> bool:
    """Whether, besides, the blocks lie along what each product sums over, and along the rows of a table."""
    codes = graph.constant(dequantize.inputs[0])
    if codes is None or not len(codes.shape) or not _is_of_product(dequantize):
        return False
    rank, last = len(codes.shape), dequantize
    axis, order = graph.attribute_int(dequantize, "axis", 1) % rank, list(range(rank))
    for last in behind(dequantize):
        if graph.is_op(last, "Transpose"):
            order = list(last.attributes["perm"].as_ints()) if "perm" in last.attributes else order[::-1]
    return all(_summed(use.node, use.idx, rank) == order.index(axis) for use in last.outputs[0].uses())


def _is_for_newer(dequantize: ir.Node) -> bool:
    """Whether few runtimes unpack the codes, so that whatever reads them is to read others."""
    codes = graph.constant(dequantize.inputs[0])
    return codes is not None and codes.dtype is ir.DataType.FLOAT4E2M1


def _summed(node: ir.Node, index: int, rank: int) -> int | None:
    """The axis of a weight that a product sums over, or that a lookup takes whole; None where it takes no rows."""
    if graph.is_op(node, "Gather"):
        is_of_rows = index == 0 and graph.attribute_int(node, "axis", 0) in (0, -rank)
        return rank - 1 if is_of_rows else None
    if graph.is_op(node, "Gemm"):
        is_turned = graph.attribute_int(node, ("transA", "transB")[index], 0) if index < 2 else 0
        return (1 - index if not is_turned else index) if index < 2 else None
    return rank - 2 + (index == 0)
