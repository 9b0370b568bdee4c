"""Rows of a packed 4-bit linear layer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from library.rows import W, row, same
from numpy.typing import NDArray

from onnxq import layouts
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.linear4bit import Linear4Bit
from onnxq.runtime.session import Session

GROUP = "packed 4-bit linear layer (`Linear4Bit`)"


@row(GROUP, "pack, unpack of a checkpoint", "`layouts.linear4bit`, `from_linear4bit`; `onnxq import-weights`")
def _linear4bit() -> None:
    packed = np.arange(64, dtype=np.uint8).reshape(2, 32)
    q = layouts.from_linear4bit(packed, np.ones((2, 1), np.float16))
    same(q.dequantize()[:, 0::2], (packed & 15).astype(int) - 8)
    same(q.dequantize()[:, 1::2], (packed >> 4).astype(int) - 8)
    same(layouts.linear4bit(q)[0], packed)


def by_hand(packed: NDArray, scales: NDArray, group: int) -> NDArray:
    """w[n, k] = scale[n, k // group] · (code − 8), the even k in the low nibble."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float64) - 8
    return codes * scales.astype(np.float64)[:, np.arange(codes.shape[1]) // group]


@row(GROUP, "`new`, `forward` (fused), `forward_unpack`, `unpack`, bias", "`onnxq.Linear4Bit.new`, `.forward(x)` …")
def _layer() -> None:
    """130 inputs in groups of 64: the last one has 2."""
    rng = np.random.default_rng(3)
    packed, scales = rng.integers(0, 256, (24, 65), np.uint8), rng.uniform(0.5, 1, (24, 3)).astype(np.float16)
    layer, x = Linear4Bit.new(packed, scales, 64, np.ones(24)), rng.standard_normal((5, 130)).astype(np.float32)
    same(layer.unpack(), by_hand(packed, scales, 64))
    wanted = x.astype(np.float64) @ by_hand(packed, scales, 64).T + 1
    for y in (layer.forward(x), layer.forward_unpack(x)):
        assert np.linalg.norm(y - wanted) <= 1e-6 * np.linalg.norm(wanted)


@row(GROUP, "quantize a float layer", "`onnxq.Linear4Bit.quantize(w, group)`")
def _layer_of_floats() -> None:
    layer = Linear4Bit.quantize(W, 32)
    blocks = W.reshape(16, 4, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)[..., 0]
    scales = (largest / np.float64(-8)).astype(np.float32).astype(np.float16)
    same(layer.scales, scales)
    codes = np.clip(np.rint(blocks / scales.astype(np.float32)[..., None]), -8, 7)
    same(layer.unpack(), (codes * scales.astype(np.float32)[..., None]).reshape(W.shape))


@row(
    GROUP, "`save`, `load`", "`layer.save(path, name)`, `onnxq.Linear4Bit.load(path, name)`; `save_layers` for several"
)
def _layer_file() -> None:
    layer = Linear4Bit.quantize(W, 96, np.arange(16))
    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "w.safetensors", "up")
        back = Linear4Bit.load(Path(folder) / "w.safetensors", "up")
    assert back.group == 96
    same(back.unpack(), by_hand(layer.packed, layer.scales, 96))
    same(back.forward(np.zeros(128)), np.arange(16))


@row(GROUP, "the layer in a graph, on GPUs too", "`onnxq import-weights [model.onnx] w.safetensors --accuracy-level 0`")
def _layer_in_a_graph() -> None:
    layer = Linear4Bit.quantize(W, 48)
    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "w.npz")
        exact = ImportOptions(accuracy_level=0)
        path = import_weights(
            None, Path(folder) / "w.npz", Path(folder) / "w.onnx", target="onnxq", options=exact
        ).output
        (y,) = Session(path).run({"x": W})
    wanted = W.astype(np.float64) @ by_hand(layer.packed, layer.scales, 48).T
    assert np.linalg.norm(y - wanted) <= 1e-6 * np.linalg.norm(wanted)
