"""Put adapters into a model's file: as nodes with their matrices, or as inputs that a run may give.

1. as nodes: MatMul by A, MatMul by B, and an Add behind the product;
2. as inputs: the same three nodes, whose matrices are inputs of the model with a default of rank 0. Without an
   adapter they cost nothing and add nothing; an adapter file gives them for one run (onnxruntime's
   `RunOptions.add_active_adapter`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.training.adapters.adapter import Adapter, stored_factors
from onnxq.training.adapters.products import Product, in_file

#: What the inputs of a product are called behind its name.
A, B = ".lora_A", ".lora_B"
#: Inputs that have a default are this version's.
_IR_VERSION = 4


def as_nodes(model: ir.Model, adapter: Adapter, products: Mapping[str, Product]) -> None:
    """Put `adapter` into a model of a file.

    Raises:
        BadModel: a product has no place for it.
        BadData: a number is too large for the model's type.
    """
    names = Names(model)
    for name, node in in_file(model, list(adapter.factors)).items():
        a, b = (
            graph.add_constant(model.graph, names.fresh(f"{name}{word}"), ir.tensor(x))
            for word, x in zip((A, B), stored_factors(adapter, products[name]), strict=True)
        )
        _beside(node, a, b, names)


def as_inputs(model: ir.Model, products: Mapping[str, Product]) -> list[str]:
    """Give each of these products two inputs of the model, by default of rank 0; the products' names.

    Raises:
        BadModel: a product has no place for them, or has them already.
    """
    names, made = Names(model), list[str]()
    for name, node in in_file(model, list(products)).items():
        product = products[name]
        dtype, rank = product.weight.tensor.dtype, f"{name}.rank"
        if any(names.fresh(f"{name}{suffix}") != f"{name}{suffix}" for suffix in (A, B)):
            raise BadModel(f"the model has inputs for an adapter of node '{name}' already")
        a, b = (
            graph.add_constant(model.graph, f"{name}{suffix}", ir.tensor(np.zeros(shape, dtype.numpy())))
            for suffix, shape in ((A, (product.k, 0)), (B, (0, product.n)))
        )
        a.shape, b.shape = ir.Shape([product.k, rank]), ir.Shape([rank, product.n])
        model.graph.inputs.extend([a, b])
        _beside(node, a, b, names)
        made.append(name)
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return made


def _beside(node: ir.Node, a: ir.Value, b: ir.Value, names: Names) -> None:
    """Whoever read what `node` computes reads the sum of that and (x · A) · B."""
    y, last = node.outputs[0], node
    users, is_output = list(y.uses()), y.is_graph_output()
    added: list[ir.Value | None] = [node.inputs[0]]
    for op_type, others in (("MatMul", [a]), ("MatMul", [b]), ("Add", [y])):
        name = names.fresh(f"{node.name}.lora")
        inputs = [y, *added] if op_type == "Add" else [*added, *others]
        made = ir.node(op_type, inputs, name=name)
        made.outputs[0].name = names.fresh(f"{name}_out")
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_after(last, made)
        last, added = made, [made.outputs[0]]
    total = last.outputs[0]
    total.type, total.shape = y.type, y.shape
    for use in users:
        use.node.replace_input_with(use.idx, total)
    if is_output:
        assert isinstance(node.graph, ir.Graph)
        outer, inner = y.name, total.name
        y.name = total.name = None
        y.name, total.name = inner, outer
        node.graph.outputs[:] = [total if value is y else value for value in node.graph.outputs]
