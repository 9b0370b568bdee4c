"""A quantized model as a module of torch whose matrices stay packed, with adapters beside some of its products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from onnxq.algorithms.low_rank import Factors
from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.learning.packed import PackedMatrix
from onnxq.training.adapters.products import Product, no_numbers, products_of
from onnxq.training.graph.module import GraphModule, module
from onnxq.training.graph.operators import find

#: What is called with what each adapted product reads.
Watch = Callable[[str, torch.Tensor], None]


class LowRank(torch.nn.Module):  # type: ignore[misc]
    """(x · A) · B, by default 0: A is drawn as a linear layer's weight is, and B is zero."""

    def __init__(self, k: int, n: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / max(1, k) ** 0.5
        self.a = torch.nn.Parameter((torch.rand(k, rank, generator=generator) * 2 - 1) * bound * 3**0.5)
        self.b = torch.nn.Parameter(torch.zeros(rank, n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.a.to(x.dtype)) @ self.b.to(x.dtype)

    def put(self, factors: Factors) -> None:
        """Start from these matrices; where they are of a lower rank, the rest of A stays and of B is zero."""
        with torch.no_grad():
            rank = factors.a.shape[1]
            self.a[:, :rank] = torch.from_numpy(np.asarray(factors.a, np.float32))
            self.b.zero_()
            self.b[:rank] = torch.from_numpy(np.asarray(factors.b, np.float32))


class AdaptedModule:
    """A restored model as torch runs it. Nothing of it learns but the adapters.

    Args:
        model: restored (`products.restored`); its numbers are not there afterwards.
        ranks: by product, of which each gets an adapter.
        seed: of what A is drawn by.

    Attributes:
        graph: runs it.
        adapters: by product.
        packed_bytes: of the matrices that stay packed.
        watch: is called with each adapted product's name and input; None: nothing is.

    Raises:
        BadModel: an operator that torch cannot carry out; the sentence names its node.
    """

    def __init__(self, model: ir.Model, ranks: Mapping[str, int], seed: int = 0) -> None:
        self.watch: Watch | None = None
        self.adapters: dict[str, LowRank] = {}
        self._products = {product.name: product.without_numbers() for product in products_of(model)}
        self._packed = packed = _packed_of(model)
        self.graph: GraphModule = module(model, without=set(packed), is_prepared=True)
        self.graph.requires_grad_(False)
        self.packed_bytes = sum(matrix.nbytes for matrix in packed.values())
        for name, matrix in packed.items():
            self.graph.attach(name, matrix)
            self.graph.read_instead[name] = _giving(matrix)
        _forget_numbers(model)
        generator = torch.Generator().manual_seed(seed % (1 << 63))  # as many as torch has
        for name, rank in ranks.items():
            product = self._products[name]
            self.adapters[name] = LowRank(product.k, product.n, rank, generator)
            self.graph.attach(f"{name}.lora", self.adapters[name])
        for node in graph.nodes(model):
            if any(value is not None and value.name in packed for value in node.inputs):
                self.graph.instead[node.name or ""] = self._reading(node)
            elif node.name in self.adapters:
                self.graph.instead[node.name] = self._beside(node.name, find(node).function)

    def parameters(self) -> list[torch.nn.Parameter]:
        """All A, and all B, in the order of the products."""
        return [each for adapter in self.adapters.values() for each in (adapter.a, adapter.b)]

    def adapter(self) -> Adapter:
        """What the adapters are by now."""
        return Adapter(
            {
                name: Factors(*(x.detach().cpu().numpy().astype(np.float32) for x in (each.a, each.b)))
                for name, each in self.adapters.items()
            }
        )

    def put(self, adapter: Adapter) -> None:
        """Go on from these."""
        for name, factors in adapter.factors.items():
            self.adapters[name].put(factors)

    def __call__(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The model's outputs by name."""
        outputs: dict[str, Any] = self.graph(feed)
        return outputs

    @property
    def products(self) -> list[Product]:
        """Those that have an adapter, in their order, without their weights."""
        return [self._products[name] for name in self.adapters]

    def weight(self, name: str) -> NDArray[np.float32]:
        """The matrix of a product as floats, [K, N]."""
        weight = self._products[name].weight
        matrix = self._packed.get(weight.value.name or "")
        if matrix is not None:
            return np.ascontiguousarray(matrix.floats(slice(None)).cpu().numpy().T)
        x = self.graph.weights[weight.value.name or ""].detach().float().cpu().numpy()
        return np.ascontiguousarray(x if weight.role.contraction == 0 else x.T)

    def _reading(self, node: ir.Node) -> Callable[..., Any]:
        """What carries out a node whose matrix is packed."""
        if node.op_type == "Gather":
            return lambda call, table, indices: table.lookup(indices)
        if node.op_type == "MatMul":
            return self._beside(node.name or "", lambda call, x, w: w.product(x))
        alpha, beta = (graph.attribute_float(node, word, 1.0) for word in ("alpha", "beta"))

        def gemm(call: Any, x: torch.Tensor, w: PackedMatrix, bias: torch.Tensor | None = None) -> torch.Tensor:
            y = w.product(x) * alpha
            return y if bias is None else y + bias * beta

        return self._beside(node.name or "", gemm)

    def _beside(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with the adapter of its product added, if there is one."""
        adapter = self.adapters.get(name)
        if adapter is None:
            return function

        def both(call: Any, x: torch.Tensor, *others: Any) -> Any:
            if self.watch is not None:
                self.watch(name, x)
            return function(call, x, *others) + adapter(x)

        return both


def _forget_numbers(model: ir.Model) -> None:
    """What torch holds needs no second place: of a small file, all of it stays in memory as long as any of it does."""
    for body in graph.graphs(model):
        for value in body.initializers.values():
            if value.const_value is not None:
                value.const_value = no_numbers(value.const_value)


def _giving(matrix: PackedMatrix) -> Callable[[Any], Any]:
    return lambda _: matrix


def _packed_of(model: ir.Model) -> dict[str, PackedMatrix]:
    """The matrices that stay packed, by their initializer, each read once; others are unpacked and stay so."""
    found: dict[str, PackedMatrix] = {}
    for body in graph.graphs(model):
        for name, value in body.initializers.items():
            tensor = value.const_value
            if not isinstance(tensor, GivenTensor) or len(tensor.shape) != 2 or value.is_graph_output():
                continue
            turns = {_turn(use.node, use.idx) for use in value.uses()}
            if turns in ({True}, {False}):
                found[name] = PackedMatrix.of(tensor, turn=turns.pop() or False)
    return found


def _turn(node: ir.Node, index: int) -> bool | None:
    """Whether a node's matrix is [K, N], and is to be turned to be packed; None where the node is of another kind."""
    if graph.is_op(node, "Gather") and index == 0:
        return False if graph.attribute_int(node, "axis", 0) in (0, -2) else None
    if graph.is_op(node, "MatMul") and index == 1:
        return True
    if graph.is_op(node, "Gemm") and index == 1 and not graph.attribute_int(node, "transA", 0):
        return not graph.attribute_int(node, "transB", 0)
    return None
