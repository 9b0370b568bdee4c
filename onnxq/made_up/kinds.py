"""Several kinds of content for the inputs that carry it, by what each looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.made_up import pictures, sounds
from onnxq.made_up.roles import CARRIERS, Part, Role

#: Draws the content of one input in a shape.
Draw = Callable[[Part, tuple[int, ...], np.random.Generator], NDArray]

#: Of a larger table the words behind these are never looked up: a file may name any number of rows.
MOST_WORDS = 1 << 20
#: Words of a language, by how often they come: rank to the minus one, and a little (Zipf; Mandelbrot).
ZIPF_OFFSET = 2.7


def kinds_of(model: ir.Model, parts: list[Part]) -> dict[str, Mapping[str, Draw]]:
    """By what a sample is called, what draws each input that carries content; the first is the most ordinary.

    Inputs of different roles vary together: the first kinds of each in one sample, then the second ones, and so on.
    """
    carriers = {part.name: _kinds(model, part) for part in parts if part.role in CARRIERS}
    if not carriers:
        return {"": {}}
    leading = max(carriers.values(), key=len)
    found: dict[str, Mapping[str, Draw]] = {}
    for number, label in enumerate(leading):
        draws = {name: list(kinds.values())[number % len(kinds)] for name, kinds in carriers.items()}
        found[label] = draws
    return found


def _kinds(model: ir.Model, part: Part) -> dict[str, Draw]:
    if part.role is Role.IMAGE:
        is_byte = part.input.dtype.kind != "f"
        scales = ["pictures of 0…255"] if is_byte else pictures.scales_for(model, part.name)
        return {scale: _picture(scale) for scale in scales}
    if part.role is Role.AUDIO:
        return {sound: _waveform(sound) for sound in sounds.SOUNDS}
    if part.role is Role.SPECTRUM:
        forms = [(sound, scale) for sound in list(sounds.SOUNDS)[:4] for scale in sounds.SPECTRUM_SCALES]
        return {f"{sound} {scale}": _spectrogram(sound, scale) for sound, scale in forms}
    if part.role is Role.TOKENS:
        return {"": tokens}
    return {
        "numbers around 0": _normal,
        "numbers of 0…1": _positive,
        "a few large numbers": _heavy,
        "one-hot": _one_hot,
    }


def tokens(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    """Word numbers as often as words are: few of them very often; which ones those are is left to chance."""
    if part.columns and shape[-1:] == (len(part.columns),):
        return np.stack([_words(rows, shape[:-1], rng) for rows in part.columns], axis=-1)
    made = _words(part.rows or 100, shape, rng)
    for word in part.sought:  # a text without it is none: the model would take its first word for its last
        if shape and shape[-1] > 1 and 0 <= word < (part.rows or 100):
            made[..., -1 - rng.integers(shape[-1] // 2)] = word
    return made


def _words(rows: int, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    rows = min(rows, MOST_WORDS)
    weights = 1 / (np.arange(rows) + ZIPF_OFFSET)
    order = np.random.default_rng(1).permutation(rows)
    return order[rng.choice(rows, shape, p=weights / weights.sum())]


def _picture(scale: str) -> Draw:
    def draw(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
        height, width = (shape[axis] for axis in range(1, 4) if axis != part.channels)
        made = pictures.batch(rng, shape[0], height, width, shape[part.channels])
        return np.moveaxis(pictures.scaled(made, scale), -1, part.channels)

    return draw


def _waveform(sound: str) -> Draw:
    return lambda part, shape, rng: sounds.waveform(rng, sound, shape, part.time)


def _spectrogram(sound: str, scale: str) -> Draw:
    return lambda part, shape, rng: sounds.spectrogram(rng, sound, scale, shape, part.time)


def _normal(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    return rng.standard_normal(shape)


def _positive(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    return rng.uniform(0, 1, shape) ** 2


def _heavy(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    """One number in a hundred is ten times as large."""
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.01, 10, 1)


def _one_hot(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    made = np.zeros(shape)
    if shape and shape[-1]:
        np.put_along_axis(made, rng.integers(0, shape[-1], (*shape[:-1], 1)), 1.0, -1)
    return made
