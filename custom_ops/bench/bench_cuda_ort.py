"""Products in onnxruntime on the GPU, its own operators and ours: what bench_cuda.py runs in a process of its own.

    python custom_ops/bench/bench_cuda_ort.py REPEATS N,K,M,format,block …

A model is one input and many products of it by different weights, run as one CUDA graph; each is its share of the time.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.bench_kernels import products

#: Columns of the result: our node inside onnxruntime, and its own operators.
NAMES = ("ours in ORT", "MatMulNBits", "MatMulNBits FPA_INTB", "MatMulBnb4")
#: Bytes of all weights together, far more than any L2 cache.
TOTAL = 256 << 20


def spellings(w: products.Weight) -> Iterator[tuple[str, str, str, dict[str, NDArray], dict[str, Any]]]:
    """Name, operator, domain, tensors and attributes of each way to multiply by `w` in float16."""
    N, K = w.codes.shape
    tiles, scales = products.tiled(w)
    sizes = {"K": K, "N": N, "block_size": w.block}
    yield "ours in ORT", "MatMulNBits", "onnxq", {"weight": tiles, "scales": scales}, sizes | {"format": w.format}
    half = w.scales.astype(np.float16)
    if w.format in ("int4", "int8"):
        packed = w.codes if w.bits == 8 else w.codes[:, ::2] | w.codes[:, 1::2] << 4
        arrays = {"w": packed.reshape(N, K // w.block, -1), "s": half}
        yield "MatMulNBits", "MatMulNBits", "com.microsoft", arrays, sizes | {"bits": w.bits, "accuracy_level": 0}
    if w.format in ("nf4", "fp4"):
        arrays = {"w": (w.codes[:, ::2] << 4 | w.codes[:, 1::2]).reshape(-1), "s": half.reshape(-1)}
        yield (
            "MatMulBnb4",
            "MatMulBnb4",
            "com.microsoft",
            arrays,
            sizes | {"quant_type": {"fp4": 0, "nf4": 1}[w.format]},
        )


def model(
    op: str, domain: str, arrays: dict[str, NDArray], attributes: dict[str, Any], count: int, M: int
) -> onnx.ModelProto:
    """`count` products of one x by weights that are the given one with its rows moved."""
    N, K = attributes["N"], attributes["K"]
    nodes, constants = [], []
    for i in range(count):
        for name, array in arrays.items():
            constants.append(numpy_helper.from_array(np.ascontiguousarray(np.roll(array, i, axis=0)), f"{name}{i}"))
        nodes.append(
            helper.make_node(op, ["x", *(f"{name}{i}" for name in arrays)], [f"y{i}"], domain=domain, **attributes)
        )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [M, K])
    y = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT16, [M, N]) for i in range(count)]
    graph = helper.make_graph(nodes, "products", [x], y, constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def seconds(made: onnx.ModelProto, w: products.Weight, M: int, repeats: int, *, provider: str = "CUDA") -> float:
    """Median time of one product. The first answer is checked.

    Raises:
        SystemExit: it is wrong.
    """
    count = len(made.graph.node)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    device = "cuda" if provider == "CUDA" else "cpu"
    settings = {"enable_cuda_graph": "1"} if provider == "CUDA" else {}
    session = onnxq.session(made.SerializeToString(), options, [(f"{provider}ExecutionProvider", settings)])
    if session.get_providers()[0] != f"{provider}ExecutionProvider":
        raise SystemExit(f"onnxruntime has no {provider} provider here")
    x = np.random.default_rng().standard_normal((M, w.codes.shape[1]), np.float32).astype(np.float16)
    binding = session.io_binding()
    fed = onnxruntime.OrtValue.ortvalue_from_numpy(x, device, 0)
    binding.bind_ortvalue_input("x", fed)
    outputs = []
    for i in range(count):
        poison = np.full((M, len(w.codes)), np.nan, np.float16)
        outputs.append(onnxruntime.OrtValue.ortvalue_from_numpy(poison, device, 0))
        binding.bind_ortvalue_output(f"y{i}", outputs[-1])
    times = []
    for i in range(repeats + 4):  # the first three run without a graph, or capture it
        begin = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        if i >= 4:
            times.append((time.perf_counter() - begin) / count)
    columns = np.unique(np.linspace(0, len(w.codes) - 1, 128).astype(np.int64))
    wanted = x.astype(np.float64) @ w.rows(columns).astype(np.float64).T
    error = np.linalg.norm(outputs[0].numpy()[:, columns] - wanted) / np.linalg.norm(wanted)
    if not error <= 0.03:
        raise SystemExit(f"{made.graph.node[0].op_type} {w.format} {w.codes.shape} M = {M}: relative error {error:.2g}")
    return float(np.median(times))


def measure(N: int, K: int, M: int, format: str, block: int, repeats: int) -> dict[str, float]:
    w = products.random_weight(format, block, N, K, np.random.default_rng())
    count = max(2, math.ceil(TOTAL / w.bytes))
    times = {}
    for name, op, domain, arrays, attributes in spellings(w):
        times[name] = seconds(model(op, domain, arrays, attributes, count, M), w, M, repeats)
    return times


def parse(text: str) -> list[dict[str, float]]:
    """What `main` printed, one line a case."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def main(repeats: int, cases: list[str]) -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise SystemExit("this onnxruntime has no CUDA provider: pip install 'onnxq[gpu]'")
    for case in cases:
        N, K, M, format, block = case.split(",")
        print(json.dumps(measure(int(N), int(K), int(M), format, int(block), repeats)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
