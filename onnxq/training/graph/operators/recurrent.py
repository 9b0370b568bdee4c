"""LSTM, GRU and RNN, step by step, in the notation of ONNX's specification."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, operator

Step = Callable[[Tensor, "list[Tensor]"], "list[Tensor]"]
_ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: functional.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: functional.threshold(x, a, 0.0),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "hardsigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "elu": lambda x, a, b: functional.elu(x, a),
    "softsign": lambda x, a, b: functional.softsign(x),
    "softplus": lambda x, a, b: functional.softplus(x),
}
#: Numbers of functions that are not given any.
_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
_BETA = {"scaledtanh": 1.0, "hardsigmoid": 0.5}


def _functions(call: Call, direction: int, usual: list[str]) -> list[Callable[[Tensor], Tensor]]:
    """The activation functions of one direction; numbers are given to those that take some, in turns."""
    names = [word.lower() for word in call.get("activations") or usual * 2]
    alphas, betas = iter(call.get("activation_alpha") or []), iter(call.get("activation_beta") or [])
    made: list[Callable[[Tensor], Tensor]] = []
    for name in names:
        if name not in _ACTIVATIONS:
            raise call.refuse(f"activation function '{name}'")
        a = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
        b = next(betas, _BETA.get(name, 0.0)) if name in _BETA or name == "affine" else 0.0
        made.append(functools.partial(_activated, name, a, b))
    n = len(usual)
    return made[direction * n : (direction + 1) * n]


def _activated(name: str, a: float, b: float, x: Tensor) -> Tensor:
    return _ACTIVATIONS[name](x, a, b)


def _unrolled(
    call: Call,
    x: Tensor,
    lengths: Tensor | None,
    states: list[Tensor],
    steps: Callable[[int], Step],
) -> tuple[Tensor, ...]:
    """Y and the last of each state: [steps, directions, batch, hidden] and [directions, batch, hidden].

    Args:
        steps: for a direction, from an input and states to states, the first of which is the output.
    """
    if call.get("layout", 0):
        raise call.refuse("layout 1")
    words = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    every, lasts = [], []
    for direction, is_reverse in enumerate(words[call.get("direction", "forward")]):
        step, now = steps(direction), [state[direction] for state in states]
        seen: list[Tensor] = [now[0]] * len(x)
        for t in reversed(range(len(x))) if is_reverse else range(len(x)):
            new = step(x[t], now)
            out = new[0]
            if lengths is not None:
                alive = (t < lengths).reshape(-1, 1)
                out = torch.where(alive, out, torch.zeros_like(out))
                new = [torch.where(alive, a, b) for a, b in zip(new, now, strict=True)]
            now, seen[t] = new, out
        every.append(torch.stack(seen) if seen else x.new_zeros(0, *now[0].shape))
        lasts.append(now)
    return torch.stack(every, 1), *(torch.stack(each) for each in zip(*lasts, strict=True))


def _start(given: Tensor | None, x: Tensor, r: Tensor) -> Tensor:
    return x.new_zeros(len(r), x.shape[1], r.shape[-1]) if given is None else given


def _clipped(call: Call, x: Tensor) -> Tensor:
    most = call.get("clip")
    return x if not most else torch.clamp(x, -most, most)


@operator("LSTM", constants=[4])
def lstm(call: Call, x: Tensor, w: Tensor, r: Tensor, *more: Tensor | None) -> tuple[Tensor, ...]:
    bias, lengths, h, c, peep = (*more, *[None] * 5)[:5]

    def steps(direction: int) -> Step:
        f, g, last = _functions(call, direction, ["sigmoid", "tanh", "tanh"])
        wd, rd = w[direction].T, r[direction].T
        b = None if bias is None else bias[direction].reshape(2, -1).sum(0)
        pi, po, pf = (0, 0, 0) if peep is None else peep[direction].chunk(3)

        def step(xt: Tensor, state: list[Tensor]) -> list[Tensor]:
            ht, ct = state
            gates = xt @ wd + ht @ rd
            i, o, forget, cell = (gates if b is None else gates + b).chunk(4, -1)
            i = f(_clipped(call, i + pi * ct))
            kept = 1 - i if call.get("input_forget", 0) else f(_clipped(call, forget + pf * ct))
            new = kept * ct + i * g(_clipped(call, cell))
            return [f(_clipped(call, o + po * new)) * last(new), new]

        return step

    return _unrolled(call, x, lengths, [_start(h, x, r), _start(c, x, r)], steps)


@operator("GRU", constants=[4])
def gru(call: Call, x: Tensor, w: Tensor, r: Tensor, *more: Tensor | None) -> tuple[Tensor, ...]:
    bias, lengths, h = (*more, *[None] * 3)[:3]

    def steps(direction: int) -> Step:
        f, g = _functions(call, direction, ["sigmoid", "tanh"])
        wd, rd = w[direction].T, r[direction].T
        zero = w.new_zeros(rd.shape[1])
        wb, rb = (zero, zero) if bias is None else bias[direction].chunk(2)
        n = rd.shape[0]

        def step(xt: Tensor, state: list[Tensor]) -> list[Tensor]:
            (ht,) = state
            of_x, of_h = xt @ wd + wb, ht @ rd[:, : 2 * n] + rb[: 2 * n]
            z = f(_clipped(call, of_x[:, :n] + of_h[:, :n]))
            reset = f(_clipped(call, of_x[:, n : 2 * n] + of_h[:, n:]))
            if call.get("linear_before_reset", 0):
                hidden = reset * (ht @ rd[:, 2 * n :] + rb[2 * n :])
            else:
                hidden = (reset * ht) @ rd[:, 2 * n :] + rb[2 * n :]
            new = g(_clipped(call, of_x[:, 2 * n :] + hidden))
            return [(1 - z) * new + z * ht]

        return step

    return _unrolled(call, x, lengths, [_start(h, x, r)], steps)


@operator("RNN", constants=[4])
def rnn(call: Call, x: Tensor, w: Tensor, r: Tensor, *more: Tensor | None) -> tuple[Tensor, ...]:
    bias, lengths, h = (*more, *[None] * 3)[:3]

    def steps(direction: int) -> Step:
        (f,) = _functions(call, direction, ["tanh"])
        b = 0 if bias is None else bias[direction].reshape(2, -1).sum(0)

        def step(xt: Tensor, state: list[Tensor]) -> list[Tensor]:
            return [f(_clipped(call, xt @ w[direction].T + state[0] @ r[direction].T + b))]

        return step

    return _unrolled(call, x, lengths, [_start(h, x, r)], steps)
