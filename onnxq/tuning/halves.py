"""Which nodes of an int8 plan could compute in bfloat16 instead, and what they and their borders cost then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import onnx_ir as ir

from onnxq import own_ops, targets
from onnxq.model import graph
from onnxq.model.weights import weights_of
from onnxq.passes.regions.bf16.groups import activation_behind
from onnxq.plan import Choice, Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.attention import attention_at
from onnxq.runtime import known
from onnxq.runtime.kernel_times import Kernel
from onnxq.targets import Target

#: Weights may be bfloat16 from this opset on: Cast knows it.
OPSET = 13
#: What becomes part of bf16 regions beside convolutions.
JOINING = (
    *("Relu", "Clip", "LeakyRelu", "HardSigmoid", "Sigmoid", "Tanh", "HardSwish", "Add", "Mul", "Sub", "Div"),
    *("BatchNormalization", "InstanceNormalization", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("ReduceMean", "Concat"),
)
#: Steps that compute convolutions there, and the kernels of products and attentions.
HALF_KERNELS = ("Bf16Region.conv", "Bf16Region.conv_transpose", "DenseMatMul", "Attention")
#: Why a product or an attention is in bfloat16.
HALFWAY = "faster than float, and int8 costs more accuracy than it gives speed"
#: Seconds to round a value to bfloat16, or back, however small it is.
CONVERSION_SECONDS = 4e-6


@dataclass
class HalfCosts:
    """Seconds of one run.

    Attributes:
        seconds: of nodes in bfloat16, less what the activations that convolutions compute too take in float.
        links: (node, node, what it costs if one of the two is in bfloat16 and the other is not).
        alone: by node, what it costs to convert what it reads or makes for others than convolutions, where it is.
        computed: by node, other nodes of the plan whose activation it computes: those cannot be int8 then.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    links: list[tuple[str, str, float]] = field(default_factory=list)
    alone: dict[str, float] = field(default_factory=dict)
    computed: dict[str, list[str]] = field(default_factory=dict)

    def plus(self, seconds: Mapping[str, float]) -> HalfCosts:
        """These costs with so many seconds more for nodes: what their noise is worth."""
        return replace(self, seconds={node: each + seconds.get(node, 0.0) for node, each in self.seconds.items()})


def in_half(choice: Choice) -> Choice:
    """The same node in bfloat16: an attention, which has no weights, a convolution or a product."""
    if choice.format is None:
        return choice.to(Method.FUSED, None, None, HALFWAY)
    if choice.op in int8_regions.CONVOLUTIONS:
        return choice.to(Method.STORED, "bfloat16", None)
    return choice.to(Method.PACKED, "bfloat16", None, HALFWAY)


def are_in_half(plan: Plan, full: Plan) -> list[Choice]:
    """Choices of `plan` that compute in bfloat16 what `full` has in int8."""
    return [
        each for each in plan if full.method(each.node) is Method.STATIC and each == in_half(full.choices[each.node])
    ]


def all_in_half(model: ir.Model, plan: Plan) -> Plan:
    """`plan` with every convolution, product and attention in bfloat16 that it has in int8, without other int8 kernels
    between them; the same plan where the target has no regions, or the file could not say it."""
    opset = graph.opset(model)
    if not int8_regions.has_regions(plan) or opset < OPSET:
        return plan
    static = {choice.node: choice for choice in plan.those(Method.STATIC)}
    target, found = targets.get(plan.target), list[Choice]()
    for node in graph.nodes(model):
        choice = static.get(node.name or "")
        if choice is not None and _may_be_half(node, choice, target, opset):
            found.append(in_half(choice))
    return int8_regions.prune(plan.replacing(found), model)


def _may_be_half(node: ir.Node, choice: Choice, target: Target, opset: int) -> bool:
    is_convolution = choice.op in int8_regions.CONVOLUTIONS
    if not is_convolution and opset < own_ops.FLOAT_OPSET:
        return False
    if choice.format is None:
        return attention_at(node) is not None
    if choice.format != "int8":  # weights of fewer bits were asked for to be small
        return False
    if is_convolution:
        return True
    stored = choice.to(Method.STORED, "bfloat16", None)
    placed = (target.place(weight, stored).method for weight in weights_of(node))
    return choice.op in int8_regions.PRODUCTS and all(method is Method.PACKED for method in placed)


def half_costs(
    model: ir.Model,
    seconds: Mapping[str, float],
    rate: float,
    elements: Mapping[str, int],
    in_float: Mapping[str, float] = MappingProxyType({}),
) -> HalfCosts:
    """What nodes cost that take so many seconds in bfloat16. Products and attentions read and make float.

    Args:
        rate: seconds that an element takes to be converted.
        elements: of activations, on the sample that was timed.
        in_float: seconds that other nodes of the plan take in float.
    """
    found = HalfCosts(dict(seconds))
    nodes = [each for each in graph.nodes(model) if graph.is_op(each, *int8_regions.CONVOLUTIONS)]
    nodes = [each for each in nodes if each.name in seconds]
    convolutions = {each.name or "" for each in nodes}
    for node in nodes:
        name, read, made = node.name or "", node.inputs[0], int8_regions.final_output(node)
        behind = activation_behind(node)
        names = [each.name or "" for each in behind[0]] if behind is not None else []
        found.computed[name] = [each for each in names if each in in_float]
        found.seconds[name] -= sum(in_float[each] for each in found.computed[name])
        price = CONVERSION_SECONDS + rate * elements.get("" if read is None else read.name or "", 0)
        makers = list(_makers(read, convolutions))
        found.links += [(maker, name, price / len(makers)) for maker in makers if maker is not None]
        if None in makers:
            found.alone[name] = found.alone.get(name, 0.0) + price
        if _is_read_outside(made, convolutions):
            price = CONVERSION_SECONDS + rate * elements.get(made.name or "", 0)
            found.alone[name] = found.alone.get(name, 0.0) + price
    return found


def seconds_in_half(kernels: Iterable[Kernel], owners: Mapping[str, str]) -> dict[str, float]:
    """Of nodes of the plan, from the kernels that ran for `all_in_half`.

    Args:
        owners: of kernels, by their names.
    """
    found = ((owners.get(kernel.name), kernel) for kernel in kernels)
    return {node: kernel.seconds for node, kernel in found if node is not None and kernel.op in HALF_KERNELS}


def conversion_rate(kernels: Iterable[Kernel], elements: Mapping[str, int]) -> float:
    """Seconds an element takes to be converted, from the same kernels."""
    seconds = count = 0.0
    for kernel in kernels:
        name = kernel.name.removesuffix("_read").removesuffix("_write")
        if kernel.op in known.HALF_CONVERSIONS and name in elements:
            seconds, count = seconds + kernel.seconds, count + elements[name]
    return seconds / count if count else 0.0


def _makers(value: ir.Value | None, convolutions: Set[str]) -> Iterator[str | None]:
    """The convolutions that a value is made of by what joins them; None: something else has a part in it."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each is None or each in seen or graph.constant(each) is not None:
            continue
        seen.add(each)
        producer = each.producer()
        if producer is not None and producer.name in convolutions:
            yield producer.name
        elif producer is not None and graph.is_op(producer, *JOINING):
            waiting += producer.inputs
        else:
            yield None


def _is_read_outside(value: ir.Value, convolutions: Set[str]) -> bool:
    """Whether anything reads a value, or what is made of it by what joins them, that is no convolution in bfloat16."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        readers = [use.node for use in each.uses()]
        if each.is_graph_output() or not readers:
            return True
        for reader in readers:
            if graph.is_op(reader, *JOINING):
                waiting += reader.outputs
            elif reader.name not in convolutions:
                return True
    return False
