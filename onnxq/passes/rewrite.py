"""Step 5: carry a plan out. The passes, in the order in which they run."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassManager
from onnx_ir.passes.common import RemoveUnusedOpsetsPass, TopologicalSortPass

from onnxq import algorithms
from onnxq.model import graph
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.quantize.convert_to_half import ConvertToHalf
from onnxq.passes.quantize.insert_onnxq_nodes import InsertOnnxqNodes
from onnxq.passes.quantize.insert_qdq import InsertQDQ
from onnxq.passes.quantize.quantize_dynamically import QuantizeDynamically
from onnxq.passes.quantize.quantize_experts import QuantizeExperts
from onnxq.passes.quantize.quantize_gathers import QuantizeGathers
from onnxq.passes.quantize.replace_matmuls import ReplaceMatMuls
from onnxq.passes.quantize.store_halves import StoreHalves
from onnxq.passes.quantize.store_weights import StoreWeights
from onnxq.plan import Plan
from onnxq.planning.scales import activation_scales
from onnxq.recipe import Recipe
from onnxq.summaries.ranges import Ranges
from onnxq.targets import Target

#: Accuracy levels below this one leave activations as they are.
EXACT_BELOW = 2


def rewrite(model: ir.Model, plan: Plan, ranges: Ranges, recipe: Recipe, target: Target) -> ir.Model:
    """A copy of the prepared `model` in which `plan` is carried out. Nothing is packed yet: new weights are lazy."""
    scales = activation_scales(model, plan, ranges)
    packed: list[ir.passes.PassBase] = [
        ReplaceMatMuls(plan, contrib=target.has_contrib_ops, accuracy_level=recipe.accuracy_level),
        QuantizeGathers(plan),
    ]
    if target.has_onnxq_ops:
        packed = [InsertOnnxqNodes(plan, exact=recipe.accuracy_level < EXACT_BELOW)]
    passes = PassManager(
        [
            InsertQDQ(plan, scales, ranges.ranks, reduce_range=recipe.reduce_range),
            QuantizeDynamically(plan),
            *packed,
            QuantizeExperts(plan),
            StoreWeights(plan, own_nodes=target.has_onnxq_ops),
            ConvertToHalf(plan, {node.name or "" for node in graph.nodes(model)}),
            RemoveUnused(),
            StoreHalves(),
            RemoveUnusedOpsetsPass(),
            TopologicalSortPass(),
        ]
    )
    with algorithms.only(recipe.algorithm):
        return passes(model.clone()).model
