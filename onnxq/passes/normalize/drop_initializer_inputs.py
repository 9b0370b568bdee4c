"""Initializers listed as graph inputs become constants, where that listing is only a habit of the exporter."""

from __future__ import annotations

import onnx_ir as ir


class DropInitializerInputs(ir.passes.InPlacePass):
    """Drop graph inputs that carry an initializer.

    1. Before IR version 4 every initializer had to be a graph input: all are dropped.
    2. From IR 4 on, listing one makes it a default the caller may override. Exporters that list every initializer do
       so out of habit: all are dropped.
    3. Where only some are listed, somebody meant it: they stay, and count as activations.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        inputs, initializers = model.graph.inputs, model.graph.initializers
        listed = [value for value in inputs if value.name in initializers]
        if not listed or (model.ir_version >= 4 and len(listed) < len(initializers)):
            return ir.passes.PassResult(model, modified=False)
        for value in listed:
            inputs.remove(value)
        model.ir_version = max(model.ir_version, 4)
        return ir.passes.PassResult(model, modified=True)
