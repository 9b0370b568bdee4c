"""Inputs made of a text: token ids with their masks, types and positions, for encoders and for steps of a decoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime.session import Feed, Input
from onnxq.samples.texts.companions import Companions
from onnxq.samples.texts.tokenizer import Tokenizer

#: Tokens of the samples, in turns: what holds for one length does not hold for another, least of all for a few tokens.
LENGTHS = (1, 8, 32, 128)

#: What an integer input means, by its name in small letters; the first that is found counts.
_ROLES = (
    ("branch", r"use_cache"),
    ("decoder mask", r"decoder_.*mask"),
    ("encoder mask", r"encoder_.*mask"),
    ("mask", r"mask"),
    ("types", r"token_type|segment|type_ids"),
    ("positions", r"position"),
    ("past", r"past_(seq|len)"),
    ("total", r"total_seq"),
    ("last", r"seqlens_k"),
    ("beams", r"beam_id"),
    ("kept", r"logits_to_keep"),
    ("decoder ids", r"decoder_input|decoder_ids|tgt|target"),
    ("count", r"length|lens"),
    ("ids", r"ids|token|input|src|word|text|query|idx"),
)


def role_of(i: Input) -> str | None:
    """What text makes of an input; None if nothing."""
    name = i.name.lower()
    if i.dtype.kind == "O":
        return "text"
    if i.dtype.kind == "f":
        return next((role for role, pattern in _ROLES[1:4] if re.search(pattern, name) and "pixel" not in name), None)
    return next((role for role, pattern in _ROLES if re.search(pattern, name)), None)


@dataclass(frozen=True)
class Step:
    """One run of a model on tokens: `ids` are new, `past` tokens before them are in its caches."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    past: int = 0


class TextInputs:
    """Makes those inputs of a model that follow from a text.

    Attributes:
        roles: by name, of the inputs it makes.
        width: tokens of every run, where the model takes one number of them.
        places: tokens of all runs of a sample, if the model has places for so many.
    """

    def __init__(self, inputs: Sequence[Input], place: Companions, tokenizer: Tokenizer | None) -> None:
        self.inputs = {i.name: i for i in inputs}
        self.place, self.tokenizer = place, tokenizer
        self.roles = {i.name: role for i in inputs if (role := role_of(i)) is not None}
        integers = [i.name for i in inputs if i.dtype.kind in "iu" and i.name not in self.roles and i.shape != ()]
        if "ids" not in self.roles.values() and "decoder ids" not in self.roles.values() and len(integers) == 1:
            self.roles[integers[0]] = "ids"
        if "ids" not in self.roles.values() and "decoder ids" in self.roles.values():
            self.roles = {name: "ids" if role == "decoder ids" else role for name, role in self.roles.items()}
        ids = next((self.inputs[name] for name, role in self.roles.items() if role == "ids"), None)
        shape = (ids.shape if ids is not None else None) or ()
        time = shape[0 if ids is not None and _is_time_first(ids) else 1] if len(shape) > 1 else None
        self.width = time if isinstance(time, int) and time > 0 else None
        self.rows = {name: place.rows(name) for name, role in self.roles.items() if role in ("ids", "decoder ids")}
        limits = [place.rows(name) for name, role in self.roles.items() if role == "positions"]
        limits += [None if tokenizer is None else tokenizer.longest, place.positions]
        self.places = min((limit for limit in limits if limit), default=None)
        self.longest = min((limit for limit in (self.places, self.width) if limit), default=None)

    def tokens(self, text: str, length: int, where: str, *, special: bool = True) -> Step:
        """The beginning of `text`, in at most `length` tokens.

        Raises:
            BadData: there is no tokenizer, no token, or one that the model has no row for.
        """
        if set(self.roles.values()) == {"text"}:  # the model itself reads it
            return Step((), ())
        if self.tokenizer is None:
            raise BadData(f"{where} is text: give the model's tokenizer, --tokenizer tokenizer.json or its folder")
        ids, types = self.tokenizer.encode(text, min(length, self.longest or length), special=special)
        for name, rows in self.rows.items():
            if rows is not None and max(ids, default=0) >= rows:
                raise BadData(
                    f"{where}: the tokenizer '{self.tokenizer.path}' gives the id {max(ids)}, but '{name}' looks up a "
                    f"table of {rows} rows: it belongs to another model"
                )
        if not ids:
            raise BadData(f"{where}: the tokenizer '{self.tokenizer.path}' makes no token of the text")
        return Step(tuple(ids), tuple(types))

    def feed(self, step: Step, text: str = "", encoded: int | None = None) -> Feed:
        """The inputs of one run. `encoded`: tokens or frames that the encoder saw, where this is a decoder."""
        new, past = len(step.ids), step.past
        width = max(new, self.width or 0)
        real = np.zeros(past + width, np.int64)
        real[: past + new] = 1
        decoder = (self._start(), *step.ids)[: max(1, new)]
        made = {
            "text": np.array(text, object),
            "ids": _padded(step.ids, width, self.tokenizer.pad if self.tokenizer else 0),
            "types": _padded(step.types, width, 0),
            "mask": real,
            "encoder mask": np.ones(new if encoded is None else encoded, np.int64),
            "decoder ids": np.array(decoder, np.int64),
            "decoder mask": np.ones(past + len(decoder), np.int64),
            "positions": np.arange(past, past + width),
            "branch": np.array(past > 0),
            "past": np.array(past),
            "total": np.array(past + width),
            "last": np.array(past + width - 1),
            "count": np.array(new),
            "beams": np.array(0),
            "kept": np.array(0),
        }
        feed = {name: _shaped(made[role], self.inputs[name], width) for name, role in self.roles.items()}
        return {name: x.astype(self.inputs[name].dtype) for name, x in feed.items()}

    def _start(self) -> int:
        """The id that a decoder begins with."""
        config = self.place.config
        start = config.get("decoder_start_token_id", config.get("bos_token_id"))
        if isinstance(start, int) and 0 <= start < 1 << 31:
            return start
        return (self.tokenizer.start if self.tokenizer else None) or 0

    def decoder_step(self, step: Step) -> Step:
        """Tokens as a decoder sees them: behind its start."""
        return Step((self._start(), *step.ids), (0, *step.types))


def _is_time_first(i: Input) -> bool:
    """Whether the batch is the second axis, as in recurrent models."""
    first, second = [str(dim).lower() for dim in i.shape] if i.shape and len(i.shape) == 2 else ("", "")
    return re.search("time|seq|len", first) is not None and re.search("batch|^b$|^n$|^1$", second) is not None


def _padded(ids: Sequence[int], width: int, pad: int) -> NDArray:
    return np.array([*ids, *[pad] * (width - len(ids))], np.int64)


def _shaped(x: NDArray, i: Input, width: int) -> NDArray:
    """`x`, of one text, with the axes of its input: the batch in front, which repeats it, and masks of four axes."""
    if i.shape is None:
        return x[None] if x.ndim else x
    if x.ndim == 1 and len(i.shape) == 4:  # what each new token may look at: what is real, and not behind it
        total = x.shape[0]
        seen = (np.tri(width, total, total - width, dtype=bool) & (x > 0))[None, None]
        return np.where(seen, 0.0, np.finfo(np.float16).min).astype(i.dtype) if i.dtype.kind == "f" else seen
    missing = len(i.shape) - x.ndim
    if x.ndim == 1 and _is_time_first(i):
        return x[:, None]
    if missing < 0:
        return x.reshape(-1)[-1] if not i.shape else x
    x = x.reshape((1,) * missing + x.shape)
    batch = i.shape[0] if missing and isinstance(i.shape[0], int) and i.shape[0] > 0 else 1
    return np.repeat(x, batch, axis=0) if missing else x
