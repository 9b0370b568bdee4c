"""What each node costs in float and in its quantized form, measured, and which plan is the cheapest for these costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.model import graph
from onnxq.plan import COMPUTING, FLOAT_IS_FASTER, Choice, Method, Plan, in_float
from onnxq.planning import int8_regions
from onnxq.planning.attention import attention_at
from onnxq.runtime import known
from onnxq.runtime.kernel_times import Kernel
from onnxq.tuning.halves import HalfCosts, are_in_half, in_half
from onnxq.tuning.mincut import Cut

#: Why nodes are in float that are not by their time alone (`FLOAT_IS_FASTER`): by what their noise is worth.
NOISIER = "costs more accuracy than it gives speed"
#: Seconds that a QuantizeLinear or DequantizeLinear takes however small its tensor, and the layout change beside it.
CONVERSION_SECONDS = 4e-6
#: That an element takes of it, twice, for the layout change: of common models.
UNSEEN_RATE = 4e-10


@dataclass
class Costs:
    """Seconds of one run, by node of the plan.

    Attributes:
        float_seconds: in the float model, with the activation functions fused into the node.
        quantized_seconds: in the fully quantized model, without conversions at the borders.
        conversion: seconds to convert a value from float to int8 or back, by value name.
        release: the same from int8 to float, where that is another time.
        conversion_rate: that an element takes of it; None where no conversion was seen.
        total_float: of the whole float model.
        halves: of nodes in bfloat16, where the target has them.
    """

    float_seconds: dict[str, float] = field(default_factory=dict)
    quantized_seconds: dict[str, float] = field(default_factory=dict)
    conversion: dict[str, float] = field(default_factory=dict)
    total_float: float = 0.0
    conversion_rate: float | None = None
    halves: HalfCosts = field(default_factory=HalfCosts)
    release: dict[str, float] = field(default_factory=dict)

    def released(self, value: str) -> float:
        """Seconds to make floats of the codes of a value."""
        return self.release.get(value, self.conversion.get(value, CONVERSION_SECONDS))

    def optimistic(self) -> Costs:
        """These costs if every quantized kernel took half its float time at most, and conversions none."""
        quantized = {node: min(self.quantized_seconds.get(node, 0.0), t / 2) for node, t in self.float_seconds.items()}
        return Costs(self.float_seconds, quantized, dict.fromkeys(self.conversion, 0.0), self.total_float)


def attribute_costs(
    model: ir.Model, plan: Plan, in_float: Iterable[Kernel], quantized: Iterable[Kernel], elements: Mapping[str, int]
) -> Costs:
    """Costs from the kernels that ran in the float model and in the quantized one.

    Args:
        elements: of each activation that the plan quantizes, on the sample that was timed.
    """
    owners = owners_of(model, plan)
    in_float, quantized = list(in_float), list(quantized)
    in_float = _with_names_of_gelus(in_float, model, owners)
    # An If takes what its branches take, whose kernels are listed too.
    costs = Costs(total_float=sum(kernel.seconds for kernel in in_float if kernel.op != "If"))
    for kernels, found in ((in_float, costs.float_seconds), (quantized, costs.quantized_seconds)):
        for kernel in kernels:
            owner = owners.get(kernel.name)
            if owner is not None:
                found[owner] = found.get(owner, 0.0) + kernel.seconds
    costs.conversion_rate = _conversion_rate(quantized, elements)
    costs.conversion = conversions(costs.conversion_rate, elements)
    return costs


def conversions(rate: float | None, elements: Mapping[str, int]) -> dict[str, float]:
    """Seconds to convert values of so many elements. Without a rate, at what the conversions of other models took."""
    rate = UNSEEN_RATE if rate is None else rate
    return {name: CONVERSION_SECONDS + rate * n for name, n in elements.items()}


def owners_of(model: ir.Model, plan: Plan) -> dict[str, str]:
    """The node of the plan that a kernel belongs to, by the name onnxruntime gives the kernel.

    That is the node's name, or the name of the value it makes, which for a fused activation function is the value
    behind it. An attention has the kernels of all its nodes.
    """
    found: dict[str, str] = {}
    for node in graph.nodes(model):
        choice = plan.choices.get(node.name or "")
        if choice is None:
            continue
        attention = attention_at(node) if choice.method is Method.FUSED else None
        for part in () if attention is None else attention.inner:
            found.update(dict.fromkeys((part.name or "", part.outputs[0].name or ""), choice.node))
        for part in int8_regions.parts_of(node, int8_regions.has_regions(plan)):
            found.setdefault(part.name or "", choice.node)
            found.setdefault(part.outputs[0].name or "", choice.node)
        final = int8_regions.final_output(node) if len(node.outputs) == 1 else node.outputs[0]
        behind = final.producer()
        for name in (choice.node, node.outputs[0].name, final.name, None if behind is None else behind.name):
            found.setdefault(name or "", choice.node)
        follower = graph.only_consumer(node.outputs[0]) if node.op_type == "Conv" else None
        if follower is not None and graph.is_op(follower, *known.FUSED_INTO_CONV):
            found.setdefault(follower.outputs[0].name or "", choice.node)
        found[choice.node] = choice.node
    return found


def _with_names_of_gelus(kernels: list[Kernel], model: ir.Model, owners: Mapping[str, str]) -> list[Kernel]:
    """`kernels`, in which those of Gelus, which onnxruntime calls after nothing in the model, are called after nodes of
    the plan: in the order in which they ran, where that is as many."""
    found = list(kernels)
    for part, ops in (("Erf", ("Gelu", "BiasGelu")), ("Tanh", ("FastGelu",))):
        places = [i for i, kernel in enumerate(kernels) if kernel.op in ops and kernel.name not in owners]
        parts = (owners.get(node.name or "") for node in graph.nodes(model) if node.op_type == part)
        names = dict.fromkeys(name for name in parts if name is not None)
        if len(places) == len(names):
            for place, name in zip(places, names, strict=True):
                found[place] = replace(kernels[place], name=name)
    return found


def _conversion_rate(quantized: Iterable[Kernel], elements: Mapping[str, int]) -> float | None:
    """Seconds an element takes to be converted, layout change included, from the conversions that did run."""
    seconds = count = 0.0
    for kernel in quantized:
        name = kernel.name.removesuffix("_QuantizeLinear").removesuffix("_DequantizeLinear")
        if kernel.op in ("QuantizeLinear", "DequantizeLinear") and name in elements:
            # Twice, for the layout change that goes with them; steps of regions change it themselves.
            seconds += 2 * max(0.0, kernel.seconds - CONVERSION_SECONDS / 2)
            count += elements[name]
        elif kernel.op in known.REGION_CONVERSIONS and name in elements:
            seconds += kernel.seconds
            count += elements[name]
    return seconds / count if count else None


def unfused(model: ir.Model, plan: Plan, quantized: Iterable[Kernel]) -> list[Choice]:
    """Nodes that should have become an integer kernel but ran in float behind their DequantizeLinear."""
    owners = owners_of(model, plan)
    ran = {(owners.get(kernel.name), kernel.op) for kernel in quantized}
    return [
        c for c in plan.those(Method.STATIC) if any((c.node, op) in ran for op in known.FLOAT_KERNELS.get(c.op, ()))
    ]


def predicted_seconds(plan: Plan, measured: Costs, full: Plan) -> float:
    """Seconds of one run of `plan`, from the costs of its nodes. `full` is the plan that was measured."""
    quantized = {choice.node for choice in plan.those(*COMPUTING)}
    halves = {choice.node for choice in are_in_half(plan, full)}
    seconds = measured.total_float
    for choice in full.those(*COMPUTING):
        in_float = measured.float_seconds.get(choice.node, 0.0)
        if choice.node in halves:
            seconds += measured.halves.seconds.get(choice.node, in_float) - in_float
        elif choice.node in quantized:
            seconds += measured.quantized_seconds.get(choice.node, 0.0) - in_float
    return seconds


def borders(model: ir.Model, plan: Plan, costs: Costs) -> float:
    """Seconds that `plan` converts values for, where int8 meets float."""
    int8_makers = int8_regions.int8_makers(model, plan)
    static = {c.node for c in plan.those(Method.STATIC)}
    seconds = 0.0
    for value, producer, readers, others in _crossings(
        list(graph.nodes(model)), static, int8_regions.has_regions(plan)
    ):
        is_made = producer in int8_makers
        if readers and not is_made:
            seconds += costs.conversion.get(value.name or "", CONVERSION_SECONDS)
        elif is_made and others:
            seconds += costs.released(value.name or "")
    return seconds


def cheapest(model: ir.Model, plan: Plan, costs: Costs, harm: Mapping[str, float]) -> Plan:
    """`plan` with those nodes back in float that cost more than they give.

    The sum to be made small is seconds of all nodes, plus conversions wherever int8 meets float, plus `harm` (seconds
    that a node's quantization noise is taken to be worth) of all quantized nodes: a minimum cut. Some may be in
    bfloat16 too: as what is in int8 converts to float before it converts to bfloat16, the three lie in a row, and two
    yes-or-no questions about a node say all; that both are answered by yes is impossible.
    """
    cut = Cut()
    int8_makers = int8_regions.int8_makers(model, plan)
    for choice in plan.those(*COMPUTING):
        quantized = costs.quantized_seconds.get(choice.node, 0.0) + harm.get(choice.node, 0.0)
        cut.cost(choice.node, first=quantized, second=costs.float_seconds.get(choice.node, 0.0))
    static = {c.node for c in plan.those(Method.STATIC)}
    nodes = [node for node in graph.nodes(model) if node.name in static]
    for value, producer, readers, others in _crossings(nodes, static, int8_regions.has_regions(plan)):
        price = costs.conversion.get(value.name or "", CONVERSION_SECONDS)
        maker = producer if producer in int8_makers else None
        if readers:
            # Quantized once, if any reader is int8 and the producer is not.
            wanted = ("wanted", value.name)
            for reader in readers:
                cut.apart(reader, wanted, math.inf)
            if maker is None:
                cut.cost(wanted, first=price, second=0)
            else:
                cut.apart(wanted, maker, price)
        if maker is not None:
            # Dequantized once, if the producer is int8 and any reader is not; a product makes floats for one reader.
            price = costs.released(value.name or "")
            if others:
                cut.cost(maker, first=price, second=0)
            elif len(readers) > 1 or plan.choices[maker].op not in int8_regions.PRODUCTS:
                unwanted = ("unwanted", value.name)
                for reader in readers:
                    cut.apart(unwanted, reader, math.inf)
                cut.apart(maker, unwanted, price)
            for reader in readers:
                if int8_regions.has_no_weights(plan.choices[reader]):
                    cut.apart(reader, maker, math.inf)
    _offer_halves(cut, costs, static)
    kept = cut.first_side()
    reason = FLOAT_IS_FASTER if not harm else NOISIER
    back = [c for c in plan.those(*COMPUTING) if c.node not in kept]
    halves = {c.node for c in back if c.node in costs.halves.seconds and _not_half(c.node) not in kept}
    made = (in_half(c) if c.node in halves else in_float(c, reason) for c in back)
    return int8_regions.prune(plan.replacing(made), model)


def _not_half(node: str) -> tuple[str, str]:
    """What is on the first side where a node is not in bfloat16."""
    return ("not in bfloat16", node)


def _offer_halves(cut: Cut, costs: Costs, static: set[str]) -> None:
    """Let nodes that are not in int8 be in bfloat16."""
    halves = costs.halves
    offered = static & halves.seconds.keys()
    for node in sorted(offered):
        gained = halves.seconds[node] - costs.float_seconds.get(node, 0.0) + halves.alone.get(node, 0.0)
        cut.cost(_not_half(node), first=0.0, second=gained)
        for each in (node, *(other for other in halves.computed.get(node, []) if other in static)):
            cut.apart(each, _not_half(node), math.inf)
    for some, other, price in halves.links:
        if some in offered and other in offered:
            cut.apart(_not_half(some), _not_half(other), price)
            cut.apart(_not_half(other), _not_half(some), price)


def _crossings(
    nodes: list[ir.Node], static: set[str], regions: bool
) -> Iterable[tuple[ir.Value, str | None, list[str], bool]]:
    """(value, the static node that makes it, static nodes that read it, whether anybody else reads it)."""
    values: dict[int, tuple[ir.Value, list[str]]] = {}
    for node in nodes:
        for value in dict.fromkeys(each.inputs[i] for each, i in int8_regions.reads(node, regions)):
            if value is not None and graph.constant(value) is None:
                values.setdefault(id(value), (value, []))[1].append(node.name or "")
    for node in nodes:
        outputs = [int8_regions.result_of(node, regions)] if len(node.outputs) == 1 else list(node.outputs)
        for value in outputs:
            values.setdefault(id(value), (value, []))
    in_chains = {each.name for node in nodes if node.name in static for each, _ in int8_regions.reads(node, regions)}
    for value, readers in values.values():
        producer = int8_regions.maker_of(value, regions)
        name = None if producer is None or producer.name not in static else producer.name
        others = value.is_graph_output() or any(use.node.name not in static | in_chains for use in value.uses())
        yield value, name, readers, others
