"""tensorrt: NVIDIA TensorRT, by itself or as onnxruntime's provider."""

from __future__ import annotations

import dataclasses

from onnxq import formats
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.schemes import weight_format
from onnxq.targets import Target, is_plain_matmul
from onnxq.targets.onnx import BLOCKS

#: Blocks of int4 weights that it reads, the longest first.
INT4_BLOCKS = (128, 64)
#: Of activations and weights alike.
FLOAT8 = "float8_e4m3"
#: Of weights alone; the block, of which rows and columns are multiples; the opset that brought float4.
FLOAT4, FLOAT4_BLOCK, WITH_FLOAT4 = "nvfp4", 16, 23


class tensorrt(Target):
    """By NVIDIA's documentation of TensorRT 10 and 11 (Quantization Schemes, Explicit Quantization, Q/DQ
    Layer-Placement Recommendations): everything is symmetric; activations have one scale, weights one a channel; inputs
    of products and convolutions are rounded, their outputs are not unless an integer kernel reads them; of a sum that
    operand is which no convolution makes; biases are floats; int4 is for weights, in blocks of 64 or 128. With
    float8_e4m3 for a scheme, activations and weights are that, each with one scale. With nvfp4 weights alone are
    float4, with scales of blocks in float8 that share one factor, as NVIDIA's exporter (ModelOpt, `nvfp4_exporter.py`)
    spells them: [outputs, inputs], a Transpose behind. Weights alone are documented by Torch-TensorRT (TorchAO NVFP4
    Weight-Only Quantization), for matrices whose dimensions are multiples of 16; the activations of NVIDIA's exporter
    are rounded in each run by an operator of TensorRT's own (TRT_FP4DynamicQuantize), which is not written.
    """

    name = "tensorrt"
    float_types = ("float32", "float16")
    static = ("Conv", "MatMul", "Gemm")
    static_weights = ("int8", FLOAT8)
    packed = ("MatMul", "Gemm")
    consumer = "TensorrtExecutionProvider"
    least_bits = 4
    auto = ("w8a8", "fp16")
    activations = "int8"
    has_integer_biases = False
    rounds_for_float = False
    one_is_enough = True
    spelled = (FLOAT4,)
    blocks_last = True
    passes = ("insert_qdq", "join_sums", "replace_matmuls", "spell_floats", "store_weights", "convert_to_half")

    def opset_for(self, scheme: str) -> int:
        if scheme == FLOAT4:
            return WITH_FLOAT4
        format = formats.get(weight_format(scheme) or "int8")
        return max(super().opset_for(scheme), BLOCKS if format.is_integer and format.bits == 4 else 0)

    def rounds_activations(self, scheme: str) -> bool:
        return scheme == FLOAT8 or super().rounds_activations(scheme)

    def activations_of(self, scheme: str) -> str:
        return FLOAT8 if scheme == FLOAT8 else super().activations_of(scheme)

    def refusal(self, word: str) -> str:
        if word == FLOAT4:
            return ""
        if word == "uint4":
            return "TensorRT has no zero points"
        return super().refusal(word)

    def preferred(self, weight: Weight, wish: Choice) -> Choice:
        format = formats.get(wish.format or "")
        if wish.method is not Method.PACKED or wish.op == "Gather" or format.bits != 4 or format.has_fixed_block:
            return wish
        k = weight.shape[weight.role.contraction]
        block = next((block for block in INT4_BLOCKS if k % block == 0), None)
        if block is None:
            return wish
        return wish.to(Method.PACKED, "int4" if format.name == "uint4" else format.name, block)

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.format == FLOAT4:
            reason = _no_float4(weight)
            if not reason:
                return wish.to(Method.STORED, FLOAT4, FLOAT4_BLOCK, wish.reason)
            wish = wish.to(Method.STORED, "int8", None, reason)
        if wish.method is Method.STATIC and wish.format == FLOAT8:
            return super().place(weight, dataclasses.replace(wish, granularity="tensor"))
        if wish.method is Method.DYNAMIC:
            return in_float(wish, "TensorRT wants ranges known before: 8 bits a channel, unpacked when the model loads")
        if wish.method is Method.PACKED:
            format = formats.get(wish.format or "")
            if not format.is_integer or format.bits not in (4, 8) or (format.bits == 4 and format.offset_type):
                wish = in_float(wish, f"TensorRT multiplies by no {wish.format} weights: unpacked when the model loads")
            elif wish.op == "Gather":
                wish = in_float(wish, "TensorRT looks no rows up in blocks: unpacked when the model loads")
            elif format.bits == 8:
                wish = in_float(wish, "TensorRT has no blocks of 8 bits: unpacked when the model loads")
            elif wish.block not in INT4_BLOCKS or weight.shape[weight.role.contraction] % wish.block:
                wish = in_float(wish, "TensorRT reads int4 in whole blocks of 64 or 128: unpacked when the model loads")
        return super().place(weight, wish)


def _no_float4(weight: Weight) -> str:
    """Why the weight cannot be in float4; empty if it can."""
    if not is_plain_matmul(weight):
        return "TensorRT has float4 for matrices of products only: 8 bits a channel"
    if any(size % FLOAT4_BLOCK for size in weight.shape):
        return f"TensorRT reads float4 in rows and columns of whole {FLOAT4_BLOCK}s: 8 bits a channel"
    return ""
