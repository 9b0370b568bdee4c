"""A small model for every operator that can be trained through: nodes as ONNX text, inputs and constants."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from tiny import model


@dataclass(frozen=True)
class Case:
    """Nodes that make `y` of `x`.

    Attributes:
        constants: what else they read; floats among them get gradients too.
        x: the input; made of `shape` where it is not given.
        smooth: gradients are compared with finite differences.
    """

    nodes: str
    shape: tuple[int, ...] = (2, 3)
    constants: dict[str, NDArray] = field(default_factory=dict)
    x: NDArray | None = None
    smooth: bool = True
    opset: int = 18
    output: str = "float"
    body: str = ""

    def feed(self) -> NDArray:
        if self.x is not None:
            return self.x
        rng = np.random.default_rng(7)
        # Away from zero and from each other, where maxima and corners change.
        n = int(np.prod(self.shape))
        numbers = (rng.permutation(n) - n / 2 + 0.37) / max(4, n / 4)
        return numbers.reshape(self.shape).astype(np.float32)

    def proto(self) -> onnx.ModelProto:
        x = self.feed()
        kind = {"f": "float", "i": "int64", "b": "bool"}[x.dtype.kind]
        shape = ", ".join(map(str, x.shape))
        text = f"g ({kind}[{shape}] x) => ({self.output} y) {{ {self.nodes} }}"
        return model(text, self.constants, opset=self.opset)


def f(*shape: int, seed: int = 0) -> NDArray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def i(*numbers: int) -> NDArray:
    return np.array(numbers, np.int64)


def s(number: float) -> NDArray:
    return np.array(number, np.float32)


POSITIVE = np.linspace(0.3, 2.1, 6, dtype=np.float32).reshape(2, 3)
INNER = np.linspace(-0.8, 0.7, 6, dtype=np.float32).reshape(2, 3)
PICTURE = (1, 2, 5, 6)
STEPS = (4, 2, 3)  # steps, batch, inputs


def unary(*names: str, x: NDArray | None = None, opset: int = 18, smooth: bool = True) -> dict[str, Case]:
    return {name: Case(f"y = {name}(x)", x=x, opset=opset, smooth=smooth) for name in names}


def binary(*names: str, output: str = "float", smooth: bool = True) -> dict[str, Case]:
    return {n: Case(f"y = {n}(x, w)", constants={"w": f(3) + 2}, output=output, smooth=smooth) for n in names}


CASES: dict[str, Case] = {
    **unary("Abs", "Neg", "Exp", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Asinh", "Atan", "Erf", "Tanh", "Sigmoid"),
    **unary("Relu", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Elu", "Celu", "Selu", "LeakyRelu", "Mish"),
    **unary("Reciprocal", "Sqrt", "Log", x=POSITIVE),
    **unary("Asin", "Acos", "Atanh", x=INNER),
    **unary("Acosh", x=POSITIVE + 1),
    **unary("Floor", "Ceil", "Round", "Sign", smooth=False),
    **unary("ThresholdedRelu", x=f(2, 3) * 4),
    **unary("Identity", "Softmax", "LogSoftmax"),
    "GlobalAveragePool": Case("y = GlobalAveragePool(x)", PICTURE),
    "GlobalMaxPool": Case("y = GlobalMaxPool(x)", PICTURE),
    **unary("Gelu", opset=20),
    "Gelu tanh": Case('y = Gelu<approximate = "tanh">(x)', opset=20),
    "Shrink": Case("y = Shrink<lambd = 0.2, bias = 0.1>(x)"),
    "PRelu": Case("y = PRelu(x, w)", constants={"w": f(3)}),
    "Softmax old": Case("y = Softmax<axis = 1>(x)", (2, 3, 2), opset=11),
    "Hardmax": Case("y = Hardmax(x)", smooth=False),
    **binary("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"),
    "Pow": Case("y = Pow(x, w)", constants={"w": s(3)}),
    "Pow of each": Case("y = Pow(x, w)", x=POSITIVE, constants={"w": f(3) + 2}),
    "Mod": Case("y = Mod<fmod = 1>(x, w)", constants={"w": s(0.4)}, smooth=False),
    "Div of integers": Case("y = Div(x, w)", x=i(-7, 7, 5), constants={"w": i(2)}, output="int64", smooth=False),
    **binary("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", output="bool", smooth=False),
    "And": Case("a = Cast<to = 9>(x) b = Not(a) y = And(a, b)", output="bool", smooth=False),
    "Where": Case("c = Less(x, z) y = Where(c, x, w)", constants={"z": s(0.1), "w": f(3)}),
    "Clip": Case("y = Clip(x, a, b)", constants={"a": s(-0.3), "b": s(0.4)}),
    "Clip old": Case("y = Clip<min = -0.3, max = 0.4>(x)", opset=10),
    "Cast": Case("a = Cast<to = 11>(x) y = Cast<to = 1>(a)"),
    "MatMul": Case("y = MatMul(x, w)", constants={"w": f(3, 4)}),
    "MatMul of a stack": Case("y = MatMul(x, w)", (2, 2, 3), constants={"w": f(2, 3, 4)}),
    "Gemm": Case("y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(x, w, b)", constants={"w": f(4, 3), "b": f(4, seed=1)}),
    "Einsum": Case('y = Einsum<equation = "ij,jk->ik">(x, w)', constants={"w": f(3, 4)}),
    "CumSum": Case("y = CumSum<exclusive = 1, reverse = 1>(x, a)", constants={"a": i(1).reshape(())}),
    "Reshape": Case("y = Reshape(x, w)", constants={"w": i(0, -1, 1)}),
    "Flatten": Case("y = Flatten<axis = -1>(x)", (2, 3, 2)),
    "Transpose": Case("y = Transpose<perm = [2, 0, 1]>(x)", (2, 3, 2)),
    "Squeeze": Case("y = Squeeze(x, a)", (2, 1, 3), {"a": i(1)}),
    "Unsqueeze": Case("y = Unsqueeze(x, a)", constants={"a": i(0, -1)}),
    "Concat": Case("y = Concat<axis = -1>(x, w, x)", constants={"w": f(2, 2)}),
    "Split": Case("a, b = Split<axis = 1>(x, n) y = Concat<axis = 1>(b, a)", constants={"n": i(1, 2)}),
    "Split even": Case("a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(b, a)"),
    "Slice": Case("y = Slice(x, a, b, c, d)", (4, 5), {"a": i(-1, 1), "b": i(-100, 9), "c": i(0, 1), "d": i(-2, 1)}),
    "Expand": Case("y = Expand(x, w)", (2, 1), {"w": i(3, 1, 4)}),
    "Tile": Case("y = Tile(x, w)", constants={"w": i(2, 3)}),
    "Pad": Case("y = Pad(x, p, v)", constants={"p": i(0, 1, 1, -1), "v": s(0.5)}),
    "Pad reflect": Case('y = Pad<mode = "reflect">(x, p)', (3, 4), {"p": i(1, 2, 0, 3)}),
    "Pad edge": Case('y = Pad<mode = "edge">(x, p)', (3, 4), {"p": i(1, 2, 0, 1)}),
    "Trilu": Case("y = Trilu<upper = 0>(x, k)", (3, 3), {"k": i(1).reshape(())}),
    "DepthToSpace": Case("y = DepthToSpace<blocksize = 2>(x)", (1, 8, 2, 3)),
    "DepthToSpace CRD": Case('y = DepthToSpace<blocksize = 2, mode = "CRD">(x)', (1, 8, 2, 3)),
    "SpaceToDepth": Case("y = SpaceToDepth<blocksize = 2>(x)", (1, 2, 4, 6)),
    "ReverseSequence": Case("y = ReverseSequence(x, n)", (4, 2), {"n": i(3, 2)}),
    "Dropout": Case("y = Dropout(x)"),
    "Shape": Case("y = Shape<start = 1>(x)", output="int64", smooth=False),
    "Size": Case("y = Size(x)", output="int64", smooth=False),
    "ConstantOfShape": Case("n = Shape(x) o = ConstantOfShape<value = float[1] {2.0}>(n) y = Mul(x, o)"),
    "Range": Case("y = Range(a, b, c)", constants={"a": s(1), "b": s(4), "c": s(0.5)}, smooth=False),
    "EyeLike": Case("e = EyeLike<k = 1>(x) y = Add(x, e)", (3, 3)),
    "Gather": Case("y = Gather<axis = 1>(x, a)", constants={"a": i(2, -3, 2).reshape(1, 3)}),
    "Gather of one": Case("y = Gather(w, a)", x=i(1, 0, 3), constants={"w": f(4, 2), "a": i(2).reshape(())}),
    "an embedding": Case("y = Gather(w, x)", x=i(1, 0, 3), constants={"w": f(4, 2)}),
    "GatherElements": Case("y = GatherElements<axis = 1>(x, a)", constants={"a": i(2, -1, 0, 1).reshape(2, 2)}),
    "GatherND": Case("y = GatherND(x, a)", (2, 3, 2), {"a": i(0, 1, 1, -1).reshape(2, 2)}),
    "GatherND of rows": Case("y = GatherND<batch_dims = 1>(x, a)", (2, 3, 2), {"a": i(1, 2).reshape(2, 1)}),
    "ScatterElements": Case(
        "y = ScatterElements<axis = 1>(x, a, w)", constants={"a": i(1, 0).reshape(2, 1), "w": f(2, 1)}
    ),
    "ScatterND": Case("y = ScatterND(x, a, w)", constants={"a": i(1).reshape(1, 1), "w": f(1, 3)}),
    "TopK": Case("y, n = TopK(x, k)", constants={"k": i(2)}),
    "ArgMax": Case("y = ArgMax<axis = 1>(x)", output="int64", smooth=False),
    "ArgMin last": Case("y = ArgMin<axis = 0, keepdims = 0, select_last_index = 1>(x)", output="int64", smooth=False),
    "NonZero": Case("r = Relu(x) y = NonZero(r)", output="int64", smooth=False),
    "Compress": Case("y = Compress<axis = 1>(x, c)", constants={"c": np.array([True, False, True])}),
    "OneHot": Case("y = OneHot(x, d, v)", x=i(1, -1, 3), constants={"d": i(4), "v": f(2)}, smooth=False),
    "CastLike": Case("y = CastLike(x, w)", constants={"w": f(1)}),
    "IsNaN": Case("y = IsNaN(x)", output="bool", smooth=False),
    "BatchNormalization": Case(
        "y = BatchNormalization(x, a, b, c, d)",
        PICTURE,
        {"a": f(2) + 1, "b": f(2, seed=1), "c": f(2, seed=2), "d": np.array([0.5, 2], np.float32)},
    ),
    "InstanceNormalization": Case("y = InstanceNormalization(x, a, b)", PICTURE, {"a": f(2) + 1, "b": f(2, seed=1)}),
    "LayerNormalization": Case("y = LayerNormalization(x, a, b)", (2, 4), {"a": f(4) + 1, "b": f(4, seed=1)}),
    "GroupNormalization": Case(
        "y = GroupNormalization<num_groups = 2>(x, a, b)", (1, 4, 3, 2), {"a": f(4) + 1, "b": f(4)}, opset=21
    ),
    "LpNormalization": Case("y = LpNormalization<axis = 1>(x)", (2, 4)),
    "MeanVarianceNormalization": Case("y = MeanVarianceNormalization(x)", PICTURE),
    "LRN": Case("y = LRN<size = 3, alpha = 0.3, bias = 1.5>(x)", (1, 5, 2, 2)),
    "ReduceMean no axes": Case("y = ReduceMean<keepdims = 0>(x)"),
    "ReduceSum old": Case("y = ReduceSum<axes = [1]>(x)", opset=11),
    **{
        name: Case(f"y = {name}(x, a)", (2, 3, 2), {"a": i(-1, 0)}, x=f(2, 3, 2, seed=3) + 3)
        for name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin")
    },
    **{
        name: Case(f"y = {name}(x, a)", (2, 3, 2), {"a": i(1)})
        for name in ("ReduceProd", "ReduceSum", "ReduceSumSquare")
    },
    "Conv": Case("y = Conv<pads = [1, 0, 1, 1], strides = [2, 1]>(x, w, b)", PICTURE, {"w": f(3, 2, 3, 3), "b": f(3)}),
    "Conv same": Case('y = Conv<auto_pad = "SAME_LOWER">(x, w)', (1, 2, 7), {"w": f(3, 2, 4)}),
    "Conv of groups": Case("y = Conv<group = 2, dilations = [2, 1]>(x, w)", PICTURE, {"w": f(4, 1, 2, 2)}),
    "Conv of volumes": Case("y = Conv(x, w)", (1, 1, 3, 4, 3), {"w": f(2, 1, 2, 2, 2)}),
    "ConvTranspose": Case(
        "y = ConvTranspose<strides = [2, 2], pads = [1, 0, 0, 1], output_padding = [1, 0]>(x, w, b)",
        (1, 2, 3, 3),
        {"w": f(2, 3, 3, 3), "b": f(3)},
    ),
    "ConvTranspose to a shape": Case(
        "y = ConvTranspose<strides = [2], output_shape = [8]>(x, w)", (1, 2, 3), {"w": f(2, 2, 3)}
    ),
    "MaxPool": Case("y = MaxPool<kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1>(x)", PICTURE),
    "MaxPool padded": Case("y = MaxPool<kernel_shape = [3, 3], pads = [1, 0, 1, 2], dilations = [1, 2]>(x)", PICTURE),
    "AveragePool": Case("y = AveragePool<kernel_shape = [2, 3], pads = [1, 1, 0, 1]>(x)", PICTURE),
    "AveragePool of all": Case(
        "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1, "
        "ceil_mode = 1>(x)",
        PICTURE,
    ),
    "AveragePool same": Case('y = AveragePool<kernel_shape = [2, 2], auto_pad = "SAME_UPPER">(x)', PICTURE),
    "LpPool": Case("y = LpPool<kernel_shape = [2, 2]>(x)", PICTURE),
    "GlobalLpPool": Case("y = GlobalLpPool(x)", PICTURE),
    "Resize nearest": Case("y = Resize(x, , r)", (1, 1, 3, 4), {"r": np.array([1, 1, 2, 1.5], np.float32)}),
    "Resize linear": Case(
        'y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , r)',
        (1, 1, 3, 4),
        {"r": i(1, 1, 5, 3)},
    ),
    "Resize cubic": Case(
        'y = Resize<mode = "cubic", cubic_coeff_a = -0.5>(x, , r)',
        (1, 1, 4, 4),
        {"r": np.array([1, 1, 2, 1], np.float32)},
    ),
    "Upsample": Case("y = Upsample(x, r)", (1, 1, 2, 3), {"r": np.array([1, 1, 2, 3], np.float32)}, opset=9),
    "GridSample": Case("y = GridSample(x, g)", (1, 1, 4, 4), {"g": f(1, 2, 3, 2)}, opset=20),
    "LSTM": Case(
        'y, h, c = LSTM<hidden_size = 2, direction = "bidirectional">(x, w, r, b, , , , p)',
        STEPS,
        {"w": f(2, 8, 3), "r": f(2, 8, 2, seed=1), "b": f(2, 16, seed=2), "p": f(2, 6, seed=3)},
    ),
    "LSTM of lengths": Case(
        "y, h = LSTM<hidden_size = 2>(x, w, r, , n)",
        STEPS,
        {"w": f(1, 8, 3), "r": f(1, 8, 2, seed=1), "n": np.array([4, 2], np.int32)},
    ),
    "GRU": Case(
        'y = GRU<hidden_size = 2, direction = "reverse", linear_before_reset = 1>(x, w, r, b)',
        STEPS,
        {"w": f(1, 6, 3), "r": f(1, 6, 2, seed=1), "b": f(1, 12, seed=2)},
    ),
    "GRU plain": Case(
        "y = GRU<hidden_size = 2>(x, w, r, b)",
        STEPS,
        {"w": f(1, 6, 3), "r": f(1, 6, 2, seed=1), "b": f(1, 12, seed=2)},
    ),
    "RNN": Case("y = RNN<hidden_size = 2>(x, w, r)", STEPS, {"w": f(1, 2, 3), "r": f(1, 2, 2, seed=1)}),
    "If": Case(
        "t = ReduceSum<keepdims = 0>(x) c = Less(t, z) y = If(c) <then_branch = a () => (float[2, 3] p) "
        "{ p = Mul(x, w) }, else_branch = b () => (float[2, 3] q) { q = Add(x, w) }>",
        constants={"z": s(0), "w": f(3)},
    ),
    "Loop": Case(
        "v, u = Loop(n, c, x) <body = l (int64 k, bool g, float[2, 3] p) => (bool h, float[2, 3] q, float[2, 3] r) "
        "{ h = Identity(g) q = Mul(p, w) r = Add(p, w) }> z = ReduceSum<keepdims = 0>(u, a) y = Add(v, z)",
        constants={"n": i(3).reshape(()), "c": np.array(True), "w": f(3), "a": i(0)},
    ),
    "Scan": Case(
        "v, y = Scan<num_scan_inputs = 1, body = l (float[3] p, float[3] e) => (float[3] q, float[3] r) "
        "{ m = Mul(p, w) q = Add(m, e) r = Tanh(q) }>(w, x)",
        constants={"w": f(3)},
    ),
    "SplitToSequence": Case("t = SplitToSequence<axis = 1>(x) y = ConcatFromSequence<axis = 0>(t)"),
    "QuantizeLinear": Case(
        "q = QuantizeLinear(x, a, z) y = DequantizeLinear(q, a, z)",
        constants={"a": s(0.05), "z": np.array(7, np.uint8)},
        smooth=False,
    ),
    "DequantizeLinear": Case(
        "w = DequantizeLinear<axis = 1>(q, a) y = MatMul(x, w)",
        constants={"q": np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "a": f(4) + 1},
    ),
    "DynamicQuantizeLinear": Case("q, a, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, a, z)", smooth=False),
    "FastGelu": Case("y = com.microsoft.FastGelu(x, b)", constants={"b": f(3)}),
    "QuickGelu": Case("y = com.microsoft.QuickGelu(x)"),
    "BiasGelu": Case("y = com.microsoft.BiasGelu(x, b)", constants={"b": f(3)}),
    "SkipLayerNormalization": Case(
        "y = com.microsoft.SkipLayerNormalization(x, t, a, b)",
        (1, 2, 4),
        {"t": f(1, 2, 4), "a": f(4) + 1, "b": f(4, seed=1)},
    ),
    "SimplifiedLayerNormalization": Case(
        "y = SimplifiedLayerNormalization<axis = -1, epsilon = 0.00001, stash_type = 1>(x, a)", (2, 4), {"a": f(4) + 1}
    ),
    "Attention (contrib)": Case(
        "y = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, b)",
        (1, 3, 4),
        {"w": f(4, 12), "b": f(12, seed=1)},
    ),
    "MultiHeadAttention": Case(
        "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, k, v)",
        (1, 3, 4),
        {"k": f(1, 3, 4), "v": f(1, 3, 4, seed=1)},
    ),
    "Attention": Case(
        "y = Attention<q_num_heads = 2, kv_num_heads = 1, is_causal = 1>(x, k, v)",
        (1, 3, 4),
        {"k": f(1, 3, 2), "v": f(1, 3, 2, seed=1)},
        opset=23,
    ),
    "RotaryEmbedding": Case(
        "y = com.microsoft.RotaryEmbedding(x, p, c, d)",
        (1, 2, 3, 4),
        {"p": i(0, 1, 2).reshape(1, 3), "c": f(4, 2), "d": f(4, 2, seed=1)},
    ),
}
