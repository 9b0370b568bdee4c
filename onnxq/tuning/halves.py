"""Which convolutions of an int8 plan could compute in bfloat16 instead, and what they and their borders cost then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import onnx_ir as ir

from onnxq.model import graph
from onnxq.passes.regions.bf16.groups import activation_behind
from onnxq.plan import Choice, Method, Plan
from onnxq.planning import int8_regions
from onnxq.runtime import known
from onnxq.runtime.kernel_times import Kernel

#: Weights may be bfloat16 from this opset on: Cast knows it.
OPSET = 13
#: What becomes part of bf16 regions beside convolutions.
JOINING = (
    *("Relu", "Clip", "LeakyRelu", "HardSigmoid", "Sigmoid", "Tanh", "HardSwish", "Add", "Mul", "Sub", "Div"),
    *("BatchNormalization", "InstanceNormalization", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("ReduceMean", "Concat"),
)
#: Steps that compute convolutions there.
HALF_KERNELS = ("Bf16Region.conv", "Bf16Region.conv_transpose")
#: Seconds to round a value to bfloat16, or back, however small it is.
CONVERSION_SECONDS = 4e-6


@dataclass
class HalfCosts:
    """Seconds of one run.

    Attributes:
        seconds: of convolutions in bfloat16, by node, less what the activations that they compute too take in float.
        links: (node, node, what it costs if one of the two is in bfloat16 and the other is not).
        alone: by node, what it costs to convert what it reads or makes for others than convolutions, where it is.
        computed: by node, other nodes of the plan whose activation it computes: those cannot be int8 then.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    links: list[tuple[str, str, float]] = field(default_factory=list)
    alone: dict[str, float] = field(default_factory=dict)
    computed: dict[str, list[str]] = field(default_factory=dict)

    def plus(self, seconds: Mapping[str, float]) -> HalfCosts:
        """These costs with so many seconds more for convolutions: what their noise is worth."""
        return replace(self, seconds={node: each + seconds.get(node, 0.0) for node, each in self.seconds.items()})


def in_half(choice: Choice) -> Choice:
    """The same convolution in bfloat16."""
    return choice.to(Method.STORED, "bfloat16", None)


def all_in_half(model: ir.Model, plan: Plan) -> Plan:
    """`plan` with every convolution in bfloat16 that it has in int8, without other int8 kernels between them; the same
    plan where the target has no regions, or the file could not say it."""
    if not int8_regions.has_regions(plan) or graph.opset(model) < OPSET:
        return plan
    # Weights of fewer bits were asked for to be small.
    convolutions = [c for c in plan.those(Method.STATIC) if c.op in int8_regions.CONVOLUTIONS and c.format == "int8"]
    return int8_regions.prune(plan.replacing(in_half(choice) for choice in convolutions), model)


def half_costs(
    model: ir.Model,
    seconds: Mapping[str, float],
    rate: float,
    elements: Mapping[str, int],
    in_float: Mapping[str, float] = MappingProxyType({}),
) -> HalfCosts:
    """What convolutions cost that take so many seconds in bfloat16, by node.

    Args:
        rate: seconds that an element takes to be converted.
        elements: of activations, on the sample that was timed.
        in_float: seconds that other nodes of the plan take in float.
    """
    found = HalfCosts(dict(seconds))
    for node in [each for each in graph.nodes(model) if each.name in found.seconds]:
        name, read, made = node.name or "", node.inputs[0], int8_regions.final_output(node)
        behind = activation_behind(node)
        names = [each.name or "" for each in behind[0]] if behind is not None else []
        found.computed[name] = [each for each in names if each in in_float]
        found.seconds[name] -= sum(in_float[each] for each in found.computed[name])
        price = CONVERSION_SECONDS + rate * elements.get("" if read is None else read.name or "", 0)
        makers = list(_makers(read, found.seconds))
        found.links += [(maker, name, price / len(makers)) for maker in makers if maker is not None]
        if None in makers:
            found.alone[name] = found.alone.get(name, 0.0) + price
        if _is_read_outside(made, found.seconds):
            price = CONVERSION_SECONDS + rate * elements.get(made.name or "", 0)
            found.alone[name] = found.alone.get(name, 0.0) + price
    return found


def seconds_in_half(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Of convolutions, by node, from the kernels that ran for `all_in_half`."""
    return {kernel.name: kernel.seconds for kernel in kernels if kernel.op in HALF_KERNELS}


def conversion_rate(kernels: Iterable[Kernel], elements: Mapping[str, int]) -> float:
    """Seconds an element takes to be converted, from the same kernels."""
    seconds = count = 0.0
    for kernel in kernels:
        name = kernel.name.removesuffix("_read").removesuffix("_write")
        if kernel.op in known.HALF_CONVERSIONS and name in elements:
            seconds, count = seconds + kernel.seconds, count + elements[name]
    return seconds / count if count else 0.0


def _makers(value: ir.Value | None, convolutions: Mapping[str, float]) -> Iterator[str | None]:
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


def _is_read_outside(value: ir.Value, convolutions: Mapping[str, float]) -> bool:
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
