"""Read a quantized model as one whose weights are floats that know their codes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass, TopologicalSortPass

from onnxq import own_ops
from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.passes import prepare
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.inline_functions import InlineFunctions
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.restore.drop_activation_pairs import DropActivationPairs
from onnxq.passes.restore.read_dequantize_linear import ReadDequantizeLinear
from onnxq.passes.restore.read_gathers import ReadGathers
from onnxq.passes.restore.read_matmul_bnb4 import ReadMatMulBnb4
from onnxq.passes.restore.read_matmul_nbits import ReadMatMulNBits
from onnxq.passes.restore.read_onnxq_nodes import ReadOnnxqNodes
from onnxq.passes.restore.restore_dynamic_products import RestoreDynamicProducts


def restore_products(model: ir.Model, *, keeps_own: bool = False) -> None:
    """Give products and lookups on packed weights float weights; all else stays as it is, int8 islands among it.

    Args:
        keeps_own: whether calls of our own functions that no pass reads may stay; else their bodies take their place.

    Raises:
        BadModel: the graph cannot be read.
    """
    others = [ReadMatMulNBits(), ReadMatMulBnb4(), ReadGathers(), ReadDequantizeLinear(_is_of_product)]
    _run(model, others, keeps_own=keeps_own)


def restore_all(model: ir.Model) -> None:
    """Let every node compute in floats: restore all weights, and drop what rounds activations.

    Raises:
        BadModel: the graph cannot be read.
    """
    readers = [ReadMatMulNBits(), ReadMatMulBnb4(), ReadGathers(), RestoreDynamicProducts()]
    _run(model, [*readers, DropActivationPairs(), ReadDequantizeLinear()])


def given_weights(model: ir.Model) -> dict[tuple[str, int], GivenTensor]:
    """The weights that know their codes, by the name of a node that reads one and the number of that input."""
    return {
        (node.name or "", index): value.const_value
        for node in graph.nodes(model)
        for index, value in enumerate(node.inputs)
        if value is not None and isinstance(value.const_value, GivenTensor)
    }


def _run(model: ir.Model, readers: Sequence[ir.passes.PassBase], *, keeps_own: bool = False) -> None:
    lift = LiftConstantsToInitializersPass(True, size_limit=0)
    own = [InlineFunctions(), DropInitializerInputs(), lift, UniqueNames(), ReadOnnxqNodes(), RemoveUnused()]
    if not keeps_own:
        own += [InlinePass(lambda function: function.domain == own_ops.DOMAIN), lift, UniqueNames()]
    prepare.run([*own, *readers, RemoveUnused(), TopologicalSortPass(), UniqueNames()], model)


def _is_of_product(dequantize: ir.Node) -> bool:
    """Whether a DequantizeLinear makes blocks of codes the weight of products that multiply floats, and only that."""
    if not graph.attribute_int(dequantize, "block_size", 0):
        return False
    readers = [use.node for use in dequantize.outputs[0].uses()]
    if len(readers) == 1 and graph.is_op(readers[0], "Transpose"):
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return bool(readers) and all(graph.is_op(node, "MatMul", "Gemm", "Gather") for node in readers)
