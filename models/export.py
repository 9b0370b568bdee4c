"""Write a trained torch module as ONNX: named after its modules, and without traces of where it was made."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from onnxscript import optimizer


def export(module: torch.nn.Module, example: torch.Tensor, name: str, axes: dict[int, str], path: Path) -> None:
    """Save `module` at `path` with one input `name`, shaped like `example`, and one output `logits`.

    BatchNorm stays a node of its own, unlike in torch's optimized export: folding it is the quantizer's work.

    Args:
        axes: the axes of the input that are free, and what they are called.
    """
    program = torch.onnx.export(
        module.eval(),
        (example,),
        input_names=[name],
        output_names=["logits"],
        dynamic_shapes=({axis: torch.export.Dim(word) for axis, word in axes.items()},),
        opset_version=18,
        optimize=False,
        verbose=False,
    )
    assert program is not None
    model = program.model
    optimizer.inline(model)
    optimizer.fold_constants(model)
    name_by_module(model, {scope for scope, _ in module.named_modules()})
    ir.passes.Sequential(passes.RemoveUnusedNodesPass(), passes.NameFixPass())(model)
    forget_origin(model)
    ir.save(model, path)


def forget_origin(model: ir.Model) -> None:
    """Remove the metadata: torch leaves source paths and stack traces of the exporting machine there."""
    passes.ClearMetadataAndDocStringPass()(model)
    outputs = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *model.graph.initializers.values(), *outputs):
        value.metadata_props.clear()


def name_by_module(model: ir.Model, modules: set[str]) -> None:
    """Name nodes like `layers.0.up/MatMul` instead of `node_MatMul_73`, so that patterns can pick layers."""
    for node in model.graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        within = [scope for scope in scopes if scope in modules - {""}]
        node.name = "/".join([*within[-1:], node.op_type])
