"""Constants that were half floats in the file are written as half floats, whatever computes with them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN, SOURCE, STORED_TYPE
from onnxq.model.weights import WITH_CODES
from onnxq.passes.normalize.change_float_type import converted


class StoreHalves(ir.passes.InPlacePass):
    """Put a Cast behind each float32 constant that was made of one in half precision (`STORED_TYPE`).

    1. The Cast reads nothing else, so it is computed once, when the model is loaded.
    2. Only where the bytes that it saves are more than those it takes.
    3. Not what a region reads, or what is told of packed weights: their kernels want constants when a session is made,
       whether anything was folded or not.
    """

    #: Numbers that take as many bytes less as the Cast and its names take more.
    LEAST = 128

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, stored = Names(model), 0
        for owner in graph.graphs(model):
            for value in list(owner.initializers.values()):
                tensor, half = graph.constant(value), value.meta.get(STORED_TYPE)
                if half is None or tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size < self.LEAST:
                    continue
                if value.uses() and not value.is_graph_output() and not _is_wanted_constant(value):
                    _store(owner, value, tensor, half, names)
                    stored += 1
        return ir.passes.PassResult(model, modified=stored > 0)


def _is_wanted_constant(value: ir.Value) -> bool:
    ours = (own_ops.REGION, own_ops.BF16_REGION)
    return any(
        (node.domain == own_ops.DOMAIN and node.op_type in ours)
        or (node.domain == graph.MICROSOFT and (node.domain, node.op_type) in WITH_CODES and index > 0)
        for node, index in value.uses()
    )


def _store(owner: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol, half: ir.DataType, names: Names) -> None:
    short = graph.add_constant(owner, names.fresh(f"{value.name}_{half.name.lower()}"), converted(tensor, half))
    short.meta.update({key: value.meta[key] for key in (ORIGIN, SOURCE) if key in value.meta})
    node = ir.node("Cast", [short], attributes={"to": int(ir.DataType.FLOAT)}, name=names.fresh(f"{value.name}_cast"))
    out = node.outputs[0]
    out.name, out.type, out.shape = names.fresh(f"{value.name}_float"), ir.TensorType(ir.DataType.FLOAT), value.shape
    value.replace_all_uses_with(out)
    owner.insert_before(owner[0], node)
    del owner.initializers[value.name or ""]
