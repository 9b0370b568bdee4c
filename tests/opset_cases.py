"""A small model of each operator that has had more than one version, in the words that each version has for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import onnx
import tiny
from numpy.typing import ArrayLike
from tiny import normal

_ONE = "float[2,3,4,4] x"
_IMAGE = "float[1,2,6,6] x"
_STEP = "body = b (float[3] h, float[3] e) => (h2, o) { h2 = Add(h, e)  o = Neg(h2) }"
_TWICE = "body = b (int64 i, bool go, float[2,3,4,4] s) => (go2, s2) { go2 = Identity(go)  s2 = Softmax(s) }"
_BRANCHES = "then_branch = t () => (p) {{ p = {} }}, else_branch = e () => (q) {{ q = Softmax(x) }}"
_WINDOW = "kernel_shape=[3,3], strides=[2,2]"
_THIRD, _BY, _COLUMN, _HALVES = "axis=-3", ", scale, zero", ", scales, zeros", "kernel_shape=[2,2], strides=[2,2]"
_CENTERS = "coordinate_transformation_mode"


_F = np.float32
CONSTANTS: dict[str, ArrayLike] = {
    "one": _F(1),
    "half": _F(0.5),
    "half_1": _F([0.5]),
    "low": _F(-0.5),
    "high": _F(0.5),
    "thousand": _F(1000),
    "two": _F([0.5, 2]),
    "four": _F([0.5, 1, 2, 3]),
    "zero_f": _F(0),
    "column": normal(3, 1, 1),
    "row": normal(3),
    "scale": _F(0.05),
    "zero": np.uint8(100),
    "scales": _F([0.1, 0.2, 0.3]),
    "zeros": np.int8([1, -2, 3]),
    "small": _F(0.01),
    "codes": np.uint8([[3, 250], [120, 9], [77, 100]]),
    "kernel": normal(2, 2, 3, 3),
    "four_two": normal(4, 2),
    "grid": 2 * normal(1, 3, 4, 2),
    "updates": normal(2, 3),
    "none": _F([]),
    "gru_w": normal(1, 6, 4),
    "gru_r": normal(1, 6, 2),
    "gru_b": normal(1, 12),
    "rnn_w": normal(1, 2, 4),
    "lstm_w": normal(1, 8, 4),
    "lstm_r": normal(1, 8, 2),
    "lstm_b": normal(1, 16),
    "rnn_r": normal(1, 2, 2),
    "rois": _F([[0, 0, 0, 4, 4], [0, 1, 2, 5, 5]]),
    "rois_4": _F([[0, 0, 4, 4], [1, 2, 5, 5]]),
    "boxes": _F([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]]]),
    "scores": _F([[[0.9, 0.75, 0.6]]]),
    "double": _F([1, 1, 2, 2]),
    "odd": _F([1, 1, 1.5, 1.7]),
    "down": _F([1, 1, 0.5, 0.6]),
    "up_and_down": _F([1, 1, 1.7, 0.4]),
    "roi": _F([]),
    "part": _F([0, 0, 0.1, 0.2, 1, 1, 0.9, 1.3]),
    "three_i": np.int64(3),
    "zero_i": np.int64(0),
    "axis": np.int64(2),
    "depth": np.int64(3),
    "two_k": [2],
    "three_32": np.int32(3),
    "bits": [True, False],
    "shape_234": [2, 3, 4],
    "places": [1, 0],
    "negative": [-1, 0],
    "elements": np.arange(64).reshape(2, 2, 4, 4) % 3,
    "points": [[0, 1], [1, 2]],
    "batched": [[0, 1], [2, 3]],
    "labels": [0, 2],
    "batches": [0, 0],
    "cells": [[1, 0, 2], [0, 2, 1]],
    "rows": [[1], [0]],
    "axes": [1],
    "pads": [0, 0, 1, 2, 0, 0, 3, 4],
    "zero_minus": [0, -1],
    "minus": [2, -1],
    "sizes": [1, 2, 9, 10],
    "starts": [3, 0],
    "ends": [0, 2],
    "axes_2": [3, 1],
    "steps": [-1, 1],
    "parts": [1, 3],
    "repeats": [1, 2, 1, 2],
}


@dataclass(frozen=True)
class Case:
    """Nodes that are legal in the opsets from `first` to `last`.

    Attributes:
        inputs, nodes: ONNX text, which reads `CONSTANTS` too; what is computed is called y.
    """

    op: str
    first: int
    last: int
    inputs: str
    nodes: str

    def model(self, opset: int) -> onnx.ModelProto:
        words = set(re.findall(r"\w+", self.nodes))
        text = f"g ({self.inputs}) => (y) {{ {self.nodes} }}"
        constants = {name: np.asarray(x) for name, x in CONSTANTS.items() if name in words}
        return tiny.model(text, constants, opset=opset, ir_version=10 if opset >= 21 else 8)


def _case(line: str) -> Case:
    op, opsets, inputs, nodes = (part.strip() for part in line.split("|"))
    first, _, last = opsets.partition("-")
    return Case(op, int(first), int(last or 99), inputs, nodes)


_UNARY = (
    *("Abs", "Atan", "Ceil", "Cos", "Elu", "Exp", "Floor", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid"),
    *("LeakyRelu", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Tan", "Tanh"),
)
_BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")
_REDUCTIONS = ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

_LINES = f"""
Acos | 7 | {_ONE} | t = Tanh(x)  u = Mul(t, half)  y = Acos(u)
Acosh | 9 | {_ONE} | e = Exp(x)  t = Add(e, e)  s = Abs(t)  u = Add(s, one)  y = Acosh(u)
ArgMax | 7 | {_ONE} | y = ArgMax<axis=1>(x)
ArgMax | 7 | {_ONE} | y = ArgMax<axis=2, keepdims=0>(x)
ArgMin | 7 | {_ONE} | y = ArgMin<axis=3>(x)
Asin | 7 | {_ONE} | t = Tanh(x)  u = Mul(t, half)  y = Asin(u)
Asinh | 9 | {_ONE} | y = Asinh(x)
Atanh | 9 | {_ONE} | t = Tanh(x)  u = Mul(t, half)  y = Atanh(u)
AveragePool | 7 | {_IMAGE} | y = AveragePool<{_WINDOW}, pads=[1,1,1,1]>(x)
AveragePool | 7 | {_IMAGE} | y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)
AveragePool | 7 | {_IMAGE} | y = AveragePool<{_WINDOW}, auto_pad="SAME_LOWER">(x)
AveragePool | 10 | {_IMAGE} | y = AveragePool<{_WINDOW}, ceil_mode=1>(x)
AveragePool | 10 | {_IMAGE} | y = AveragePool<{_WINDOW}, pads=[1,1,1,1], ceil_mode=1>(x)
AveragePool | 10 | {_IMAGE} | y = AveragePool<{_WINDOW}, pads=[1,1,0,0], ceil_mode=1, count_include_pad=1>(x)
BatchNormalization | 7-8 | {_IMAGE} | y = BatchNormalization<spatial=1>(x, two, two, two, two)
BatchNormalization | 7 | {_IMAGE} | y = BatchNormalization<epsilon=0.1>(x, two, two, two, two)
Cast | 7 | {_ONE} | i = Cast<to=7>(x)  y = Cast<to=1>(i)
Cast | 7 | {_ONE} | i = Cast<to=9>(x)  y = Cast<to=1>(i)
Cast | 19 | {_ONE} | s = Mul(x, thousand)  i = Cast<to=17>(s)  y = Cast<to=1>(i)
Cast | 19 | {_ONE} | s = Mul(x, thousand)  i = Cast<to=17, saturate=0>(s)  y = Cast<to=1>(i)
CastLike | 15 | {_ONE} | i = CastLike(x, three_i)  y = CastLike(i, x)
CastLike | 19 | {_ONE} | k = Cast<to=17>(small)  s = Mul(x, thousand)  i = CastLike(s, k)  y = CastLike(i, x)
Clip | 7-10 | {_ONE} | y = Clip<min=-0.5, max=0.5>(x)
Clip | 7-10 | {_ONE} | y = Clip<max=0.5>(x)
Clip | 7-10 | {_ONE} | y = Clip<min=0.5>(x)
Clip | 7-10 | {_ONE} | y = Clip(x)
Clip | 7-10 | float16[2,3] x | y = Clip<min=-0.5, max=0.5>(x)
Clip | 11 | {_ONE} | y = Clip(x, low, high)
Clip | 11 | {_ONE} | y = Clip(x, , high)
Compress | 9 | {_ONE} | y = Compress<axis=1>(x, bits)
Compress | 9 | {_ONE} | y = Compress(x, bits)
Concat | 7 | {_ONE} | y = Concat<axis=1>(x, x)
Constant | 7 | {_ONE} | k = Constant<value = float[1] {{2}}>()  y = Mul(x, k)
ConstantOfShape | 9 | {_ONE} | s = Shape(x)  k = ConstantOfShape<value = float[1] {{2}}>(s)  y = Mul(x, k)
ConstantOfShape | 9 | {_ONE} | s = Shape(x)  y = ConstantOfShape(s)
Conv | 7 | {_IMAGE} | y = Conv<pads=[1,1,1,1]>(x, kernel)
Conv | 7 | {_IMAGE} | y = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, kernel)
ConvTranspose | 7 | {_IMAGE} | y = ConvTranspose<strides=[2,2]>(x, kernel)
ConvTranspose | 7 | {_IMAGE} | y = ConvTranspose<strides=[2,2], output_padding=[1,1], pads=[1,1,1,1]>(x, kernel)
ConvTranspose | 7 | {_IMAGE} | y = ConvTranspose<strides=[2,2], auto_pad="SAME_UPPER">(x, kernel)
ConvTranspose | 7 | {_IMAGE} | y = ConvTranspose<strides=[2,2], auto_pad="SAME_LOWER">(x, kernel)
ConvTranspose | 7 | {_IMAGE} | y = ConvTranspose<strides=[2,2], output_shape=[12,12]>(x, kernel)
Cosh | 9 | {_ONE} | y = Cosh(x)
CumSum | 11 | {_ONE} | y = CumSum<reverse=1>(x, axis)
CumSum | 11 | {_ONE} | y = CumSum<exclusive=1>(x, axis)
DFT | 17-19 | float[2,5,1] x | y = DFT(x)
DFT | 17-19 | float[2,5,6,1] x | y = DFT<axis=2, onesided=1>(x)
DFT | 17-19 | float[2,5,6,2] x | y = DFT<axis=1, inverse=1>(x)
DFT | 17-19 | float[2,5,6,2] x | y = DFT<axis=1>(x, three_i)
DFT | 20 | float[2,5,6,2] x | y = DFT(x)
DepthToSpace | 7 | float[1,8,2,3] x | y = DepthToSpace<blocksize=2>(x)
DepthToSpace | 11 | float[1,8,2,3] x | y = DepthToSpace<blocksize=2, mode="CRD">(x)
DequantizeLinear | 10 | {_ONE} | q = QuantizeLinear(x, scale, zero)  y = DequantizeLinear(q, scale, zero)
DequantizeLinear | 13 | {_ONE} | q = QuantizeLinear(x, scales, zeros)  y = DequantizeLinear(q, scales, zeros)
DequantizeLinear | 13 | {_ONE} | q = QuantizeLinear<{_THIRD}>(x{_COLUMN})  y = DequantizeLinear<{_THIRD}>(q{_COLUMN})
Det | 11 | {_ONE} | y = Det(x)
Dropout | 7-11 | {_ONE} | y = Dropout<ratio=0.3>(x)
Dropout | 7-11 | {_ONE} | y = Dropout(x)
Dropout | 7-9 | {_ONE} | z, m = Dropout(x)  y = Add(x, m)
Dropout | 10-11 | {_ONE} | z, m = Dropout<ratio=0.3>(x)  n = Cast<to=1>(m)  y = Add(x, n)
Dropout | 12 | {_ONE} | y = Dropout(x, half)
Equal | 7 | {_ONE} | i = Cast<to=6>(x)  e = Equal(i, three_32)  y = Cast<to=1>(e)
Equal | 11 | {_ONE} | e = Equal(x, x)  y = Cast<to=1>(e)
Erf | 9 | {_ONE} | y = Erf(x)
Expand | 8 | float[3,1] x | y = Expand(x, shape_234)
EyeLike | 9 | float[3,4] x | y = EyeLike<k=1>(x)
Flatten | 7 | {_ONE} | y = Flatten(x)
Flatten | 7 | {_ONE} | y = Flatten<axis=0>(x)
Flatten | 11 | {_ONE} | y = Flatten<axis=-1>(x)
GRU | 7 | float[5,2,4] x | y, h = GRU<hidden_size=2>(x, gru_w, gru_r)
GRU | 7 | float[5,2,4] x | y, h = GRU<hidden_size=2, linear_before_reset=1>(x, gru_w, gru_r, gru_b)
Gather | 7 | {_ONE} | y = Gather<axis=1>(x, places)
Gather | 11 | {_ONE} | y = Gather<axis=1>(x, negative)
GatherElements | 11 | {_ONE} | y = GatherElements<axis=1>(x, elements)
GatherND | 11 | {_ONE} | y = GatherND(x, points)
GatherND | 12 | {_ONE} | y = GatherND<batch_dims=1>(x, batched)
Gemm | 7 | float[3,4] x | y = Gemm<alpha=0.5, beta=2.0>(x, four_two, two)
Gemm | 7 | float[4,3] x | y = Gemm<transA=1>(x, four_two, two)
GlobalLpPool | 7 | {_IMAGE} | y = GlobalLpPool<p=3>(x)
Greater | 7 | {_ONE} | e = Greater(x, half)  y = Cast<to=1>(e)
GreaterOrEqual | 12 | {_ONE} | e = GreaterOrEqual(x, half)  y = Cast<to=1>(e)
GridSample | 16-19 | {_IMAGE} | y = GridSample(x, grid)
GridSample | 16-19 | {_IMAGE} | y = GridSample<mode="bilinear", padding_mode="border", align_corners=1>(x, grid)
GridSample | 16-19 | {_IMAGE} | y = GridSample<mode="bicubic">(x, grid)
GridSample | 16 | {_IMAGE} | y = GridSample<mode="nearest", padding_mode="reflection">(x, grid)
GroupNormalization | 18-20 | float[2,4,3,3] x | y = GroupNormalization<num_groups=2>(x, two, two)
GroupNormalization | 18-20 | float[2,4,3] x | y = GroupNormalization<num_groups=2, epsilon=0.1>(x, two, two)
GroupNormalization | 18-20 | float[2,2,3] x | y = GroupNormalization<num_groups=2>(x, two, two)
GroupNormalization | 18-20 | float[N,C,H,W] x | y = GroupNormalization<num_groups=2>(x, two, two)
GroupNormalization | 18-20 | float16[2,4,3] x | h = Cast<to=10>(two)  y = GroupNormalization<num_groups=2>(x, h, h)
GroupNormalization | 21 | float[2,4,3,3] x | y = GroupNormalization<num_groups=2>(x, four, four)
HardSwish | 14 | {_ONE} | y = HardSwish(x)
Hardmax | 7 | {_ONE} | y = Hardmax(x)
Hardmax | 7 | {_ONE} | y = Hardmax<axis=2>(x)
Hardmax | 7 | {_ONE} | y = Hardmax<axis=3>(x)
Hardmax | 7 | {_ONE} | y = Hardmax<axis=0>(x)
Hardmax | 7 | float[3,4] x | y = Hardmax(x)
Hardmax | 11 | {_ONE} | y = Hardmax<axis=-2>(x)
Hardmax | 11 | {_ONE} | y = Hardmax<axis=-1>(x)
Identity | 7 | {_ONE} | i = Identity(x)  y = Neg(i)
If | 7 | {_ONE}, bool c | y = If(c) <{_BRANCHES.format("Hardmax(x)")}>
If | 18-20 | float[2,4,3] x, bool c | y = If(c) <{_BRANCHES.format("GroupNormalization<num_groups=2>(x, two, two)")}>
InstanceNormalization | 7 | {_IMAGE} | y = InstanceNormalization(x, two, two)
IsInf | 10 | {_ONE} | d = Div(x, zero_f)  e = IsInf<detect_negative=0>(d)  y = Cast<to=1>(e)
IsNaN | 9 | {_ONE} | d = Sqrt(x)  e = IsNaN(d)  y = Cast<to=1>(e)
LRN | 7 | {_ONE} | y = LRN<size=3, alpha=0.5>(x)
LSTM | 7 | float[5,2,4] x | y, h = LSTM<hidden_size=2>(x, lstm_w, lstm_r)
LSTM | 7 | float[5,2,4] x | y, h = LSTM<hidden_size=2, direction="reverse", clip=0.5>(x, lstm_w, lstm_r, lstm_b)
Less | 7 | {_ONE} | e = Less(x, half)  y = Cast<to=1>(e)
LessOrEqual | 12 | {_ONE} | e = LessOrEqual(x, half)  y = Cast<to=1>(e)
Log | 7 | {_ONE} | a = Abs(x)  y = Log(a)
LogSoftmax | 7 | {_ONE} | y = LogSoftmax(x)
LogSoftmax | 7 | {_ONE} | y = LogSoftmax<axis=3>(x)
LogSoftmax | 11 | {_ONE} | y = LogSoftmax<axis=-2>(x)
Loop | 7 | {_ONE}, bool c | y = Loop(three_i, c, x) <{_TWICE}>
LpNormalization | 7 | {_ONE} | y = LpNormalization(x)
LpNormalization | 7 | {_ONE} | y = LpNormalization<p=1, axis=1>(x)
LpPool | 7 | {_IMAGE} | y = LpPool<kernel_shape=[2,3], strides=[2,1], p=3>(x)
LpPool | 7 | {_IMAGE} | y = LpPool<{_WINDOW}, auto_pad="SAME_UPPER">(x)
MatMul | 7 | {_ONE} | y = MatMul(x, four_two)
MaxPool | 7 | {_IMAGE} | y = MaxPool<{_WINDOW}, pads=[1,1,1,1]>(x)
MaxPool | 8 | {_IMAGE} | v, y = MaxPool<{_WINDOW}, storage_order=1>(x)
MaxPool | 10 | {_IMAGE} | y = MaxPool<{_WINDOW}, pads=[1,1,1,1], ceil_mode=1>(x)
MaxPool | 10 | {_IMAGE} | y = MaxPool<kernel_shape=[2,2], dilations=[2,2], ceil_mode=1>(x)
MaxRoiPool | 7 | {_IMAGE} | y = MaxRoiPool<pooled_shape=[2,2]>(x, rois)
MaxUnpool | 9 | {_IMAGE} | v, i = MaxPool<{_HALVES}>(x)  y = MaxUnpool<{_HALVES}>(v, i)
MeanVarianceNormalization | 9 | {_ONE} | y = MeanVarianceNormalization(x)
MeanVarianceNormalization | 9 | {_ONE} | y = MeanVarianceNormalization<axes=[1,2]>(x)
Mish | 18 | {_ONE} | y = Mish(x)
Mod | 10 | {_ONE} | y = Mod<fmod=1>(x, half)
Mod | 10 | int64[2,3] x | y = Mod(x, three_i)
NegativeLogLikelihoodLoss | 12 | float[2,3] x | l = LogSoftmax(x)  y = NegativeLogLikelihoodLoss(l, labels)
NonMaxSuppression | 10 | {_ONE} | y = NonMaxSuppression(boxes, scores, three_i, half_1)
NonMaxSuppression | 10 | {_ONE} | y = NonMaxSuppression(boxes, scores)
NonZero | 9 | {_ONE} | y = NonZero(x)
OneHot | 9 | {_ONE} | y = OneHot(places, depth, two)
OptionalHasElement | 15-17 | {_ONE} | o = Optional(x)  y = OptionalHasElement(o)
OptionalGetElement | 15-17 | {_ONE} | o = Optional(x)  y = OptionalGetElement(o)
PRelu | 7 | {_ONE} | y = PRelu(x, half)
PRelu | 7 | {_ONE} | y = PRelu(x, column)
Pad | 7-10 | {_IMAGE} | y = Pad<pads=[0,0,1,2,0,0,3,4], value=0.5>(x)
Pad | 7-10 | {_IMAGE} | y = Pad<pads=[0,0,1,2,0,0,-1,4]>(x)
Pad | 7-10 | {_IMAGE} | y = Pad<pads=[0,0,1,2,0,0,3,4], mode="reflect">(x)
Pad | 7-10 | {_IMAGE} | y = Pad<pads=[0,0,1,2,0,0,3,4], mode="edge", value=2.0>(x)
Pad | 7-10 | float16[2,3] x | y = Pad<pads=[1,0,1,2], value=0.5>(x)
Pad | 7-10 | double[2,3] x | y = Pad<pads=[1,0,1,2], value=0.5>(x)
Pad | 11 | {_IMAGE} | y = Pad(x, pads, half)
Pad | 11 | {_IMAGE} | y = Pad<mode="edge">(x, pads)
Pow | 7 | {_ONE} | y = Pow(x, half)
Pow | 12 | {_ONE} | y = Pow(x, three_i)
QLinearMatMul | 10 | float[2,3] x | q = QuantizeLinear(x{_BY})  y = QLinearMatMul(q{_BY}, codes{_BY}{_BY})
QuantizeLinear | 10 | {_ONE} | y = QuantizeLinear(x, scale, zero)
QuantizeLinear | 13 | {_ONE} | y = QuantizeLinear<axis=1>(x, scales, zeros)
QuantizeLinear | 19 | {_ONE} | k = Cast<to=17>(zero_f)  q = QuantizeLinear(x, small, k)  y = Cast<to=1>(q)
RNN | 7 | float[5,2,4] x | y, h = RNN<hidden_size=2, activations=["Relu"]>(x, rnn_w, rnn_r)
ReduceLogSum | 7-17 | {_ONE} | a = Abs(x)  y = ReduceLogSum<axes=[1]>(a)
ReduceLogSum | 18 | {_ONE} | a = Abs(x)  y = ReduceLogSum(a, axes)
ReduceSum | 7-12 | {_ONE} | y = ReduceSum<axes=[1]>(x)
ReduceSum | 7-12 | {_ONE} | y = ReduceSum<keepdims=0>(x)
ReduceSum | 11-12 | {_ONE} | y = ReduceSum<axes=[-1,0]>(x)
ReduceSum | 13 | {_ONE} | y = ReduceSum<noop_with_empty_axes=1>(x)
ReduceSum | 13 | {_ONE} | y = ReduceSum<keepdims=0>(x, axes)
Reshape | 7 | {_ONE} | y = Reshape(x, zero_minus)
Reshape | 14 | {_ONE} | y = Reshape<allowzero=1>(x, minus)
Resize | 10-10 | {_IMAGE} | y = Resize(x, double)
Resize | 10-10 | {_IMAGE} | y = Resize(x, odd)
Resize | 10-10 | {_IMAGE} | y = Resize(x, down)
Resize | 10-10 | {_IMAGE} | y = Resize<mode="linear">(x, double)
Resize | 10-10 | {_IMAGE} | y = Resize<mode="linear">(x, odd)
Resize | 10-10 | {_IMAGE} | y = Resize<mode="linear">(x, down)
Resize | 10-10 | float[1,2,C,D] x | y = Resize<mode="linear">(x, double)
Resize | 11 | {_IMAGE} | y = Resize<mode="linear">(x, roi, double)
Resize | 11 | {_IMAGE} | y = Resize<mode="cubic">(x, roi, odd)
Resize | 11 | {_IMAGE} | y = Resize<mode="cubic", exclude_outside=1, {_CENTERS}="pytorch_half_pixel">(x, roi, down)
Resize | 11 | {_IMAGE} | y = Resize<mode="nearest", nearest_mode="ceil", {_CENTERS}="asymmetric">(x, roi, odd)
Resize | 11 | {_IMAGE} | y = Resize<mode="nearest", {_CENTERS}="align_corners">(x, roi, none, sizes)
Resize | 11 | {_IMAGE} | y = Resize<{_CENTERS}="tf_crop_and_resize", mode="linear">(x, part, none, sizes)
Resize | 11-12 | {_IMAGE} | y = Resize<mode="nearest", {_CENTERS}="tf_half_pixel_for_nn">(x, roi, odd)
Resize | 11-12 | {_IMAGE} | y = Resize<mode="linear", {_CENTERS}="tf_half_pixel_for_nn">(x, roi, down)
Resize | 13 | {_IMAGE} | y = Resize(x, , odd)
RoiAlign | 10-15 | {_IMAGE} | y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, rois_4, batches)
RoiAlign | 16 | {_IMAGE} | y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, rois_4, batches)
RoiAlign | 10 | {_IMAGE} | y = RoiAlign<mode="max", output_height=2, output_width=2>(x, rois_4, batches)
Round | 11 | {_ONE} | s = Mul(x, thousand)  y = Round(s)
Scatter | 9-10 | float[3,3] x | y = Scatter(x, cells, updates)
Scatter | 9-10 | float[3,3] x | y = Scatter<axis=1>(x, cells, updates)
ScatterElements | 11 | float[3,3] x | y = ScatterElements<axis=1>(x, cells, updates)
ScatterElements | 16 | float[3,3] x | y = ScatterElements<reduction="add">(x, cells, updates)
ScatterND | 11 | float[3,3] x | y = ScatterND(x, rows, updates)
ScatterND | 16 | float[3,3] x | y = ScatterND<reduction="mul">(x, rows, updates)
Shape | 7 | {_ONE} | y = Shape(x)
Shape | 15 | {_ONE} | y = Shape<start=1, end=-1>(x)
Sign | 9 | {_ONE} | y = Sign(x)
Sinh | 9 | {_ONE} | y = Sinh(x)
Size | 7 | {_ONE} | y = Size(x)
Slice | 7-9 | {_ONE} | y = Slice<starts=[1,-3], ends=[9,-1], axes=[1,3]>(x)
Slice | 7-9 | {_ONE} | y = Slice<starts=[0,1], ends=[1,3]>(x)
Slice | 10 | {_ONE} | y = Slice(x, starts, ends, axes_2, steps)
Softmax | 7 | {_ONE} | y = Softmax(x)
Softmax | 7 | {_ONE} | y = Softmax<axis=2>(x)
Softmax | 7 | {_ONE} | y = Softmax<axis=0>(x)
Softmax | 7 | float[3,4] x | y = Softmax(x)
Softmax | 11 | {_ONE} | y = Softmax<axis=-2>(x)
Softmax | 11-12 | {_ONE} | u = Unsqueeze<axes=[0]>(x)  y = Softmax<axis=-1>(u)
SoftmaxCrossEntropyLoss | 12 | float[2,3] x | y = SoftmaxCrossEntropyLoss(x, labels)
SpaceToDepth | 7 | {_IMAGE} | y = SpaceToDepth<blocksize=2>(x)
Split | 7-12 | {_ONE} | a, y = Split<axis=3, split=[1,3]>(x)
Split | 7-17 | {_ONE} | a, y = Split<axis=3>(x)
Split | 13 | {_ONE} | a, y = Split<axis=3>(x, parts)
Split | 18 | {_ONE} | a, y = Split<axis=1, num_outputs=2>(x)
SplitToSequence | 11 | {_ONE} | s = SplitToSequence<axis=3>(x, parts)  y = SequenceAt(s, zero_i)
Sqrt | 7 | {_ONE} | a = Abs(x)  y = Sqrt(a)
Squeeze | 7-12 | float[1,3,1,4] x | y = Squeeze<axes=[2]>(x)
Squeeze | 7 | float[1,3,1,4] x | y = Squeeze(x)
Squeeze | 11-12 | float[1,3,1,4] x | y = Squeeze<axes=[-2]>(x)
Squeeze | 13 | float[3,1,4] x | y = Squeeze(x, axes)
Scan | 9 | float[5,3] x | y, s = Scan(row, x) <num_scan_inputs=1, {_STEP}>
Scatter | 9-10 | float[3,3] x | y = Scatter(x, cells, updates)
Scatter | 9-10 | float[3,3] x | y = Scatter<axis=1>(x, cells, updates)
OneHot | 11 | {_ONE} | y = OneHot(negative, depth, two)
Resize | 10-10 | {_IMAGE} | y = Resize(x, up_and_down)
Resize | 10-10 | {_IMAGE} | n = Shape(x)  i = Div(n, n)  f = Cast<to=1>(i)  s = Mul(up_and_down, f)  y = Resize(x, s)
ThresholdedRelu | 10 | {_ONE} | y = ThresholdedRelu<alpha=0.3>(x)
Tile | 7 | {_ONE} | y = Tile(x, repeats)
TopK | 7-9 | {_ONE} | y, i = TopK<k=2, axis=2>(x)
TopK | 7-9 | {_ONE} | v, y = TopK<k=2>(x)
TopK | 10 | {_ONE} | v, y = TopK<axis=3>(x, two_k)
TopK | 11 | {_ONE} | y, i = TopK<largest=0, sorted=1>(x, two_k)
Transpose | 7 | {_ONE} | y = Transpose<perm=[3,1,0,2]>(x)
Unsqueeze | 7-12 | {_ONE} | y = Unsqueeze<axes=[0,3]>(x)
Unsqueeze | 11-12 | {_ONE} | y = Unsqueeze<axes=[-1]>(x)
Unsqueeze | 13 | {_ONE} | y = Unsqueeze(x, axes)
Upsample | 7-8 | {_IMAGE} | y = Upsample<scales=[1.0,1.0,2.0,3.0]>(x)
Upsample | 7-8 | {_IMAGE} | y = Upsample<mode="linear", scales=[1.0,1.0,2.0,3.0]>(x)
Upsample | 9-9 | {_IMAGE} | y = Upsample(x, double)
Upsample | 9-9 | {_IMAGE} | y = Upsample(x, odd)
Upsample | 9-9 | {_IMAGE} | y = Upsample<mode="linear">(x, double)
Upsample | 9-9 | {_IMAGE} | y = Upsample<mode="linear">(x, odd)
And | 7 | {_ONE} | p = Less(x, half)  q = Greater(x, low)  a = And(p, q)  y = Cast<to=1>(a)
Or | 7 | {_ONE} | p = Less(x, low)  q = Greater(x, half)  a = Or(p, q)  y = Cast<to=1>(a)
Xor | 7 | {_ONE} | p = Less(x, low)  q = Less(x, half)  a = Xor(p, q)  y = Cast<to=1>(a)
Not | 7 | {_ONE} | p = Less(x, low)  a = Not(p)  y = Cast<to=1>(a)
Range | 11 | {_ONE} | y = Range(low, thousand, one)
Einsum | 12 | {_ONE} | y = Einsum<equation="abij,jk->abik">(x, four_two)
Trilu | 14 | {_ONE} | y = Trilu<upper=0>(x)
Where | 9 | {_ONE} | g = Greater(x, half)  y = Where(g, x, half)
"""
CASES = [_case(line) for line in _LINES.strip().splitlines()]
CASES += [Case(op, 7, 99, _IMAGE, f"y = {op}(x)") for op in _UNARY]
CASES += [Case(op, 8 if op in ("Max", "Mean", "Min", "Sum") else 7, 99, _ONE, f"y = {op}(x, column)") for op in _BINARY]
CASES += [Case(f"Reduce{op}", 7, 17, _ONE, f"y = Reduce{op}<axes=[1]>(x)") for op in _REDUCTIONS]
CASES += [Case(f"Reduce{op}", 7, 17, _ONE, f"y = Reduce{op}<keepdims=0>(x)") for op in _REDUCTIONS]
CASES += [Case(f"Reduce{op}", 18, 99, _ONE, f"y = Reduce{op}(x, axes)") for op in _REDUCTIONS]
