"""Caches and states from real decoding: the float model runs on what comes before a sample, and leaves them there.

A sample with a past is thus two runs, but any sample can be made without the others: samples may be skipped, drawn at
random and spread over processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadData, BadModel
from onnxq.runtime.session import Feed, Input
from onnxq.samples.fit import fit
from onnxq.samples.texts.companions import Companions

#: Words that tell what goes in from what comes out.
_SIDES = re.compile(r"(past|present)(_key_values?)?|(?<![a-z])(in|out|input|output|new|next|prev|old|updated)(?![a-z])")
#: What an input is called that the model itself goes on with.
_STATE = re.compile(r"past|cache|^(?!encoder_).*(state|hidden)|(^|[._])(mems?|[hc])([._\d]|$)|prev")


def is_state(i: Input) -> bool:
    """Whether the name of an input says that it comes from the run before."""
    return i.dtype.kind == "f" and _STATE.search(i.name.lower()) is not None


class Caches:
    """The inputs of a model that are its own outputs of the run before.

    Attributes:
        pairs: by an input's name, the output's.
    """

    def __init__(self, inputs: Sequence[Input], place: Companions) -> None:
        self.inputs, self.place = {i.name: i for i in inputs}, place
        self.pairs = {} if place.model is None else _pairs(inputs, place.model.graph.outputs)

    def empty(self, known: frozenset[str]) -> Feed:
        """Before the first run: `known` are symbols of dimensions that are 1, such as the batch."""
        return {name: np.zeros(_empty_shape(self.inputs[name], known), self.inputs[name].dtype) for name in self.pairs}

    def after(self, steps: Iterable[Feed], where: str, known: frozenset[str]) -> Feed:
        """What the model leaves when it has run on `steps`, one after the other."""
        state = self.empty(known)
        for step in steps:
            session = self.place.session
            try:
                found = dict(zip(session.outputs, session.run(step | state), strict=True))
            except BadModel as error:
                raise BadData(f"{where}: the model does not run on the tokens before it: {error}") from None
            state = {name: found[output].astype(self.inputs[name].dtype) for name, output in self.pairs.items()}
        return state


def _pairs(inputs: Sequence[Input], outputs: Sequence[ir.Value]) -> dict[str, str]:
    """Inputs with the outputs that continue them: of the same name but for a word, else of the same shape, in order."""
    by_stem: dict[str, list[str]] = {}
    for value in outputs:
        by_stem.setdefault(_stem(value.name or ""), []).append(value.name or "")
    pairs, rest = {}, []
    for i in inputs:
        found = by_stem.get(_stem(i.name), []) if is_state(i) else []
        if len(found) == 1:
            pairs[i.name] = found[0]
        else:
            rest.append(i)
    free = [value for value in outputs if value.name not in pairs.values()]
    for i in rest:
        fitting = next((value for value in free if _fits(i, value)), None)
        if fitting is not None:
            pairs[i.name] = fitting.name or ""
            free.remove(fitting)
    return pairs


def _stem(name: str) -> str:
    """A name without the words that tell past from present; h0 and hn are both h."""
    bare = _SIDES.sub("", name.lower().replace("/", "."))
    return re.sub(r"^(h|c|state)_?(0|n)$", r"\1", re.sub(r"[._]+", ".", bare).strip("."))


def _fits(i: Input, value: ir.Value) -> bool:
    if i.shape is None or value.shape is None or value.dtype is None or len(i.shape) != len(value.shape):
        return False
    fixed = [(a, b) for a, b in zip(i.shape, value.shape, strict=True) if isinstance(a, int) and isinstance(b, int)]
    is_named = is_state(i) and len(fixed) > 0
    is_all = len(fixed) == len(i.shape) > 2
    return value.dtype.numpy() == i.dtype and all(a == b for a, b in fixed) and (is_named or is_all)


def _empty_shape(i: Input, known: frozenset[str]) -> tuple[int, ...]:
    """Of a cache nothing is in: free dimensions are the batch, which is 1, and a length, which is 0."""
    shape = i.shape or ()
    batch = 1 if len(shape) == 5 and shape[0] == 2 else 0  # keys and values in one
    found = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int) and dim >= 0:
            found.append(dim)
        elif isinstance(dim, str) and (dim in known or "batch" in dim.lower()):
            found.append(1)
        elif isinstance(dim, str) and re.search(r"past|seq|len|total|time", dim.lower()):
            found.append(0)
        else:
            found.append(0 if len(shape) > 3 and axis > batch else 1)
    return tuple(found)


def encoder_output(place: Companions, feed: Feed, where: str) -> NDArray:
    """What the encoder beside a decoder makes of its inputs.

    Raises:
        BadData: there is none, or it takes something else.
    """
    if place.encoder is None:
        raise BadData(
            f"{where}: 'encoder_hidden_states' come from the model's encoder: put encoder_model.onnx beside the model"
        )
    return place.encoder.run(fit(feed, place.encoder.inputs, f"{where}, for the encoder beside the model"))[0]
