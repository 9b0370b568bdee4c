"""Recurrent: LSTM, GRU or RNN of the standard, whose weights are unpacked from tiles (`layouts.recurrent_tiles`).

Here activations stay as they are; runtimes fold what makes the weights float. Which of the inputs behind the weights
there are is part of the variant, as what a function is not given, some runtimes do not leave out inside.
"""

from __future__ import annotations

from onnxq.own_ops import RECURRENT, RECURRENT_INPUTS, Variant
from onnxq.own_ops._parts import FLOAT

#: Attributes that are the standard operator's too, by the word of that; besides hidden_size and direction.
_OWN = {"lstm": (), "gru": ("linear_before_reset",), "rnn": ()}


def lines(v: Variant) -> list[str]:
    cell, *words = v.moved.split("_")
    clips = "clip" in words
    given = [name for name in RECURRENT_INPUTS if name.rpartition("_")[2] in words]
    passed = ["x", "w", "r", *(name if name in given else "" for name in RECURRENT_INPUTS)]
    while not passed[-1]:
        passed.pop()
    outputs = ["y", "last_h", *["last_c"] * (cell == "lstm")]
    kept = ["hidden_size", *_OWN[cell]]
    attributes = [f"{name}: int = @{name}" for name in kept] + ["direction: string = @direction"]
    if clips:
        attributes.append("clip: float = @clip")
    names = [*kept, "direction", "input_size", "cell", "activations", *["clip"] * clips]
    formal = ["x", "weight", "weight_scales", "recurrence", "recurrence_scales", *_formal(given)]
    return [
        f"{RECURRENT} <{', '.join(names)}> ({', '.join(formal)}) => ({', '.join(outputs)}) {{",
        "rest = Constant <value_ints = [-1]> ()",
        "two = Constant <value_ints = [2]> ()",
        "three = Constant <value_ints = [3]> ()",
        "four = Constant <value_ints = [4]> ()",
        "origin = Constant <value_ints = [0, 0]> ()",
        "last_axes = Constant <value_ints = [2, 3]> ()",
        "of_scales = Constant <value_ints = [2, 5]> ()",
        "tiles_merged = Constant <value_ints = [0, 0, -1]> ()",
        "gates_merged = Constant <value_ints = [0, -1]> ()",
        "middle = Constant <value = float {128}> ()",
        "h0 = Constant <value_int: int = @hidden_size> ()",
        "h = Reshape (h0, rest)",
        "i0 = Constant <value_int: int = @input_size> ()",
        "i = Reshape (i0, rest)",
        *_unpacked("weight", "i", "w"),
        *_unpacked("recurrence", "h", "r"),
        f"{', '.join(outputs)} = {cell.upper()} <{', '.join(attributes)}> ({', '.join(passed)})",
        "}",
    ]


def _formal(given: list[str]) -> list[str]:
    """Names of the inputs behind the weights, as many as there have to be."""
    last = max((RECURRENT_INPUTS.index(name) for name in given), default=-1)
    return [name if name in given else f"no_{name}" for name in RECURRENT_INPUTS[: last + 1]]


def _unpacked(codes: str, k: str, made: str) -> list[str]:
    """[D, T, K/4, G, 16, 4] as floats [D, G · H, K]."""
    return [
        f"{made}_float = Cast <to = {FLOAT}> ({codes})",
        f"{made}_centered = Sub ({made}_float, middle)",
        f"{made}_steps = Unsqueeze ({codes}_scales, of_scales)",  # [D, T, 1, G, 16, 1]
        f"{made}_scaled = Mul ({made}_centered, {made}_steps)",
        f"{made}_turned = Transpose <perm = [0, 3, 1, 4, 2, 5]> ({made}_scaled)",  # [D, G, T, 16, K/4, 4]
        f"{made}_sizes = Shape ({codes})",
        f"{made}_fours = Slice ({made}_sizes, two, three)",
        f"{made}_columns = Mul ({made}_fours, four)",
        f"{made}_padded_shape = Concat <axis = 0> (tiles_merged, {made}_columns)",
        f"{made}_padded = Reshape ({made}_turned, {made}_padded_shape)",  # [D, G, 16 T, K rounded up]
        f"{made}_end = Concat <axis = 0> (h, {k})",
        f"{made}_gates = Slice ({made}_padded, origin, {made}_end, last_axes)",
        f"{made}_shape = Concat <axis = 0> (gates_merged, {k})",
        f"{made} = Reshape ({made}_gates, {made}_shape)",
    ]
