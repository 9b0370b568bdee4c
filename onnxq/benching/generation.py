"""Tokens a second of models that keep a cache: what they give as present is fed into their past."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq.benching.result import Generation
from onnxq.benching.turns import median_of
from onnxq.made_up.maker import Maker
from onnxq.made_up.scout import scout
from onnxq.runtime.session import Feed, Session

#: Tokens of the prompt, and tokens made behind it.
PROMPT, STEPS = 32, 32


def conversation(model: ir.Model) -> tuple[list[Feed], dict[str, str]]:
    """A prompt and single tokens behind it, and which output goes into which input; empty without a cache."""
    maker = Maker(model, scout(model))
    first = maker.first()
    if first is None:
        return [], {}
    return maker.generation(first, PROMPT, STEPS)


def generation(sessions: Sequence[Session], feeds: Sequence[Feed], pairs: Mapping[str, str]) -> list[Generation]:
    """Each model goes through the conversation with a cache of its own, token by token in turns.

    Args:
        feeds: of the prompt and of every token; what `pairs` names is taken from the model's own outputs.
        pairs: the output that each input of the next step is.
    """
    kept: list[Feed] = [{} for _ in sessions]
    times: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.run(feeds[0])
    for feed in feeds:
        for number, session in enumerate(sessions):
            given = feed | kept[number]
            start = time.perf_counter()
            outputs = session.run(given)
            times[number].append(1e3 * (time.perf_counter() - start))
            made = dict(zip(session.outputs, outputs, strict=True))
            kept[number] = {name: made[output].astype(feed[name].dtype, copy=False) for name, output in pairs.items()}
    return [_of(taken) for taken in times]


def _of(times: Sequence[float]) -> Generation:
    steps = median_of(times[1:])
    return Generation(PROMPT, len(times) - 1, times[0], steps, 1e3 / steps.median)
