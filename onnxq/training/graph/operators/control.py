"""If, Loop and Scan run their bodies; sequences are lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, as_list, operator


@operator("If", constants=[0])
def if_(call: Call, condition: Tensor) -> tuple[Any, ...]:
    return tuple(call.body("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"))


@operator("Loop", constants=[0, 1])
def loop(call: Call, trips: Tensor | None, condition: Tensor | None, *carried: Any) -> tuple[Any, ...]:
    most = None if trips is None else int(trips)
    goes_on, state, i = condition is None or bool(condition), list(carried), 0
    scanned: list[list[Tensor]] = [[] for _ in range(call.outputs - len(carried))]
    while goes_on and (most is None or i < most):
        number, still = torch.tensor(i, dtype=torch.int64), torch.tensor(goes_on)
        again, *found = call.body("body", number, still, *state)
        state = found[: len(carried)]
        for into, each in zip(scanned, found[len(carried) :], strict=True):
            into.append(each)
        goes_on, i = bool(again), i + 1
    if scanned and not i:
        raise call.refuse("it makes no step, so that nothing tells the shape of what its steps add up to")
    return (*state, *(torch.stack(each) for each in scanned))


@operator("Scan")
def scan(call: Call, *inputs: Any) -> tuple[Any, ...]:
    if call.opset < 9:
        raise call.refuse("Scan of opset 8")
    over = call.get("num_scan_inputs")
    count = len(inputs) - over
    state, scanned = list(inputs[:count]), inputs[count:]
    axes = call.get("scan_input_axes") or [0] * over
    turns = call.get("scan_input_directions") or [0] * over
    rows = [x.movedim(axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    rows = [x.flip(0) if turned else x for x, turned in zip(rows, turns, strict=True)]
    made: list[list[Tensor]] = []
    for i in range(len(rows[0])):
        found = call.body("body", *state, *(row[i] for row in rows))
        state = found[:count]
        made.append(found[count:])
    outputs = [torch.stack(each) for each in zip(*made, strict=True)]
    turns = call.get("scan_output_directions") or [0] * len(outputs)
    axes = call.get("scan_output_axes") or [0] * len(outputs)
    outputs = [x.flip(0) if turned else x for x, turned in zip(outputs, turns, strict=True)]
    return (*state, *(x.movedim(0, axis) for x, axis in zip(outputs, axes, strict=True)))


@operator("SequenceConstruct")
def sequence_construct(call: Call, *inputs: Tensor) -> list[Tensor]:
    return list(inputs)


@operator("SequenceEmpty")
def sequence_empty(call: Call) -> list[Tensor]:
    return []


@operator("SequenceAt", constants=[1])
def sequence_at(call: Call, sequence: list[Tensor], position: Tensor) -> Tensor:
    return sequence[int(position)]


@operator("SequenceInsert", constants=[2])
def sequence_insert(call: Call, sequence: list[Tensor], x: Tensor, position: Tensor | None = None) -> list[Tensor]:
    made = list(sequence)
    made.insert(len(made) if position is None else int(position), x)
    return made


@operator("SequenceErase", constants=[1])
def sequence_erase(call: Call, sequence: list[Tensor], position: Tensor | None = None) -> list[Tensor]:
    made = list(sequence)
    del made[-1 if position is None else int(position)]
    return made


@operator("SequenceLength", gradient=False)
def sequence_length(call: Call, sequence: list[Tensor]) -> Tensor:
    return torch.tensor(len(sequence), dtype=torch.int64)


@operator("ConcatFromSequence")
def concat_from_sequence(call: Call, sequence: list[Tensor]) -> Tensor:
    join = torch.stack if call.get("new_axis", 0) else torch.cat
    return join(sequence, call.get("axis"))


@operator("SplitToSequence", constants=[1])
def split_to_sequence(call: Call, x: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
    axis = call.get("axis", 0)
    if sizes is None:
        parts = list(torch.split(x, 1, axis))
        return parts if call.get("keepdims", 1) else [part.squeeze(axis) for part in parts]
    return list(torch.split(x, int(sizes) if sizes.ndim == 0 else as_list(sizes), axis))
