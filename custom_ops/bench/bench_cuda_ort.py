"""Products in onnxruntime on the GPU, by its own operators and by ours, for bench_cuda.py (bench_peers.py).

A model is one input and many products of it by different weights, run as one CUDA graph for each number of rows; a
product is its share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import bench_peers
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.bench_kernels import products

#: Columns of the result: our node inside onnxruntime, and its own operators.
NAMES = ("ours in ORT", "MatMulNBits", "MatMulNBits FPA_INTB", "MatMulBnb4")


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


def model(op: str, domain: str, arrays: dict[str, NDArray], attributes: dict[str, Any], count: int) -> onnx.ModelProto:
    """`count` products of one x [M, K] by weights that are the given one with its rows moved."""
    nodes, constants = [], []
    for i in range(count):
        for name, array in arrays.items():
            constants.append(numpy_helper.from_array(np.ascontiguousarray(np.roll(array, i, axis=0)), f"{name}{i}"))
        nodes.append(
            helper.make_node(op, ["x", *(f"{name}{i}" for name in arrays)], [f"y{i}"], domain=domain, **attributes)
        )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["M", attributes["K"]])
    y = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT16, ["M", attributes["N"]]) for i in range(count)]
    graph = helper.make_graph(nodes, "products", [x], y, constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def timer(
    made: onnx.ModelProto, w: products.Weight, provider: str = "CUDA", repeats: int = bench_peers.REPEATS
) -> bench_peers.Timer:
    """Of a session of `made`, the first product of which is by `w`."""
    count, device = len(made.graph.node), "cuda" if provider == "CUDA" else "cpu"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    settings = {"enable_cuda_graph": "1"} if provider == "CUDA" else {}
    session = onnxq.session(made.SerializeToString(), options, [(f"{provider}ExecutionProvider", settings)])
    if session.get_providers()[0] != f"{provider}ExecutionProvider":
        raise ValueError(f"onnxruntime has no {provider} provider here")

    def seconds(M: int) -> float:
        N, K = w.codes.shape
        x = np.random.default_rng().standard_normal((M, K), np.float32).astype(np.float16)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, device, 0))
        outputs = []
        for i in range(count):
            poison = np.full((M, N), np.nan, np.float16)
            outputs.append(onnxruntime.OrtValue.ortvalue_from_numpy(poison, device, 0))
            binding.bind_ortvalue_output(f"y{i}", outputs[-1])
        run = onnxruntime.RunOptions()
        run.add_run_config_entry("gpu_graph_id", str(M))
        times = []
        for i in range(repeats + 4):  # the first three run without a graph, or capture it
            begin = time.perf_counter()
            session.run_with_iobinding(binding, run)
            binding.synchronize_outputs()
            if i >= 4:
                times.append((time.perf_counter() - begin) / count)
        bench_peers.check(outputs[0].numpy(), x, w)
        return float(np.median(times))

    return seconds


def peers(w: products.Weight, count: int) -> Iterator[tuple[str, Callable[[], bench_peers.Timer]]]:
    for name, *spelled in spellings(w):
        yield name, partial(lambda spelled: timer(model(*spelled, count), w), spelled)


if __name__ == "__main__":
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise SystemExit("this onnxruntime has no CUDA provider: pip install 'onnxq[gpu]'")
    bench_peers.answer(peers)
