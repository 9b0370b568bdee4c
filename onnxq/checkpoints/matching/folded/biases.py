"""Biases that were zero when a model was exported, which torch's newer exporter removes from convolutions: they are put
back where the checkpoint has one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import onnx_ir as ir

from onnxq.checkpoints.matching.folded import told
from onnxq.checkpoints.matching.folded.batchnorms import give
from onnxq.checkpoints.matching.names import Renaming, module_of_reader
from onnxq.checkpoints.stored import key, real
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import weights_of
from onnxq.passes.normalize.fold_batchnorm import outputs_of


def put_back(model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming, apart: Collection[str]) -> list[str]:
    """Give convolutions without a bias, which had one by their metadata, that of the module whose weight they read;
    which tensors these are.

    Args:
        apart: tensors of kernels that have something else inside, or stay as they are.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    placed, names = list[str](), Names(model)
    constants = {renamed(name) for owner in graph.graphs(model) for name in owner.initializers}
    for node in graph.nodes(model):
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        if not graph.is_op(node, "Conv", "ConvTranspose") or has_bias or not told.had_bias(node):
            continue
        for weight in weights_of(node, least=1):
            own, around = (weight.value.name or "").removesuffix(".weight"), module_of_reader(node)
            module = renamed(key(around or own, "weight")).removesuffix("weight").removesuffix(".")
            source, kernel = key(module, "bias"), key(module, "weight")
            is_its_own = getattr(tensors.get(kernel), "shape", None) == weight.shape and kernel not in apart
            is_free = source in tensors and source not in constants and source not in apart
            if weight.role.index == 1 and is_its_own and is_free:
                bias = real(source, tensors[source])
                if bias.shape == (outputs_of(node, weight.shape),):
                    give(node, 2, bias, names)
                    placed.append(source)
    return placed
