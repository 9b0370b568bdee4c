"""The products of a model beside which adapters may stand: by node name, in the file and with weights restored.

A quantized model is looked at twice. As it lies in the file it is what adapters are put into, and nothing else of it
changes. With its weights restored (`conversion/restore.py`) every spelling of packed codes is a product again, of which
input, output and sizes are known. Both carry the same node names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxq.conversion.restore import restore_products
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, BadRecipe
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.model.origin import RESTORED, STORED_TYPE
from onnxq.model.weights import Weight, weights_of
from onnxq.passes import low_rank, prepare
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.recipe import Rule

#: What stands between a product and its constant where that is another's too, or stored in fewer bits.
_BETWEEN = frozenset({"Cast", "Identity", "Transpose"})
#: In the names of constants that make up for the codes of a weight.
_THIN = re.compile(f"({low_rank.A}|{low_rank.B})(_|$)")
#: How many product names a message lists.
_MOST = 8


@dataclass(frozen=True)
class Product:
    """A product of activations and a constant matrix [K, N], in a restored model.

    Attributes:
        name: of its node.
        weight: where the node reads the matrix, which may lie as [N, K].
    """

    name: str
    k: int
    n: int
    weight: Weight

    @property
    def is_quantized(self) -> bool:
        return isinstance(self.weight.tensor, GivenTensor)

    @property
    def alpha(self) -> float:
        """What its node multiplies the product by, and not what stands beside it."""
        return graph.attribute_float(self.weight.node, "alpha", 1.0)

    @property
    def form(self) -> str:
        """The word of its number format."""
        tensor = self.weight.tensor
        if isinstance(tensor, GivenTensor) and tensor.form is not None:
            return tensor.form[0].name
        return (self.half or tensor.dtype).name.lower()

    @property
    def half(self) -> ir.DataType | None:
        """The type of 16 bits in which the weight is stored, where its product computes in float."""
        return self.weight.value.meta.get(STORED_TYPE)

    @property
    def stored_form(self) -> str:
        """The same of the weight in the file, where codes may be of no format."""
        return "codes of another kind" if self.has_codes and not self.is_quantized else self.form

    @property
    def has_codes(self) -> bool:
        """Whether the file holds codes of the weight, be they of a format of ours or not."""
        return self.is_quantized or bool(self.weight.value.meta.get(RESTORED))

    def without_numbers(self) -> Product:
        """The same, which keeps no weight in memory."""
        return replace(self, weight=replace(self.weight, tensor=no_numbers(self.weight.tensor)))


def no_numbers(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """What has the type and shape of `tensor`, and nothing in it."""

    def evaluate() -> ir.TensorProtocol:
        raise ValueError(f"'{tensor_name}' is not there any more")

    tensor_name, shape = tensor.name, ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=shape, name=tensor_name)


def restored(model: ir.Model, *, keeps_own: bool = False) -> ir.Model:
    """`model`, its packed weights floats that know their codes; inputs for adapters are as by default.

    Args:
        keeps_own: whether calls of our own functions that are no products may stay, in the place of their bodies.

    Raises:
        BadModel: the graph cannot be read.
    """
    restore_products(model, keeps_own=keeps_own, channels=True)
    coded = {node.name or "" for node in graph.nodes(model) if any(map(_is_of_codes, node.inputs))}
    prepare.run([FoldConstants(only=_BETWEEN, spared=coded)], model)
    for value in [value for value in model.graph.inputs if value.const_value is not None]:
        model.graph.inputs.remove(value)
    return model


def _is_of_codes(value: ir.Value | None) -> bool:
    return isinstance(graph.constant(value), GivenTensor)


def file_model(path: Path) -> ir.Model:
    """The model at `path` as it lies there, names being those of `restored`.

    Raises:
        BadModel: it cannot be read.
    """
    model = load_model(path)
    lift = LiftConstantsToInitializersPass(True, size_limit=0)
    prepare.run([InlineFunctions(), DropInitializerInputs(), lift, UniqueNames()], model)
    return model


def products_of(model: ir.Model) -> Iterator[Product]:
    """The products of a restored model that an adapter may stand beside, in the order of execution."""
    for node in graph.nodes(model):
        if not graph.is_op(node, "MatMul", "Gemm") or graph.attribute_int(node, "transA", 0):
            continue
        for weight in weights_of(node, least=1):
            if weight.role.index == 1 and len(weight.shape) == 2 and not _is_thin(weight):
                k, n = weight.shape[weight.role.contraction], weight.shape[weight.role.channel]
                yield Product(node.name or "", k, n, weight)


def _is_thin(weight: Weight) -> bool:
    """Whether it is one of the two matrices of a rank: their product is added to what codes make, by a node of ours."""
    if _THIN.search(weight.value.name or "") is None:
        return False
    node: ir.Node | None = weight.node
    for _ in range(2):
        node = None if node is None else graph.only_consumer(node.outputs[0])
        if node is not None and graph.is_op(node, "Add") and low_rank.ADDED in (node.name or ""):
            return True
    return False


def has_ranks(model: ir.Model) -> bool:
    """Whether thin matrices stand beside codes of a restored model, and make up for them."""
    return any(_is_thin(weight) for node in graph.nodes(model) for weight in weights_of(node, least=1))


def matrix(weight: Weight, dtype: type[np.floating] = np.float32) -> NDArray:
    """A weight as floats, [K, N]."""
    tensor: ir.TensorProtocol = weight.tensor
    x = tensor.given().dequantize() if isinstance(tensor, GivenTensor) else np.asarray(tensor.numpy(), dtype)
    return np.ascontiguousarray(x if weight.role.contraction == 0 else x.T, dtype)


def in_file(model: ir.Model, names: list[str]) -> dict[str, ir.Node]:
    """The nodes of a file's model that compute these products.

    Raises:
        BadModel: one of them is spelled by several nodes, between which nothing can be put.
    """
    nodes = {node.name: node for node in graph.nodes(model)}
    found = {}
    for name in names:
        node = nodes.get(name)
        if node is None or len([output for output in node.outputs if output.name]) != 1 or not node.inputs:
            raise BadModel(f"product '{name}' is spelled by several nodes in the file: it can have no adapter")
        found[name] = node
    return found


def chosen(products: list[Product], patterns: Mapping[str, int]) -> dict[str, int]:
    """The rank that each product gets, by its name; the last pattern that matches counts, rank 0 is none.

    Args:
        patterns: ranks by patterns of node names, globs or regular expressions behind `re:`.

    Raises:
        BadRecipe: a rank below 0, a pattern that matches no product, or nothing is left.
    """
    ranks: dict[str, int] = {}
    for pattern, rank in patterns.items():
        if rank < 0:
            raise BadRecipe(f"invalid rank {rank} for '{pattern}'; choose 1 or more, or 0 for no adapter")
        rule = Rule("keep", nodes=pattern)
        matched = [product for product in products if rule.matches(product.name, product.weight.node.op_type)]
        if not matched:
            names = ", ".join(product.name for product in products[:_MOST])
            more = ", …" if len(products) > _MOST else ""
            raise BadRecipe(f"'{pattern}' matches no product of the model; it has {names}{more}")
        ranks |= {product.name: min(rank, product.k, product.n) for product in matched}
    ranks = {product.name: ranks[product.name] for product in products if ranks.get(product.name)}
    if not ranks:
        raise BadRecipe("no product has an adapter of rank 1 or more: name some with --lora 'PATTERN=RANK'")
    return ranks


def parse_pattern(words: str) -> tuple[str, int]:
    """The pattern and rank of `PATTERN=RANK`, or of a rank alone, which is for all products.

    Raises:
        BadRecipe: it is neither.
    """
    pattern, _, rank = words.rpartition("=")
    try:
        return pattern or "*", int(rank)
    except ValueError:
        raise BadRecipe(f"invalid --lora '{words}'; example: 'layers.*/q=16'") from None
