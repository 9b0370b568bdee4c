"""Products by one random weight, written for onnxq and for onnxruntime's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxq import formats

TILE = 16
#: Formats without codes and scales.
DENSE: dict[str, np.dtype] = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
Arrays = Callable[["Weight"], dict[str, NDArray]]


@dataclass
class Weight:
    """codes uint8 [N, K], scales [N, K / block] as stored: float16, or E8M0 for mxfp4.

    Of formats without codes the numbers themselves.
    """

    format: str
    block: int
    codes: NDArray
    stored: NDArray

    @property
    def bits(self) -> int:
        return 16 if self.format in DENSE else 8 if self.format == "int8" else 4

    @property
    def scales(self) -> NDArray[np.float32]:
        if self.format == "mxfp4":
            return np.exp2(self.stored.astype(np.float32) - 127)
        return self.stored.astype(np.float32)

    @property
    def bytes(self) -> int:
        """Of weight and scales as onnxq reads them."""
        return self.codes.size * self.bits // 8 + self.stored.nbytes

    def copy(self, number: int) -> Weight:
        """The same tiles of rows from another one on: bytes that a runtime cannot take for those of another copy.

        onnxruntime keeps weights once that are equal, and would find them in the cache.
        """
        return replace(self, codes=_turned(self.codes, number), stored=_turned(self.stored, number))

    def rows(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """w of some rows; exact, but for the rounding of a table's level times the scale."""
        codes = self.codes[rows]
        if self.format in DENSE:
            return codes.astype(np.float32)
        levels = formats.get(self.format).levels
        if levels is not None:
            values = np.asarray(levels, np.float32)[codes]
        else:
            values = codes.astype(np.float32) - np.float32(128 if self.format == "int8" else 8)
        return values * np.repeat(self.scales[rows], self.block, axis=1)


def _turned(rows: NDArray, tiles: int) -> NDArray:
    return np.roll(rows, TILE * tiles, axis=0)


def columns_of(y: NDArray, copy: int) -> NDArray:
    """What the product by a copy gave, in the order of the weight itself."""
    return np.roll(y, -TILE * copy, axis=1)


def random_weight(format: str, block: int, N: int, K: int, rng: np.random.Generator) -> Weight:
    """K a multiple of the block, N of 16: every code, scales as of normal weights."""
    if format in DENSE:
        numbers = rng.standard_normal((N, K), np.float32) / np.float32(np.sqrt(K))
        return Weight(format, block, numbers.astype(DENSE[format]), np.empty((N, 0), np.float16))
    codes = rng.integers(0, 256 if format == "int8" else 16, (N, K), np.uint8)
    if format == "mxfp4":
        return Weight(format, block, codes, rng.integers(118, 122, (N, K // block), np.uint8))
    return Weight(format, block, codes, rng.uniform(0.001, 0.003, (N, K // block)).astype(np.float16))


def tiled(w: Weight) -> tuple[NDArray[np.uint8], NDArray]:
    """Codes and scales as custom_ops/base/format.h draws them."""
    N, K = w.codes.shape
    tiles: NDArray[np.uint8]
    if w.bits == 8:
        tiles = w.codes.reshape(N // TILE, TILE, K // 4, 4).transpose(0, 2, 1, 3)
    else:
        nibbles = w.codes.reshape(N // TILE, TILE, K // 8, 2, 4).transpose(0, 2, 1, 3, 4)
        tiles = nibbles[..., 0, :] | nibbles[..., 1, :] << np.uint8(4)
    scales = w.stored.reshape(N // TILE, TILE, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(tiles), np.ascontiguousarray(scales)


def dense_tiled(w: Weight) -> NDArray:
    """Numbers as it draws them, K a multiple of 32."""
    N, K = w.codes.shape
    return np.ascontiguousarray(w.codes.reshape(N // TILE, TILE, K // 2, 2).transpose(0, 2, 1, 3))


def ours(w: Weight, activations: str, copies: int = 1) -> onnx.ModelProto:
    """onnxq::MatMulNBits, or DenseMatMul."""
    N, K = w.codes.shape
    if w.format in DENSE:
        tiles: Arrays = lambda copy: {"weight": dense_tiled(copy)}  # noqa: E731
        return _model("DenseMatMul", "onnxq", w, tiles, copies, K=K, N=N, activations=activations)
    return _model(
        "MatMulNBits",
        "onnxq",
        w,
        lambda copy: dict(zip(("weight", "scales"), tiled(copy), strict=True)),
        copies,
        K=K,
        N=N,
        block_size=w.block,
        format=w.format,
        activations=activations,
    )


def matmul_nbits(w: Weight, level: int, copies: int = 1) -> onnx.ModelProto:
    """com.microsoft::MatMulNBits with float32 scales, for which onnxruntime has its best kernels."""
    N, K = w.codes.shape

    def arrays(copy: Weight) -> dict[str, NDArray]:
        packed = copy.codes if w.bits == 8 else copy.codes[:, ::2] | copy.codes[:, 1::2] << 4
        return {"w": packed.reshape(N, K // w.block, -1), "s": copy.scales}

    return _model(
        "MatMulNBits",
        "com.microsoft",
        w,
        arrays,
        copies,
        K=K,
        N=N,
        bits=w.bits,
        block_size=w.block,
        accuracy_level=level,
    )


def matmul_bnb4(w: Weight, copies: int = 1) -> onnx.ModelProto:
    """com.microsoft::MatMulBnb4 of nf4 or fp4."""
    N, K = w.codes.shape

    def arrays(copy: Weight) -> dict[str, NDArray]:
        return {"w": (copy.codes[:, ::2] << 4 | copy.codes[:, 1::2]).reshape(-1), "s": copy.scales.reshape(-1)}

    sizes = {"K": K, "N": N, "block_size": w.block, "quant_type": {"fp4": 0, "nf4": 1}[w.format]}
    return _model("MatMulBnb4", "com.microsoft", w, arrays, copies, **sizes)


def matmul(w: Weight, copies: int = 1) -> onnx.ModelProto:
    """MatMul with the weight in float32."""
    return _model("MatMul", "", w, lambda copy: {"w": copy.rows(slice(None)).T}, copies)


def _model(
    op: str,
    domain: str,
    w: Weight,
    arrays: Arrays,
    copies: int,
    **attributes: int | str,
) -> onnx.ModelProto:
    """The product, `copies` times, each with a weight of its own."""
    N, K = w.codes.shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", K])
    nodes, outputs, tensors = [], [], []
    for number in range(copies):
        made = {f"{name}{number}": array for name, array in arrays(w.copy(number)).items()}
        tensors += [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in made.items()]
        node = helper.make_node(op, ["x", *made], [f"y{number}"], domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        nodes.append(node)
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, ["M", N]))
    opsets = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(
        helper.make_graph(nodes, "product", [x], outputs, tensors), opset_imports=opsets, ir_version=10
    )
