"""One set of inputs that belong together: masks as long as the texts, positions that go on where the past ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq.made_up.dims import Dims, Sizes
from onnxq.made_up.kinds import Draw
from onnxq.made_up.roles import CARRIERS, Part, Role
from onnxq.runtime.session import Feed


@dataclass(frozen=True)
class Scene:
    """What decides one sample, besides chance.

    Attributes:
        sizes: by symbol.
        draws: by input, what draws the content.
        switches: numbers for inputs that choose what the model does.
        padding: words by which every row but the first is shorter, and filled up: at its front if there can be a past.
        kept: inputs that are there already.
    """

    sizes: Sizes
    draws: Mapping[str, Draw]
    switches: Mapping[str, int] = field(default_factory=dict)
    padding: int = 0
    kept: Feed = field(default_factory=dict)


class Painter:
    """Draws scenes for one model."""

    def __init__(self, dims: Dims, parts: Sequence[Part]) -> None:
        self.dims, self.parts = dims, list(parts)

    def draw(self, scene: Scene, rng: np.random.Generator) -> Feed:
        return {part.name: self._draw(part, scene, rng) for part in self.parts}

    def elements(self, sizes: Sizes) -> int:
        """The numbers in the largest input with dimensions to choose."""
        free = [p.input for p in self.parts if any(self.dims.symbols_at(p.input, a) for a in range(_rank(p)))]
        return max((math.prod(self.dims.shape(i, sizes)) for i in free), default=0)

    def switch(self, part: Part, sizes: Sizes) -> int:
        """What a switch is set to unless a scene says otherwise."""
        if part.input.dtype.kind == "b":
            about_past = any(word in part.name.lower() for word in ("cache", "past"))
            return int(self._past(sizes) > 0) if about_past and self.dims.past else 1
        return part.compared[0] if part.compared else 1

    def _draw(self, part: Part, scene: Scene, rng: np.random.Generator) -> NDArray:
        if part.name in scene.kept:
            return scene.kept[part.name]
        shape, dtype = self.dims.shape(part.input, scene.sizes), part.input.dtype
        if 0 in shape:  # whose other dimensions may be of any size
            return np.zeros(shape, dtype)
        return np.asarray(self._content(part, shape, scene, rng)).astype(dtype).reshape(shape)

    def _content(self, part: Part, shape: tuple[int, ...], scene: Scene, rng: np.random.Generator) -> object:
        role = part.role
        if part.name in scene.draws:
            return scene.draws[part.name](part, shape, rng)
        if role is Role.TEXT:
            return np.full(shape, "text", object)
        if role is Role.SWITCH:
            return np.full(shape, scene.switches.get(part.name, self.switch(part, scene.sizes)))
        if role is Role.LENGTH:
            return np.full(shape, self._length(part, scene.sizes))
        if role is Role.POSITIONS:
            return self._positions(shape, scene)
        if role is Role.SEGMENTS:
            return np.broadcast_to(
                np.arange(shape[-1] if shape else 1) * 2 >= 3 * (shape[-1] if shape else 1) / 2, shape
            )
        if role is Role.MASK:
            return self._mask(shape, scene) if len(shape) < 3 or part.input.dtype.kind != "f" else np.zeros(shape)
        if role is Role.CACHE:
            # What an encoder left is there from the first step on, and as long as what it read.
            axes = range(len(shape))
            is_read = any(
                symbol in self.dims.rest for axis in axes for symbol in self.dims.symbols_at(part.input, axis)
            )
            return rng.standard_normal(shape) if is_read or self._past(scene.sizes) else np.zeros(shape)
        return np.full(shape, part.compared[0] if part.compared else 1)

    def _past(self, sizes: Sizes) -> int:
        return max((sizes[symbol] for symbol in self.dims.past), default=0)

    @property
    def leading(self) -> Part | None:
        """What the model reads step by step: its words, else the first input with content."""
        carriers = [part for part in self.parts if part.role in CARRIERS and part.axes]
        return next((part for part in carriers if part.role is Role.TOKENS), next(iter(carriers), None))

    def present(self, sizes: Sizes) -> int:
        """How many steps the model takes."""
        return 1 if self.leading is None else self.dims.size(self.leading.input, self.leading.axes[-1], sizes)

    def _length(self, part: Part, sizes: Sizes) -> int:
        past, present, name = self._past(sizes), self.present(sizes), part.name.lower()
        if "past" in name:
            return past
        if "seqlens" in name:  # of GroupQueryAttention: the index of the last
            return past + present - 1
        return past + present if "total" in name else present

    def _mask(self, shape: tuple[int, ...], scene: Scene) -> NDArray:
        mask = np.ones(shape)
        if len(shape) == 2 and 0 < scene.padding < shape[-1]:
            mask[1:, slice(scene.padding) if self.dims.past else slice(-scene.padding, None)] = 0
        return mask

    def _positions(self, shape: tuple[int, ...], scene: Scene) -> NDArray:
        length, past = (shape[-1] if shape else 1), self._past(scene.sizes)
        found = np.broadcast_to(past + np.arange(length), shape)
        if not (scene.padding and self.dims.past and len(shape) == 2):
            return found
        mask = self._mask((shape[0], past + length), scene)
        return np.maximum(np.cumsum(mask, axis=1) - 1, 0)[:, past:]


def _rank(part: Part) -> int:
    return len(part.input.shape or ())
