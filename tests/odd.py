"""Models that people really have, each odd in one way: `MODELS` by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tiny import model, normal

Constants = dict[str, "NDArray | tuple[int, ...]"]


@dataclass(frozen=True)
class Odd:
    """A graph as ONNX text; `constants` are its initializers, random where only a shape is given.

    Attributes:
        refusal: what is said where there is nothing to do, whatever the scheme.
        feed: inputs that are not random.
        change: what ONNX text cannot say.
    """

    inputs: str
    outputs: str
    body: str
    constants: Constants = field(default_factory=dict)
    opset: int = 17
    ir_version: int = 9
    functions: str = ""
    refusal: str = ""
    feed: dict[str, NDArray] = field(default_factory=dict)
    change: Callable[[onnx.ModelProto], object] = lambda proto: None

    def proto(self) -> onnx.ModelProto:
        named = enumerate(self.constants.items())
        arrays = {n: normal(*c, seed=i) if isinstance(c, tuple) else np.asarray(c) for i, (n, c) in named}
        text = f"g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}"
        made = model(text, arrays, opset=self.opset, ir_version=self.ir_version, functions=self.functions)
        self.change(made)
        return made

    def feeds(self, count: int) -> list[dict[str, NDArray]]:
        """Legal inputs; free dimensions are 3."""
        rng = np.random.default_rng(0)
        inputs = [i for i in self.proto().graph.input if i.name not in self.constants]
        return [{i.name: self.feed.get(i.name, _draw(i, rng)) for i in inputs} for _ in range(count)]


def _draw(i: onnx.ValueInfoProto, rng: np.random.Generator) -> NDArray:
    tensor = i.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 3 for d in tensor.shape.dim]
    if tensor.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "text", object)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if dtype.kind in "iub":
        return np.asarray(rng.integers(1, 2 if dtype.kind == "b" else 4, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def sparse(proto: onnx.ModelProto) -> None:
    (dense,) = proto.graph.initializer
    w = numpy_helper.to_array(dense).reshape(-1)
    indices = np.arange(0, w.size, 3)
    values = numpy_helper.from_array(w[indices], dense.name)
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(indices), list(dense.dims))
    )
    proto.graph.initializer.remove(dense)


def strange_names(proto: onnx.ModelProto) -> None:
    for node, name in zip(proto.graph.node, ["a/b:c d", "größe→Ω", "a/b:c d", ".."], strict=True):
        node.name = name


def initializers_are_inputs(proto: onnx.ModelProto) -> None:
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def first_initializer_is_input(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def constant_nodes(proto: onnx.ModelProto) -> None:
    for tensor in list(proto.graph.initializer):
        proto.graph.initializer.remove(tensor)
        proto.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))


def classical(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))


def metadata(proto: onnx.ModelProto) -> None:
    helper.set_model_props(proto, {"author": "me", "größe": "Ω"})
    proto.doc_string, proto.graph.doc_string, proto.graph.node[0].doc_string = "a model", "a graph", "a node"


def gemms() -> Odd:
    """transA, transB, alpha and beta; no bias, a vector, a matrix, a column, a scalar, a computed one."""
    lines, constants = ["t = Transpose(x)"], {}
    biases = [None, (16,), (3, 16), (3, 1), ()]
    for i, (ta, tb, (a, b)) in enumerate(itertools.product((0, 1), (0, 1), ((1.0, 1.0), (0.5, -2.0)))):
        constants[f"w{i}"] = (16, 32) if tb else (32, 16)
        shape, c = biases[i % len(biases)], ""
        if shape is not None:
            constants[f"c{i}"], c = normal(*shape, seed=i), f", c{i}"
        x = "t" if ta else "x"
        lines.append(f"y{i} = Gemm<transA={ta}, transB={tb}, alpha={a}, beta={b}>({x}, w{i}{c})")
    lines += ["n = Neg(y0)", "y8 = Gemm<beta=3.0>(x, w0, n)"]
    return Odd("float[3,32] x", ", ".join(f"float[3,16] y{i}" for i in range(9)), " ".join(lines), constants)


def recurrent(op: str, gates: int) -> Odd:
    """All directions, each with other optional inputs missing."""
    lines, outputs, constants = [], [], {"h": (2, 3, 8)}
    for direction, d, optional in (("forward", 1, ""), ("reverse", 1, ", b_r"), ("bidirectional", 2, ", b_b, , h")):
        s = direction[0]
        constants |= {f"w_{s}": (d, gates * 8, 32), f"r_{s}": (d, gates * 8, 8), f"b_{s}": (d, gates * 16)}
        call = f'{op}<hidden_size=8, direction="{direction}">(x, w_{s}, r_{s}{optional})'
        lines.append(f"y_{s}, z_{s} = {call}")
        outputs += [f"float[5,{d},3,8] y_{s}", f"float[{d},3,8] z_{s}"]
    return Odd("float[5,3,32] x", ", ".join(outputs), " ".join(lines), constants)


def deep(levels: int) -> Odd:
    """If in If in If, a product in the innermost one."""
    body, y = "y = MatMul(x, w)", "y"
    for i in range(levels):
        branches = f"then_branch = t{i} () => (float[3,16] {y}) {{ {body} }}, "
        branches += f"else_branch = e{i} () => (float[3,16] n{i}) {{ n{i} = Neg(z) }}"
        body, y = f"y{i} = If(c) <{branches}>", f"y{i}"
    return Odd("float[3,32] x, bool c", f"float[3,16] {y}", f"z = MatMul(x, w) {body}", {"w": (32, 16)})


def long(nodes: int) -> Odd:
    """A chain, every thousandth node a product."""
    weights = {f"w{i}": (32, 32) for i in range(0, nodes, 1000)}
    ops = ("Relu", "Abs", "Identity")
    lines = [f"v{i + 1} = " + (f"MatMul(v{i}, w{i})" if i % 1000 == 0 else f"{ops[i % 3]}(v{i})") for i in range(nodes)]
    return Odd("float[3,32] v0", f"float[3,32] v{nodes}", " ".join(lines), weights)


def product(number: float, where: object = (0, 0)) -> Odd:
    """A weight with a special number in it, beside an ordinary one."""
    w = normal(32, 16)
    w[where] = number
    body = "y = MatMul(x, w) z = MatMul(x, v)"
    return Odd("float[3,32] x", "float[3,16] y, float[3,16] z", body, {"w": w, "v": (32, 16)})


def typed(word: str, dtype: type) -> Odd:
    constants: Constants = {"w": normal(32, 16).astype(dtype), "b": normal(16).astype(dtype)}
    return Odd(f"{word}[3,32] x", f"{word}[3,16] y", "h = MatMul(x, w) i = Add(h, b) y = Relu(i)", constants)


X, Y, W, PRODUCT = "float[3,32] x", "float[3,16] y", {"w": (32, 16)}, "y = MatMul(x, w)"
NOTHING = "holds no floating-point weights"
BATCHNORM: Constants = {"w": (16, 8, 3, 3), "s": normal(16) + 2, "b": (16,), "mean": (16,), "var": normal(16) ** 2 + 1}

# fmt: off
MODELS: dict[str, Odd] = {
    "no initializers": Odd(f"{X}, float[32,16] w", Y, PRODUCT, refusal=NOTHING),
    "one node": Odd(X, Y, PRODUCT, W),
    "no nodes": Odd(X, X, "", refusal=NOTHING),
    "integers only": Odd("int64[3] x", "int64[3] y", "y = Add(x, c)", {"c": np.arange(3)}, refusal=NOTHING),
    "Conv weight is input": Odd(
        "float[1,8,6,6] x, float[16,8,3,3] w", "float[1,16,4,4] y", "y = Conv(x, w)", refusal=NOTHING
    ),
    # The interface
    "output is input": Odd(X, f"{Y}, {X}", PRODUCT, W),
    "output is initializer": Odd(X, f"{Y}, float[32,16] w", PRODUCT, W),
    "output is also used": Odd(
        X, f"float[3,16] h, {Y}", "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)", W | {"v": (16, 16)}
    ),
    "output twice": Odd(X, f"{Y}, {Y}", PRODUCT, W),
    "input nobody reads": Odd(f"{X}, float[2] unused", Y, PRODUCT, W),
    "scalar": Odd(f"float s, {X}", f"{Y}, float t", "m = Mul(x, s) y = MatMul(m, w) t = Neg(s)", W),
    "symbolic shapes": Odd("float[batch,time,32] x", "float[batch,time,16] y", PRODUCT, W),
    "unknown rank": Odd("float[] x", "float[] y", "h = MatMul(x, w) y = Relu(h)", W, feed={"x": normal(3, 32)}),
    "no batch": Odd("float[0,32] x", "float[0,16] y", PRODUCT, W),
    "strings": Odd(
        f"{X}, string[3] s, int64[2] i", f"{Y}, string[3] t, string[2] u",
        "y = MatMul(x, w) t = Identity(s) u = Gather(words, i)", W | {"words": np.array(["a", "ü", "", "b"], object)},
    ),
    "sequence": Odd(X, "seq(float[3,16]) s", "y = MatMul(x, w) n = Neg(y) s = SequenceConstruct(y, n)", W),
    "optional": Odd(X, "optional(float[3,16]) s", "y = MatMul(x, w) s = Optional(y)", W),
    "sequence inside": Odd(
        "float16[4,32] x, bool c", "float16[2,16] y",
        """s = If(c) <then_branch = t () => (seq(float16[2,32]) q) { q = SplitToSequence<axis=0>(x, two) },
                      else_branch = e () => (seq(float16[4,32]) r) { r = SequenceConstruct(x) }>
           i = Constant<value_int=0>() a = SequenceAt(s, i) y = MatMul(a, w)""",
        {"w": normal(32, 16, dtype=np.float16), "two": np.array([2, 2])},
    ),
    "map": Odd(
        X, "seq(map(int64, float)) z",
        f"y = MatMul(x, w) z = ai.onnx.ml.ZipMap<classlabels_int64s={[*range(16)]}>(y)", W, change=classical,
    ),
    "metadata": Odd(X, Y, PRODUCT, W, change=metadata),
    # Where weights are
    "Constant node": Odd(X, Y, PRODUCT, W, change=constant_nodes),
    "sparse initializer": Odd(X, Y, PRODUCT, W, change=sparse),
    "initializers are inputs": Odd(X, Y, "y = Gemm(x, w, b)", W | {"b": (16,)}, change=initializers_are_inputs),
    "one initializer is input": Odd(
        X, Y, "y = Gemm(x, w, b)", W | {"b": (16,)}, change=first_initializer_is_input,
        refusal="'w' is an input, which a caller may replace",
    ),
    "shared weight": Odd(X, f"{Y}, float[3,16] z", "y = MatMul(x, w) n = Neg(x) z = MatMul(n, w)", W),
    "shared by Conv and MatMul": Odd(
        "float[3,16,4] x, float[3,16] v", "float[3,16,4] y, float[3,16] z",
        "y = Conv(x, w) s = Squeeze(w, two) z = MatMul(v, s)", {"w": (16, 16, 1), "two": np.array([2])},
    ),
    "tied embedding": Odd(
        "int64[3] i", "float[3,20] y", "e = Gather(w, i) t = Transpose(w) y = MatMul(e, t)", {"w": (20, 32)}
    ),
    "computed weights": Odd(
        X, f"{Y}, float[3,16] z", "m = Mul(w, s) y = MatMul(x, m) t = MatMul(a, b) z = MatMul(x, t)",
        W | {"s": (16,), "a": (32, 16), "b": (16, 16)},
    ),
    "reshaped weight": Odd(
        X, Y, "r = Reshape(w, shape) t = Transpose(r) i = Identity(t) y = MatMul(x, i)",
        {"w": (512,), "shape": np.array([16, 32])},
    ),
    "If": Odd(
        f"{X}, bool c", Y,
        """y = If(c) <then_branch = t () => (float[3,16] y) { h = MatMul(x, w) y = Relu(h) },
                      else_branch = e () => (float[3,16] y) { h = MatMul(x, v) y = Neg(h) }>""",
        W | {"v": (32, 16)},
    ),
    "If with weights": Odd(
        f"{X}, bool c", Y,
        f"""y = If(c) <then_branch = t () => (float[3,16] y)
                         <float[32,16] w = {{{", ".join(["0.5", "-0.25"] * 256)}}}> {{ y = MatMul(x, w) }},
                      else_branch = e () => (float[3,16] y)
                         <float[32,16] w = {{{", ".join(["1.5", "-0.125"] * 256)}}}> {{ y = MatMul(x, w) }}>""",
    ),
    "Loop": Odd(
        "float[3,32] x, int64 n", "float[3,32] y, float[k,3,32] z",
        """y, z = Loop(n, , x) <body = b (int64 i, bool c, float[3,32] s) => (bool d, float[3,32] t, float[3,32] u)
               { d = Identity(c) u = MatMul(s, w) t = Tanh(u) }>""",
        {"w": (32, 32)}, feed={"n": np.array(3)},
    ),
    "Scan": Odd(
        "float[5,32] x, float[32] s", "float[32] y, float[5,32] z",
        """y, z = Scan<num_scan_inputs=1, body = b (float[32] a, float[32] e) => (float[32] f, float[32] h)
               { k = MatMul(a, w) l = MatMul(e, v) m = Add(k, l) f = Tanh(m) h = Identity(f) }>(s, x)""",
        {"w": (32, 32), "v": (32, 32)},
    ),
    "nested functions": Odd(
        X, f"{Y}, float[3,16] z", "y = local.outer(x, w) z = local.outer(x, v)", W | {"v": (32, 16)},
        functions="""<domain: "local", opset_import: ["" : 17, "local" : 1]>
                     outer (x, w) => (y) { h = local.inner(x, w) y = Relu(h) }
                     <domain: "local", opset_import: ["" : 17]> inner (x, w) => (y) { y = MatMul(x, w) }""",
    ),
    "function of another opset": Odd(
        X, Y, "y = local.f(x, w)", W,
        functions="""<domain: "local", opset_import: ["" : 13]> f (x, w) => (y) { h = MatMul(x, w) y = Sigmoid(h) }""",
    ),
    "function with an attribute": Odd(
        X, Y, "y = local.f<slope=0.2>(x, w)", W,
        functions="""<domain: "local", opset_import: ["" : 17]> f <slope> (x, w) => (y)
                     { h = MatMul(x, w) y = LeakyRelu<alpha: float = @slope>(h) }""",
    ),
    "2000 nodes": long(2000),
    "twelve nested Ifs": deep(12),
    # Names
    "colliding names": Odd(
        "float[3,32] x, float[1] w_scale", f"{Y}, float[3,16] w_int8",
        "x_quantized = Relu(x) x_scale = Mul(x_quantized, w_scale) y = MatMul(x_scale, w) "
        "w_int8 = MatMul(x_quantized, w_nbits)", W | {"w_nbits": (32, 16)},
    ),
    "strange names": Odd(
        X, Y, "h = MatMul(x, w) r = Relu(h) i = MatMul(r, v) y = Neg(i)", W | {"v": (16, 16)}, change=strange_names
    ),
    # Versions
    "opset 6": Odd(
        X, Y, "h = MatMul(x, w) y = Add<broadcast=1>(h, b)", W | {"b": (16,)}, opset=6, ir_version=3,
        change=initializers_are_inputs,
    ),
    "opset 7": Odd(
        "float[1,4,8,8] x", "float[1,8,16,16] y",
        """h = Conv<pads=[1,1,1,1]>(x, w) r = Relu(h)
           y = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(r)""",
        {"w": (8, 4, 3, 3)}, opset=7, ir_version=3, change=initializers_are_inputs,
    ),
    "opset 9": Odd(
        "float[6,32] x", Y, "s = Slice<axes=[0], starts=[0], ends=[3]>(x) d = Dropout(s) y = MatMul(d, w)", W,
        opset=9, ir_version=4,
    ),
    "opset 13": Odd(
        "float[1,3,32] x", Y, "s = Squeeze(x, zero) y = MatMul(s, w)", W | {"zero": np.array([0])}, opset=13
    ),
    "opset 25": Odd(X, Y, "h = MatMul(x, w) y = Gelu(h)", W, opset=25, ir_version=11),
    # Types
    "float16": typed("float16", np.float16),
    "bfloat16": typed("bfloat16", ml_dtypes.bfloat16),
    "float64": typed("double", np.float64),
    "bfloat16 outside": Odd(
        "bfloat16[3,32] x", "bfloat16[3,16] y", "f = Cast<to=1>(x) h = MatMul(f, w) y = Cast<to=16>(h)", W
    ),
    "float16 with contrib operators": Odd(
        "float16[3,4,32] x", "float16[3,4,16] y",
        """n = com.microsoft.SkipLayerNormalization(x, x, g, b) h = MatMul(n, w) k = com.microsoft.FastGelu(h)
           y = com.microsoft.BiasGelu(k, c)""",
        {n: normal(*s, dtype=np.float16) for n, s in {"g": (32,), "b": (32,), "w": (32, 16), "c": (16,)}.items()},
    ),
    "Attention in float16": Odd(
        "float16[2,4,32] x", "float16[2,4,32] y", "a = com.microsoft.Attention<num_heads=4>(x, w, b) y = Relu(a)",
        {"w": normal(32, 96, dtype=np.float16), "b": normal(96, dtype=np.float16)},
    ),
    "contrib operators in between": Odd(
        "float[3,4,32] x", "float[3,4,16] y",
        "n = com.microsoft.SkipLayerNormalization(x, x, g, b) r = Relu(n) h = MatMul(r, w) y = Neg(h)",
        {"g": (32,), "b": (32,), "w": (32, 16)},
    ),
    "epsilon": Odd(X, Y, "h = MatMul(x, w) a = Abs(h) b = Add(a, e) y = Div(h, b)", W | {"e": np.float32(1e-12)}),
    # Products
    "Gemm in all ways": gemms(),
    "weight on the left": Odd(
        "float[32,3] x", "float[16,3] y, float[2,16,3] z", "y = MatMul(w, x) z = MatMul(v, x)",
        {"w": (16, 32), "v": (2, 16, 32)},
    ),
    "weights of rank 3": Odd(
        "float[2,3,32] x", "float[2,3,16] y, float[2,3,16] z", "y = MatMul(x, w) z = MatMul(x, v)",
        {"w": (2, 32, 16), "v": (1, 32, 16)},
    ),
    "vectors": Odd(
        "float[32] x, float[3,512] v", "float[16] y, float[3] z", "y = MatMul(x, w) z = MatMul(v, u)", W | {"u": (512,)}
    ),
    "x of rank 4": Odd("float[2,2,3,32] x", "float[2,2,3,16] y", "h = MatMul(x, w) y = Add(h, b)", W | {"b": (16,)}),
    "ragged K": Odd(
        "float[3,37] x", "float[3,19] y", "h = MatMul(x, w) y = MatMul(h, v)", {"w": (37, 19), "v": (19, 19)}
    ),
    "nothing to multiply": Odd(
        X, Y, "k = Concat<axis=0>(x, none) y = MatMul(k, w)", W | {"none": normal(0, 32)}
    ),
    # Convolutions and recurrence
    "Conv 1D 2D 3D": Odd(
        "float[1,8,12] a, float[1,8,6,6] b, float[1,8,4,4,4] c",
        "float[1,16,10] x, float[1,16,6,6] y, float[1,16,2,2,2] z",
        """x = Conv(a, u) y = Conv<auto_pad="SAME_UPPER">(b, v, bias) z = Conv<auto_pad="VALID">(c, w)""",
        {"u": (16, 8, 3), "v": (16, 8, 3, 3), "bias": (16,), "w": (16, 8, 3, 3, 3)},
    ),
    "Conv in groups": Odd(
        "float[1,32,9,9] x", "float[1,32,k,l] y",
        """a = Conv<group=32, pads=[1,1,1,1]>(x, d) r = Relu(a)
           b = Conv<group=4, dilations=[2,2], pads=[2,2,2,2]>(r, e) c = Clip(b, zero, six)
           y = Conv<strides=[2,2]>(c, f)""",
        {"d": (32, 1, 3, 3), "e": (32, 8, 3, 3), "f": (32, 32, 1, 1), "zero": np.float32(0), "six": np.float32(6)},
    ),
    "ConvTranspose": Odd(
        "float[1,16,5,5] x", "float[1,8,11,11] y, float[1,16,5,5] z",
        """y = ConvTranspose<strides=[2,2]>(x, w) z = ConvTranspose<group=2, pads=[1,1,1,1]>(x, v)""",
        {"w": (16, 8, 3, 3), "v": (16, 8, 3, 3)},
    ),
    "inputs left out": Odd(
        "float[1,8,4,4] x", "float[1,8,8,8] y",
        """c = Conv<pads=[1,1,1,1]>(x, w) k = Clip(c, , most) y = Resize<mode="nearest">(k, , scales)""",
        {"w": (8, 8, 3, 3), "most": np.float32(0.5), "scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3),
    "RNN": recurrent("RNN", 1),
    # Leftovers of training, and chance
    "Dropout in training": Odd(
        X, f"{Y}, float[3,16] z", "h = MatMul(x, w) y, m = Dropout(h, none, yes) z = Dropout(h, half, no)",
        W | {"none": np.float32(0), "half": np.float32(0.5), "yes": np.array(True), "no": np.array(False)},
    ),
    "BatchNormalization in training": Odd(
        "float[4,8,6,6] x", "float[4,16,4,4] y",
        "h = Conv(x, w) y, m, v = BatchNormalization<training_mode=1>(h, s, b, mean, var)", BATCHNORM,
    ),
    "BatchNormalization": Odd(
        "float[1,8,6,6] x", "float[1,16,4,4] y",
        "h = Conv(x, w) n = BatchNormalization(h, s, b, mean, var) y = Relu(n)", BATCHNORM,
    ),
    "random output": Odd(X, f"{Y}, float[3] r", "y = MatMul(x, w) r = RandomNormal<shape=[3]>()", W),
    # Special numbers
    "weight of zeros": product(0.0, slice(None)),
    "denormal weights": product(1e-40, slice(None)),
    "huge weight": product(1e38),
    "weight beyond float16": product(1e6),
}
# fmt: on
