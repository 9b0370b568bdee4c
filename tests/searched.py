"""A small classifier to search plans of, its samples, and what is told of the files that are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tiny

import onnxq

TEXT = """m (float[n, 64] x) => (float[n, 24] y) {
    a = MatMul (x, w0)  b = Relu (a)  c = MatMul (b, w1)  d = Relu (c)  e = MatMul (d, w2)  f = Add (e, b)
    g = Relu (f)  y = MatMul (g, w3)
}"""


#: Enough to choose from, and no more.
FORMATS = ("uint2/32", "uint2/64", "int3/32", "uint4/32", "int8", "float16")


def weights() -> dict[str, np.ndarray]:
    """Of very different sensitivity: the second is almost nothing beside what is added to it."""
    return {
        "w0": tiny.normal(64, 128),
        "w1": tiny.normal(128, 128, seed=1) / 16,
        "w2": tiny.normal(128, 128, seed=2) / 8,
        "w3": tiny.normal(128, 24, seed=3) * 2,
    }


def made(folder: Path) -> Path:
    """A classifier, samples of it, and which class the float model finds for each."""
    tiny.save(tiny.model(TEXT, weights()), folder)
    x = np.random.default_rng(0).standard_normal((64, 1, 64)).astype(np.float32)
    w = weights()
    b = np.maximum(x[:, 0] @ w["w0"], 0)
    y = np.maximum(np.maximum(b @ w["w1"], 0) @ w["w2"] + b, 0) @ w["w3"]
    np.savez(folder / "data.npz", x=x, y=y.argmax(axis=1))
    np.savez(folder / "plain.npz", x=x)
    return folder


def quantized(folder: Path, out: Path, target: str = "onnxq", **how: object) -> onnxq.Result:
    recipe = onnxq.Recipe(effort="quick", algorithm="mse")  # which is quick; one test has data choose codes
    how = {"data": folder / "plain.npz", "recipe": recipe, "target": target, "force": True} | how
    if "budget" in how:
        how = {"formats": FORMATS} | how
    return onnxq.quantize(folder / "model.onnx", out, **how)


def size(file: Path) -> int:
    return file.stat().st_size


def bits(plan: onnxq.Plan, file: Path) -> float:
    """Of a weight in the mean, from the file itself."""
    elements = sum(choice.elements for choice in plan if choice.op == "MatMul")
    names = tuple(weights())
    held = [t for t in onnx.load(file).graph.initializer if t.name.startswith(names)]
    return 8 * sum(len(t.raw_data) for t in held) / elements
