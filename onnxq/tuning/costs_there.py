"""What each node costs in the runtime that plans are for, by the kernels that ran there.

Such a runtime does the work of many nodes in one kernel, and says of which. A kernel with weights among them is that
node's; what only rounds, or only makes floats of codes, is a conversion of the value that it is called after, with the
change of layout before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxq.model import graph
from onnxq.plan import Plan
from onnxq.planning import int8_regions
from onnxq.runtime.kernel_times import Kernel
from onnxq.tuning.costs import UNSEEN_RATE, Costs, owners_of

#: Seconds that a kernel takes there however small its tensor.
LEAST = 1e-6
#: Kernels that may do nothing but convert. Others, as of norms, that are called after a rounding round what they make.
CONVERSIONS = frozenset({"Convert", "Eltwise", "FakeQuantize", "PowerStatic", "Reorder", "Subgraph"})


def costs_there(
    model: ir.Model, plan: Plan, in_float: Iterable[Kernel], quantized: Iterable[Kernel], elements: Mapping[str, int]
) -> Costs:
    """Costs from the kernels that ran there for the plan in float and for `plan`, with every node in integers.

    Args:
        elements: of each activation that the plan quantizes, on the sample that was timed.
    """
    in_float, quantized, owners = list(in_float), list(quantized), owners_of(model, plan)
    heavy = {choice.node for choice in plan if choice.elements}
    costs = Costs(total_float=sum(kernel.seconds for kernel in in_float))
    for kernels, found in ((in_float, costs.float_seconds), (quantized, costs.quantized_seconds)):
        for kernel in kernels:
            owner = _owner(kernel, owners, heavy)
            if owner is not None:
                found[owner] = found.get(owner, 0.0) + kernel.seconds
    nodes = {node.name for node in graph.nodes(model)}
    alone = [k for k in quantized if k.op in CONVERSIONS and nodes.isdisjoint((k.name, *k.others))]
    rounding = _by_value(alone, "_QuantizeLinear", elements)
    seen = sum(elements[name] for name in rounding)
    rate = max(0.0, sum(rounding.values()) - LEAST * len(rounding)) / seen if seen else UNSEEN_RATE
    guessed = {name: LEAST + rate * n for name, n in elements.items()}
    makers = _makers(model, plan)
    joined = _by_value(quantized, "_QuantizeLinear", elements).keys() - rounding.keys()
    for name in elements:
        # What rounds behind another operator in float takes no time of its own; behind a kernel in float it may.
        is_free = name in joined and name not in makers
        costs.conversion[name] = 0.0 if is_free else rounding.get(name, guessed[name])
    unpacking = _by_value(alone, "_DequantizeLinear", elements)
    others = (name for name in elements if name in makers)
    costs.release = {name: unpacking.get(name, guessed[name]) for name in others} | made_in_floats(model, plan)
    costs.conversion_rate = rate
    return costs


def made_in_floats(model: ir.Model, plan: Plan) -> dict[str, float]:
    """Values that integer kernels make in floats as well as in codes, with the seconds that it takes more: none."""
    heavy = int8_regions.CONVOLUTIONS | int8_regions.PRODUCTS
    return {name: 0.0 for name, maker in _makers(model, plan).items() if plan.choices[maker].op in heavy}


def _owner(kernel: Kernel, owners: Mapping[str, str], heavy: set[str]) -> str | None:
    found = [owners[name] for name in (kernel.name, *kernel.others) if name in owners]
    return next((owner for owner in found if owner in heavy), found[0] if found else None)


def _by_value(kernels: Iterable[Kernel], suffix: str, values: Mapping[str, int]) -> dict[str, float]:
    """Seconds of the kernels that are called after these values."""
    found: dict[str, float] = {}
    for kernel in kernels:
        names = (name.removesuffix(suffix) for name in (kernel.name, *kernel.others) if name.endswith(suffix))
        value = next((each for name in names if (each := _called_after(name, values)) is not None), None)
        if value is not None:
            found[value] = found.get(value, 0.0) + kernel.seconds
    return found


def _called_after(name: str, values: Mapping[str, int]) -> str | None:
    """The value that a kernel's name ends with: before it may stand from where it is brought, and in which layouts."""
    if name in values:
        return name
    words = name.split("_")
    return next((end for i in range(1, len(words)) if (end := "_".join(words[i:])) in values), None)


def _makers(model: ir.Model, plan: Plan) -> dict[str, str]:
    """By value, the static node that makes it."""
    static = int8_regions.int8_makers(model, plan)
    found: dict[str, str] = {}
    for node in graph.nodes(model):
        if node.name in static:
            outputs = [int8_regions.final_output(node)] if len(node.outputs) == 1 else list(node.outputs)
            found |= {value.name or "": node.name or "" for value in outputs}
    return found
