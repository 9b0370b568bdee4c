"""Folders of tiny models, made by hand, and what the tests ask of folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tiny

import onnxq

SHARED = tiny.normal(64, 64, seed=7)
ENCODER = "agraph (float[n, 64] x) => (float[n, 64] y) { [embed] h = MatMul(x, w) z = Relu(h) [own] y = MatMul(z, v) }"
DECODER = "agraph (float[n, 64] x) => (float[n, 64] y) { [first] h = MatMul(x, v) [tied] y = MatMul(h, w) }"


def encoder() -> onnx.ModelProto:
    return tiny.model(ENCODER, {"w": SHARED, "v": tiny.normal(64, 64, seed=1)})


def decoder() -> onnx.ModelProto:
    return tiny.model(DECODER, {"w": SHARED, "v": tiny.normal(64, 64, seed=2)})


def put(folder: Path, **files: onnx.ModelProto | str | dict) -> Path:
    """A folder with these files; `__` in a name is a slash, and models get their ending."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, onnx.ModelProto):
            onnx.save(content, path.with_name(f"{path.name}.onnx"))
        else:
            path.with_name(f"{path.name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def run(model: Path, x: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


X = tiny.normal(5, 64, seed=3) * 8


def quantize(folder: Path, output: str = "out", recipe: onnxq.Recipe | str = "w8a16", **options: object):
    return onnxq.quantize_folder(folder, folder.parent / output, recipe, **options)


def rules(*rules: tuple[str, str], scheme: str = "w8a16", min_sqnr: float | None = None) -> onnxq.Recipe:
    return onnxq.Recipe(scheme, rules=tuple(onnxq.Rule(word, nodes) for nodes, word in rules), min_sqnr=min_sqnr)
