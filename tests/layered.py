"""Small models whose layers tests compare, and what the comparison says of each."""

from __future__ import annotations

from pathlib import Path

import onnx
from tiny import normal, save

from onnxq.checking.layers.by_layer import by_layer
from onnxq.checking.layers.result import ByLayer, LayerError
from onnxq.samples.sampling import Sampling

CHAIN = """g (float[4, 8] x) => (float[4, 8] y) {
    a = MatMul (x, w1)
    b = Relu (a)
    c = MatMul (b, w2)
    y = Tanh (c)
}"""
WEIGHTS = {"w1": normal(8, 8, seed=1), "w2": normal(8, 8, seed=2)}
IMAGE = """g (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    y = Conv <pads = [1, 1, 1, 1]> (b, w)
}"""


def compared(
    tmp_path: Path, a: onnx.ModelProto, b: onnx.ModelProto, data: Sampling | None = None, **options: int
) -> ByLayer:
    return by_layer(save(a, tmp_path, "a.onnx"), save(b, tmp_path, "b.onnx"), data, **options)


def rows(found: ByLayer) -> dict[str, LayerError]:
    return {layer.a: layer for layer in found.layers}
