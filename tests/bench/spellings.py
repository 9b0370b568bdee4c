"""What the ways of spelling a quantized weight cost in onnxruntime: `python tests/bench/spellings.py [--quick]`.

Every variant's output is compared with float before it is timed; times are medians of runs taken in turns with float,
on one thread. The table of docs/fusion.md is this script's output.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from onnxq.quality import Quality
from onnxq.runtime.session import Session
from onnxq.runtime.timing import race

Node = onnx.NodeProto
MICROSOFT = "com.microsoft"


def session(nodes: list[Node], x_shape: tuple[int, ...], constants: dict[str, np.ndarray]) -> Session:
    """A session for a graph from float32 `x` to `y`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], initializers), opset_imports=opsets, ir_version=10
    )
    return Session(ir.from_proto(model))


def int8(w: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales, one scale for each index of `axis`."""
    others = tuple(i for i in range(w.ndim) if i != axis)
    scales = (np.abs(w).max(axis=others) / 127).astype(np.float32)
    shape = [-1 if i == axis else 1 for i in range(w.ndim)]
    return np.rint(w / scales.reshape(shape)).astype(np.int8), scales


def convolution() -> dict[str, Session]:
    """64 filters of 64 × 3 × 3 on 56 × 56."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    q, s = int8(w, 0)
    shape, make = (1, 64, 56, 56), helper.make_node
    conv = make("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    dequantize = make("DequantizeLinear", ["q", "s"], ["w"], axis=0)
    unpack = [make("Cast", ["q"], ["f"], to=TensorProto.FLOAT), make("Mul", ["f", "s4"], ["w"])]
    return {
        "float32": session([conv], shape, {"w": w}),
        "int8 DequantizeLinear, float x": session([dequantize, conv], shape, {"q": q, "s": s}),
        "int8 Cast and Mul, float x": session([*unpack, conv], shape, {"q": q, "s4": s.reshape(-1, 1, 1, 1)}),
    }


def product(rows: int) -> dict[str, Session]:
    """[rows, 1024] · [1024, 1024]."""
    rng = np.random.default_rng(0)
    k = n = 1024
    w = (rng.standard_normal((k, n)) / 32).astype(np.float32)
    q, s = int8(w, 1)
    zero, x_scale, x_zero = np.zeros(n, np.int8), np.array(8 / 255, np.float32), np.array(128, np.uint8)
    blocks = w.reshape(k // 32, 32, n)
    s8 = (np.abs(blocks).max(1) / 127).astype(np.float32)
    q8 = np.rint(blocks / s8[:, None]).astype(np.int8).reshape(k, n)
    make, shape = helper.make_node, (rows, k)
    matmul = make("MatMul", ["x", "w"], ["y"])
    unpack = [make("Cast", ["q"], ["f"], to=TensorProto.FLOAT), make("Mul", ["f", "s"], ["w"])]
    static = [
        make("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        make("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        make("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
        make("Gemm", ["xd", "w"], ["y"]),
    ]
    dynamic = [
        make("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        make("MatMulInteger", ["xq", "q", "xz"], ["i"]),
        make("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        make("Mul", ["xs", "s"], ["ss"]),
        make("Mul", ["f", "ss"], ["y"]),
    ]
    blocked = make("DequantizeLinear", ["q8", "s8"], ["w"], axis=0, block_size=32)
    constants = {"q": q, "s": s, "z": zero, "xs": x_scale, "xz": x_zero}
    return {
        "float32": session([matmul], shape, {"w": w}),
        "int8 Cast and Mul, float x": session([*unpack, matmul], shape, {"q": q, "s": s}),
        "int8 DequantizeLinear b32, float x": session([blocked, matmul], shape, {"q8": q8, "s8": s8}),
        "int8 static (Gemm without bias)": session(static, shape, constants),
        "int8 dynamic (MatMulInteger)": session(dynamic, shape, {"q": q, "s": s}),
    }


def main() -> None:
    seconds = 0.1 if "--quick" in sys.argv else 2.0
    table = Table("operator", "spelling of the weight", "time / float", "SQNR dB", box=None)
    rng = np.random.default_rng(1)
    cases = {"Conv 64×64×3×3, 56×56": (convolution(), (1, 64, 56, 56))}
    cases |= {f"MatMul {rows}×1024×1024": (product(rows), (rows, 1024)) for rows in (1, 16, 128)}
    for operator, (variants, shape) in cases.items():
        feed = {"x": rng.standard_normal(shape).astype(np.float32)}
        in_float = variants["float32"]
        wanted = in_float.run(feed)
        for spelling, variant in variants.items():
            quality = Quality()
            quality.add(["y"], wanted, variant.run(feed))
            if quality.sqnr < 30:
                raise SystemExit(f"{operator}, {spelling}: {quality.sqnr:.1f} dB, the result is wrong")
            a, b = race([in_float, variant], [feed, feed], seconds=seconds).seconds
            table.add_row(operator, spelling, f"{b / a:.2f}", "" if variant is in_float else f"{quality.sqnr:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
