"""Pictures made up: leaves of one colour or of a fine texture that hide each other, as things in photographs do.

Their spectrum falls as 1/f, they have edges, and flat regions beside noisy ones (Lee, Mumford and Huang, "Occlusion
models for natural images", 2001). What scale a network wants them in nobody says: 0…1, 0…255, or mean and spread taken
out. Biases tell scales apart that differ much: they are of the size of what they are added to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.made_up import batches
from onnxq.model import graph

#: (shift, spread) by what a scale is called; of pictures in 0…1.
SCALES: Mapping[str, tuple[float, float]] = {
    "pictures of 0…1": (0.0, 1.0),
    "pictures of −2…2": (-0.45, 1 / 0.225),
    "pictures of 0…255": (0.0, 255.0),
}
#: Of a larger picture such a part is made, again and again; and so many pixels of those of a batch together.
SIDE, PIXELS = 2048, 1 << 25
#: Things in one picture.
LEAVES = 24
#: A scale is out of the question if another fits the biases so many times better.
UNFIT = 12.0


def batch(rng: np.random.Generator, count: int, height: int, width: int, channels: int) -> NDArray[np.float32]:
    """[count, height, width, channels] in 0…1."""
    sides = min(height, SIDE), min(width, SIDE)
    most = min(batches.DIFFERENT, max(1, PIXELS // max(1, math.prod(sides))))
    made = batches.batch(lambda: picture(rng, *sides, channels), count, most)
    return batches.repeated(batches.repeated(made, height, 1), width, 2)


def picture(rng: np.random.Generator, height: int, width: int, channels: int) -> NDArray[np.float32]:
    """[height, width, channels] in 0…1."""
    found = np.empty((height, width, channels), np.float32)
    if not found.size:
        return found
    found[:] = rng.uniform(0.2, 0.8, channels)
    grain = _texture(rng, height, width)
    found += rng.uniform(0, 0.25) * grain[..., None]
    side = max(height, width)
    for share in np.sort(rng.pareto(1.5, LEAVES))[::-1]:
        radius = min(0.5, 0.02 * (1 + share)) * side
        angle, flat = rng.uniform(0, math.pi), rng.uniform(0.3, 1)
        top, left = rng.uniform(0, height), rng.uniform(0, width)
        rows, columns = reached(top, radius, height), reached(left, radius, width)
        dy, dx = rows[:, None] - top, columns - left
        u, v = dx * math.cos(angle) + dy * math.sin(angle), (dy * math.cos(angle) - dx * math.sin(angle)) / flat
        inside = u * u + v * v < radius * radius if rng.random() < 0.6 else np.maximum(abs(u), abs(v)) < radius
        here = found[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        here[inside] = rng.uniform(0, 1, channels) * 0.4 + rng.uniform(0, 1) * 0.6
        if rng.random() < 0.4:
            down, right = rng.integers(0, side, 2)
            shifted = grain[np.ix_((rows - down) % height, (columns - right) % width)]
            here[inside] += rng.uniform(0, 0.2) * shifted[inside][:, None]
    light = np.linspace(1, rng.uniform(0.5, 1), height)[:, None, None]  # brighter above than below
    return np.clip(found * light, 0, 1).astype(np.float32)


def reached(centre: float, radius: float, size: int) -> NDArray[np.intp]:
    """Rows or columns of a picture that a leaf may cover, a corner of a square one included; at least one."""
    reach = radius * math.sqrt(2)
    first = min(max(0, math.floor(centre - reach)), size - 1)
    return np.arange(first, max(first, min(size - 1, math.ceil(centre + reach))) + 1)


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Noise of a 1/f spectrum and standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency
    made = np.fft.irfft2(spectrum, (height, width))
    return made / max(float(made.std()), 1e-9)


def scaled(image: NDArray[np.float32], scale: str) -> NDArray[np.float32]:
    shift, spread = SCALES[scale]
    return ((image + np.float32(shift)) * np.float32(spread)).astype(np.float32)


def scales_for(model: ir.Model, name: str) -> list[str]:
    """The scales that the biases of the first convolution behind the input called `name` do not speak against."""
    weight, bias = _first_convolution(model, name)
    if weight is None or bias is None or not np.any(bias):
        return list(SCALES)
    flat = weight.reshape(len(weight), -1)
    size = math.sqrt(float(np.mean(np.square(bias))))
    misfit = {}
    for scale, (shift, spread) in SCALES.items():
        mean, deviation = (0.45 + shift) * spread, 0.25 * spread
        products = np.square(flat.sum(1) * math.hypot(mean, deviation)) + np.square(flat).sum(1) * (deviation / 4) ** 2
        misfit[scale] = abs(math.log(max(math.sqrt(float(products.mean())), 1e-12) / size))
    best = min(misfit.values())
    return [scale for scale in SCALES if misfit[scale] <= best + math.log(UNFIT)]


def _first_convolution(model: ir.Model, name: str) -> tuple[NDArray | None, NDArray | None]:
    """Weight and bias of the first convolution, if nothing but reordering lies between it and the input."""
    value = next((value for value in model.graph.inputs if value.name == name), None)
    while value is not None:
        node = next((use.node for use in value.uses()), None)
        if node is None or not graph.is_op(node, "Conv", "Transpose", "Cast", "Identity", "Pad", "Reshape"):
            return None, None
        if node.op_type == "Conv":
            found = [graph.constant(x) for x in node.inputs[1:3]]
            weight, bias = [None if each is None else each.numpy().astype(np.float64) for each in (*found, None)][:2]
            return weight, bias
        value = node.outputs[0]
    return None, None
