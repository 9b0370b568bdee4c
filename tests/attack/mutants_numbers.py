"""NaN, infinities and numbers near the ends of their types among the constants of sound models: a kind of cases for
`mutants.py`. What is refused has to be said of the weight; what is written has to open."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tiny
from attack.mutants_data import Case
from numpy.typing import NDArray

from onnxq import formats, targets

TYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Computed in the type of the constants, or in float32 behind a Cast.
TEXT = """g (float[1, 64] x, int64[1] i) => (y, z) {
    a = MatMul(X, w)  b = Add(a, bias)  c = Clip(b, low, high)  d = Gemm(c, v, more)  e = Add(d, mask)
    t = Gather(e0, i)  f = Add(e, t)  s = Softmax(f)  h = Mul(s, d)  yy = MatMul(h, w)  g1 = Reshape(c, image)
    k1 = Conv<pads = [1, 1, 1, 1]>(g1, k, shift)  k2 = Relu(k1)  zz = Conv<group = 16>(k2, k)  FROM }"""
NUMBERS = (np.nan, np.inf, -np.inf, 3.3e38, -3.3e38, 70000.0, 65504.0, -0.0, 1e-40, 6e-8)
OF_FLOATS = ("w", "bias", "low", "high", "v", "more", "mask", "e0", "k", "shift")
SCHEMES = ("w8a8", "w4a8", "w8a8-dynamic", "w8a16", "w4a16", "fp16", "bf16", "auto", "nf4")


def constants() -> dict[str, NDArray]:
    return {
        "w": tiny.normal(64, 64),
        "v": tiny.normal(64, 64, seed=1),
        "bias": tiny.normal(64, seed=2),
        "more": tiny.normal(64, seed=3),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
        "mask": np.zeros((1, 64), np.float32),
        "e0": tiny.normal(32, 64, seed=4),
        "k": tiny.normal(16, 1, 3, 3),
        "shift": tiny.normal(16, seed=5),
    }


def _model(case: Case) -> onnx.ModelProto:
    kind, is_cast = list(TYPES)[case.command % 3], case.command // 3 % 2
    arrays = constants()
    with np.errstate(all="ignore"):
        for seed in case.seeds:
            r = random.Random(seed)
            x = arrays[r.choice(OF_FLOATS)].reshape(-1)
            x[[r.randrange(x.size) for _ in range(r.choice([1, 1, 3, x.size]))]] = r.choice(NUMBERS)
        arrays = {name: x.astype(TYPES[kind]) for name, x in arrays.items()}
    number = onnx.TensorProto.DataType.Value(kind.upper())
    if is_cast and kind != "float":
        text = TEXT.replace("X, w", "x, w").replace("FROM", "y = Identity(yy)  z = Identity(zz)")
        casts = " ".join(f"{name}_f = Cast<to = 1>({name})" for name in OF_FLOATS)
        body = text.partition("{")[2]
        for name in sorted(OF_FLOATS, key=len, reverse=True):
            body = body.replace(f" {name},", f" {name}_f,").replace(f" {name})", f" {name}_f)")
            body = body.replace(f"({name},", f"({name}_f,")
        text = f"{text.partition('{')[0]}{{ {casts} {body}"
    else:
        text = TEXT.replace("X, w", "x0, w").replace("FROM", "y = Cast<to = 1>(yy)  z = Cast<to = 1>(zz)")
        text = text.replace("{\n", f"{{ x0 = Cast<to = {number}>(x)\n", 1)
    return tiny.model(text, arrays | {"image": np.array([1, 1, 8, 8])}, opset=22, ir_version=10)


def numbers(case: Case, folder: Path) -> list[str]:
    """Any scheme on any target, with and without a look at the result."""
    (folder / "model.onnx").write_bytes(_model(case).SerializeToString())
    rng = np.random.default_rng(0)
    x, i = rng.normal(0, 1, (8, 1, 64)).astype(np.float32), np.arange(8).reshape(8, 1)
    np.savez(folder / "data.npz", x=x, i=i)
    r = case.r
    is_format, target = r.random() < 0.4, r.choice(targets.names())
    scheme = ["-w", r.choice(formats.names())] if is_format else ["-s", r.choice(SCHEMES)]
    words = ["quantize", "model.onnx", *scheme, "-t", target, "--data", "data.npz", "-o", "out.onnx"]
    return [*words, "--effort", "quick", *(["--keep-slow"] if case.command // 6 % 2 else [])]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"numbers": numbers}
