"""From ranges to the scale and zero point of every quantized activation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import targets
from onnxq.model import graph
from onnxq.plan import Method, Plan, in_float
from onnxq.planning import int8_regions
from onnxq.runtime import known
from onnxq.summaries.ranges import Grid, Range, Ranges

#: Lowest and highest code by number format. uint8 is the only type of activations for which every x86 kernel is fast;
#: others are for other targets. int8 and float8 are symmetric: their zero point is 0.
CODES = {"uint8": (0, 255), "uint16": (0, 65535), "int8": (-127, 127), "float8_e4m3": (-448, 448)}

#: The format of values that kernels without zero points read, where some of them are negative.
CENTRED = "int8"


@dataclass(frozen=True)
class Scale:
    """x ≈ scale · (code − zero point), codes as the format has them."""

    scale: float
    zero_point: int
    format: str = "uint8"

    @property
    def low(self) -> float:
        return self.scale * (CODES[self.format][0] - self.zero_point)

    @property
    def high(self) -> float:
        return self.scale * (CODES[self.format][1] - self.zero_point)


Scales = dict[str, Scale]


def grid_of(plan: Plan) -> Grid:
    """The codes that ranges of the plan's activations are spread over."""
    lowest, highest = CODES[targets.get(plan.target).activations_of(plan.scheme)]
    return Grid(highest - lowest, symmetric=lowest < 0)


def values_to_observe(model: ir.Model, plan: Plan) -> list[str]:
    """Names of the activations whose range the plan needs, in order of execution."""
    found: dict[str, None] = {}
    for node in _static_nodes(model, plan):
        for value in _activations(node, plan):
            found.setdefault(value.name or "")
    return list(found)


def without_unobserved(model: ir.Model, plan: Plan, ranges: Ranges) -> Plan:
    """`plan` with those nodes back in float of which an activation has no range, each with the reason."""
    while True:
        back = []
        for node in _static_nodes(model, plan):
            missing = [v.name or "" for v in _activations(node, plan) if v.name not in ranges.values]
            if missing:
                why = ranges.problems.get(missing[0], "it was not observed")
                back.append(in_float(plan.choices[node.name or ""], f"no range for '{missing[0]}': {why}"))
        if not back:
            return plan
        plan = int8_regions.prune(plan.replacing(back), model)


def activation_scales(model: ir.Model, plan: Plan, ranges: Ranges) -> Scales:
    """The scale of each value in `values_to_observe`.

    Values that a kernel passes through unchanged (MaxPool, Reshape …) share one scale, and so do the inputs and the
    output of a Concat: a branch with a finer scale of its own would only be rounded a second time. What the model
    decodes itself keeps the scale that it has there: onnxruntime would make one pair of two, and round by neither. The
    others of its group take that over only where it holds them.
    """
    groups = _Groups()
    producers: dict[str, ir.Node] = {}
    for node in _static_nodes(model, plan):
        for value in _outputs(node, plan):
            producers[value.name or ""] = node
    for node in _static_nodes(model, plan):
        choice = plan.choices[node.name or ""]
        if choice.op in known.SAME_SCALE | known.MOVED_IN_REGIONS or choice.op == "Concat":
            names = [value.name or "" for value in _activations(node, plan)]
            _tie(groups, names, ranges, producers)
    scales: Scales = {}
    usual, centred = targets.get(plan.target).activations_of(plan.scheme), _centred(model, plan)
    decoded = {
        value.name: found
        for node in _static_nodes(model, plan)
        for value in _read(node, plan)
        if (found := scale_in_file(value)) is not None and found.format == usual
    }
    for name in values_to_observe(model, plan):
        if name in decoded:
            scales[name] = decoded[name]
            continue
        members = groups.members(name)
        others = [member for member in members if member not in decoded]
        joint = ranges.values[others[0]]
        for member in others[1:]:
            joint = joint.union(ranges.values[member])
        own = next((decoded[member] for member in members if member in decoded), None)
        if own is not None and _covers(own, joint):
            scales[name] = own
            continue
        clip = next((c for m in members if (c := _clip_of(producers.get(m))) is not None), None)
        is_centred = joint.low < 0 and not centred.isdisjoint(members)
        scales[name] = to_scale(joint, clip, CENTRED if is_centred else usual)
    return scales


def scale_in_file(value: ir.Value) -> Scale | None:
    """That of a value which the model decodes from codes of 8 bits with a zero point."""
    maker, codes = value.producer(), graph.decoded(value)
    if maker is None or codes is None or graph.constant(codes) is not None:
        return None
    scale, zero = (graph.constant(each) for each in (*maker.inputs[1:], None, None)[:2])
    if scale is None or zero is None or zero.dtype != ir.DataType.UINT8 or scale.size != 1 or zero.size != 1:
        return None
    found = float(scale.numpy().item())
    return Scale(found, int(zero.numpy().item())) if 0 < found < np.inf else None


def _covers(scale: Scale, r: Range) -> bool:
    """Whether no number of `r` is further from a code than half a step."""
    half = scale.scale / 2
    return scale.low - half <= r.low and r.high <= scale.high + half


def _centred(model: ir.Model, plan: Plan) -> set[str]:
    """Values that are read by kernels which know no zero point but 0."""
    operators = targets.get(plan.target).without_zero_points
    nodes = [node for node in _static_nodes(model, plan) if node.op_type in operators]
    return {value.name or "" for node in nodes for value in _read(node, plan)}


def to_scale(r: Range, clip: Range | None = None, format: str = "uint8") -> Scale:
    """The finest scale whose codes cover `r` and zero.

    With `clip`, the range of an activation function that the kernel absorbs, no code may lie outside of it.
    """
    low, high = min(r.low, 0.0), max(r.high, 0.0)
    lowest, highest = CODES[format]
    scale = max(-low, high) / highest if lowest < 0 else (high - low) / highest
    if not scale > np.finfo(np.float32).tiny:
        return Scale(1.0, 0, format)
    if lowest < 0:
        return Scale(float(np.float32(scale)), 0, format)
    zero = round(-low / scale)
    if clip is not None and low < 0 and clip.high <= 0:  # zero has a code, above which there is none
        zero = highest
    elif clip is not None and low < 0:
        zero = int(np.floor(-low / scale))
        scale = min(scale, clip.high / (highest - zero)) if zero < highest else scale
    return Scale(float(np.float32(scale)), min(max(zero, 0), highest), format)


def _static_nodes(model: ir.Model, plan: Plan) -> list[ir.Node]:
    chosen = {choice.node for choice in plan.those(Method.STATIC)}
    return [node for node in graph.nodes(model) if node.name in chosen] if chosen else []


def _activations(node: ir.Node, plan: Plan) -> list[ir.Value]:
    """What the node's int8 kernel reads and makes, constants aside."""
    return _read(node, plan) + _outputs(node, plan)


def _read(node: ir.Node, plan: Plan) -> list[ir.Value]:
    read = [reader.inputs[index] for reader, index in int8_regions.reads(node, regions=int8_regions.has_regions(plan))]
    return [value for value in read if value is not None and graph.constant(value) is None]


def _outputs(node: ir.Node, plan: Plan) -> list[ir.Value]:
    if not int8_regions.makes_int8(plan.choices.get(node.name or ""), plan):
        return []
    if len(node.outputs) > 1:
        return [output for output in node.outputs if output.name]
    return [int8_regions.result_of(node, int8_regions.has_regions(plan))]


def _tie(groups: _Groups, names: list[str], ranges: Ranges, producers: dict[str, ir.Node]) -> None:
    """Give all `names` one scale, unless a kernel that absorbs an activation could then not absorb it any more."""
    members = [member for name in names for member in groups.members(name)]
    low = min(ranges.values[member].low for member in members)
    for member in members:
        clip = _clip_of(producers.get(member))
        if clip is not None and low < min(clip.low, 0) - 1e-12:
            return
    for name in names[1:]:
        groups.join(names[0], name)


def _clip_of(producer: ir.Node | None) -> Range | None:
    """The range of the Relu or Clip that `producer`'s kernel absorbs."""
    if producer is None or len(producer.outputs) != 1:
        return None
    final = int8_regions.final_output(producer)
    if final is producer.outputs[0]:
        return None
    activation = final.producer()
    assert activation is not None
    if activation.op_type == "Relu":
        return Range(0.0, np.inf)
    bounds = []
    for index, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        tensor = graph.constant(activation.inputs[index]) if index < len(activation.inputs) else None
        attribute = graph.attribute_float(activation, name, default)
        bounds.append(attribute if tensor is None else float(tensor.numpy().reshape(())))
    return Range(*bounds)


class _Groups:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._members: dict[str, list[str]] = {}

    def members(self, name: str) -> list[str]:
        return self._members.setdefault(name, [name])

    def join(self, a: str, b: str) -> None:
        one, other = self.members(a), self.members(b)
        if one is not other:
            one.extend(other)
            for name in other:
                self._members[name] = one
