"""Spoiled models that are quantized already, for the commands that read codes: a kind of case for `mutants.py`."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tiny
from attack import mutate
from attack.mutants_data import Case

from onnxq import Recipe, quantize

COMMANDS = (
    ["dequantize", "model.onnx", "-o", "out.onnx"],
    ["dequantize", "model.onnx", "-o", "out.onnx", "--dtype", "float16", "--no-check"],
    ["convert", "model.onnx", "--to", "onnx", "-o", "out.onnx"],
    ["convert", "model.onnx", "--to", "ort-cpu", "-o", "out.onnx", "--no-check"],
    ["convert", "model.onnx", "--to", "onnxq", "-o", "out.onnx"],
    ["convert", "model.onnx", "--to", "gguf", "-o", "out.gguf"],
    ["convert", "model.onnx", "--to", "safetensors", "-o", "out.safetensors"],
    ["inspect", "model.onnx"],
    ["check", "model.onnx", "model.onnx"],
    ["check", "model.onnx", "model.onnx", "--by-layer"],
    ["doctor", "model.onnx"],
    ["doctor", "model.onnx", "--target", "onnx", "--sarif"],
    ["doctor", "model.onnx", "--fix", "-o", "out.onnx"],
)
TEXT = """g (float[n, 64] x, int64[n] i) => (float[n, 24] y) {
    t = Gather (table, i)  s = Add (x, t)  h = MatMul (s, w)  b = Add (h, bias)  r = Relu (b)
    y = Gemm <transB = 1> (r, v)
}"""
CODES = """g (float[n, 8] x) => (float[n, 8] y) {
    q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  e = DequantizeLinear <axis = 1> (w, t, u)
    h = MatMul (d, e)  o = QuantizeLinear (h, s, z)  f = Flatten (o)  y = DequantizeLinear (f, s, z)
}"""
INTEGER = """g (float[n, 8] x) => (float[n, 8] y) {
    q, s, z = DynamicQuantizeLinear (x)  m = MatMulInteger (q, w, z, u)  f = Cast <to = 1> (m)
    a = Mul (s, t)  h = Mul (f, a)  c = QuantizeLinear (h, t0, z0)
    g = QLinearMatMul (c, t0, z0, w, t0, u0, t0, z0)  y = DequantizeLinear (g, t0, z0)
}"""


@functools.cache
def _bases() -> tuple[bytes, ...]:
    rng = np.random.default_rng(0)
    constants = {"table": tiny.normal(16, 64), "w": tiny.normal(64, 32), "bias": tiny.normal(32)}
    model = tiny.model(TEXT, constants | {"v": tiny.normal(24, 32, seed=2)})
    made: list[onnx.ModelProto] = []
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.save(model, Path(folder))
        for word, target in (
            ("int4", "onnx"),
            ("uint4", "ort-cpu"),
            ("nf4", "ort-cpu"),
            ("int4_dq", "onnxq"),
            ("q4_k", "onnxq"),
        ):
            recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True)
            made.append(
                onnx.load(quantize(path, Path(folder) / f"{word}.onnx", recipe, target=target, check=False).output)
            )
    w, one = rng.integers(-127, 127, (8, 8)).astype(np.int8), np.float32(0.05)
    zeros = {"u": np.zeros(8, np.int8), "z": np.uint8(0), "s": one, "t": np.full(8, one, np.float32)}
    made.append(tiny.model(CODES, {"w": w} | {name: np.asarray(x) for name, x in zeros.items()}))
    more = {"u": np.int8(0), "u0": np.int8(0), "z0": np.uint8(128), "t0": one, "t": one}
    made.append(tiny.model(INTEGER, {"w": w} | {name: np.asarray(x) for name, x in more.items()}))
    return tuple(proto.SerializeToString() for proto in made)


def quantized(case: Case, folder: Path) -> list[str]:
    """Its graph, or the bytes of one of its constants."""
    bases = _bases()
    proto = onnx.load_from_string(bases[case.r.randrange(len(bases))])
    for seed in case.seeds:
        r = random.Random(seed)
        if r.random() < 0.5:
            mutate.spoil_model(proto, r)
        elif proto.graph.initializer:
            tensor = r.choice(list(proto.graph.initializer))
            tensor.raw_data = mutate.spoil_numbers(tensor.raw_data, r) if tensor.raw_data else b"\1"
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return COMMANDS[case.command % len(COMMANDS)]


KINDS: dict[str, Callable[[Case, Path], list[str]]] = {"quantized": quantized}
