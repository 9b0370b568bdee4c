"""Products in PyTorch on the GPU: torchao's int4 and bitsandbytes' 4-bit kernels, for bench_cuda.py (bench_peers.py).

Products of one x by different weights are one CUDA graph; a product is its share. torchao's kernel takes bfloat16
activations, scales and zero points alone, bitsandbytes float16 and float32 scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import bench_peers
import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.bench_kernels import products

Multiply = Callable[[torch.Tensor], torch.Tensor]


def on_gpu(array: NDArray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def tinygemm(w: products.Weight) -> Multiply:
    """The kernel behind torchao's Int4WeightOnly, from PyTorch itself."""
    packed = on_gpu(w.codes[:, ::2] << 4 | w.codes[:, 1::2])
    weight = torch.ops.aten._convert_weight_to_int4pack(packed, 8)
    scales = on_gpu(w.scales.T).bfloat16()
    both = torch.stack([scales, torch.zeros_like(scales)], dim=2).contiguous()
    return lambda x: torch.ops.aten._weight_int4pack_mm(x, weight, w.block, both)


def bnb(w: products.Weight) -> Multiply:
    """What its Linear4bit calls: a kernel for few rows, dequantization and cuBLAS for more."""
    import bitsandbytes  # takes long, and may be missing

    packed = on_gpu((w.codes[:, ::2] << 4 | w.codes[:, 1::2]).reshape(-1, 1))
    state = bitsandbytes.functional.QuantState(
        absmax=on_gpu(w.scales.reshape(-1)),
        shape=torch.Size(w.codes.shape),
        code=bitsandbytes.functional.get_4bit_type(w.format, device="cuda"),
        blocksize=w.block,
        quant_type=w.format,
        dtype=torch.float16,
    )
    return lambda x: bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state)


def timer(
    make: Callable[[products.Weight], Multiply], dtype: torch.dtype, w: products.Weight, count: int
) -> bench_peers.Timer:
    multiply = [make(w.copy(i)) for i in range(count)]

    def seconds(M: int) -> float:
        x = torch.randn(M, w.codes.shape[1], device="cuda").to(dtype)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for each in multiply:
                each(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = [each(x) for each in multiply]
        times = []
        for i in range(bench_peers.REPEATS + 3):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            if i >= 3:
                times.append(first.elapsed_time(last) * 1e-3 / count)
        bench_peers.check(made[0].double().cpu().numpy(), x.double().cpu().numpy(), w)
        return float(np.median(times))

    return seconds


def peers(w: products.Weight, count: int) -> Iterator[tuple[str, Callable[[], bench_peers.Timer]]]:
    if w.format == "int4":
        yield "torchao int4", lambda: timer(tinygemm, torch.bfloat16, w, count)
    if w.format in ("nf4", "fp4"):
        yield "bitsandbytes", lambda: timer(bnb, torch.float16, w, count)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch has no GPU")
    bench_peers.answer(peers)
