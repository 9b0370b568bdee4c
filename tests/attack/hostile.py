"""What cases of the corpus are, and the few lines that most of them are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import tiny
from onnx import TensorProto

W = {"w": tiny.normal(64, 64)}
MATMUL = "g (float[1, 64] x) => (float[1, 64] y) { [product] y = MatMul(x, w) }"
INSPECT = ["inspect", "model.onnx"]
QUANTIZE = ["quantize", "model.onnx", "-s", "w8a8-dynamic", "-o", "out.onnx"]
CALIBRATE = ["calibrate", "model.onnx", "-s", "w8a8", "-o", "out.ranges", "--data"]


@dataclass(frozen=True)
class Hostile:
    """The files that `make` leaves in a folder, the command, and a part of the answer.

    Attributes:
        make: returns the words of the command; None: `words`.
    """

    make: Callable[[Path], list[str] | None]
    says: str
    words: tuple[str, ...] = tuple(QUANTIZE)
    code: int = 1

    def build(self, folder: Path) -> list[str]:
        return self.make(folder) or list(self.words)


def save(proto: onnx.ModelProto, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


def model(folder: Path, text: str = MATMUL, functions: str = "", opset: int = 17) -> onnx.ModelProto:
    proto = tiny.model(text, W, functions=functions, opset=opset)
    save(proto, folder)
    return proto


def changed(
    change: Callable[[onnx.ModelProto], object], text: str = MATMUL, functions: str = ""
) -> Callable[[Path], None]:
    """A model with something that ONNX text cannot say."""

    def make(folder: Path) -> None:
        proto = tiny.model(text, W, functions=functions)
        change(proto)
        save(proto, folder)

    return make


def outside(location: str, **entries: str) -> TensorProto:
    tensor = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": location} | entries).items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def file(name: str, content: bytes | str, *words: str) -> Callable[[Path], list[str]]:
    """A sound model, data, and a file."""

    def make(folder: Path) -> list[str]:
        model(folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 64))
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(words)

    return make


def pipe(*words: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        model(folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 64))
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()
        os.mkfifo(folder / "folder" / "a.npy")
        return list(words)

    return make
