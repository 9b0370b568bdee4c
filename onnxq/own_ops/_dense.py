"""DenseMatMul: y [..., N] = activation(x [..., K] · wᵀ + bias) + other, the weight in bfloat16 or
float16, in tiles (`layouts.dense_tiles`); or times other.

Here activations stay as they are; runtimes fold what makes the weight float.
"""

from __future__ import annotations

from onnxq.own_ops import DENSE, Variant
from onnxq.own_ops._parts import FLOAT

#: By the word of an activation function, what computes it of `sum`; that of Gelu as opsets before 20 spell it, which
#: onnxruntime makes one kernel of.
ACTIVATIONS = {
    "relu": ["active = Relu (sum)"],
    "gelu": [
        "root = Constant <value_float = 1.4142135> ()",
        "unit = Constant <value_float = 1.0> ()",
        "half = Constant <value_float = 0.5> ()",
        "divided = Div (sum, root)",
        "erf = Erf (divided)",
        "part = Add (erf, unit)",
        "both = Mul (sum, part)",
        "active = Mul (both, half)",
    ],
    "gelu_tanh": [
        "third = Constant <value_float = 3.0> ()",
        "cubed = Constant <value_float = 0.044715> ()",
        "root = Constant <value_float = 0.7978846> ()",
        "unit = Constant <value_float = 1.0> ()",
        "half = Constant <value_float = 0.5> ()",
        "cube = Pow (sum, third)",
        "small = Mul (cubed, cube)",
        "inner = Add (sum, small)",
        "scaled = Mul (root, inner)",
        "tanh = Tanh (scaled)",
        "part = Add (unit, tanh)",
        "halved = Mul (half, sum)",
        "active = Mul (halved, part)",
    ],
    "silu": ["part = Sigmoid (sum)", "active = Mul (sum, part)"],
}


def lines(v: Variant) -> list[str]:
    text = [
        f"{DENSE} <K, N, activations{', activation' * bool(v.moved)}{', combine' * bool(v.other)}> "
        f"(x, weight{_inputs(v)}) => (y) {{",
        "k0 = Constant <value_int: int = @K> ()",
        "n0 = Constant <value_int: int = @N> ()",
        "rest = Constant <value_ints = [-1]> ()",
        "k = Reshape (k0, rest)",
        "n = Reshape (n0, rest)",
        "one = Constant <value_ints = [1]> ()",
        "two = Constant <value_ints = [2]> ()",
        "weight_shape = Shape (weight)",
        "pairs = Slice (weight_shape, one, two)",
        "kp = Mul (pairs, two)",
        f"weight32 = Cast <to = {FLOAT}> (weight)",
        "turned = Transpose <perm = [1, 3, 0, 2]> (weight32)",  # [Kp / 2, 2, T, 16]
        "padded_shape = Concat <axis = 0> (kp, rest)",
        "padded = Reshape (turned, padded_shape)",  # [Kp, 16 T]
        "origin = Constant <value_ints = [0, 0]> ()",
        "kn = Concat <axis = 0> (k, n)",
        "w = Slice (padded, origin, kn)",
        f"x32 = Cast <to = {FLOAT}> (x)",
        "product = MatMul (x32, w)",
    ]
    if v.bias:
        text += [f"bias32 = Cast <to = {FLOAT}> (bias)", "sum = Add (product, bias32)"]
    else:
        text.append("sum = Identity (product)")
    text += ACTIVATIONS.get(v.moved, ["active = Identity (sum)"])
    if v.other:
        text += [f"other32 = Cast <to = {FLOAT}> (other)", f"made = {_COMBINED[v.other]} (active, other32)"]
    return [*text, f"y = CastLike ({'made' if v.other else 'active'}, x)", "}"]


_COMBINED = {"plus": "Add", "times": "Mul"}


def _inputs(v: Variant) -> str:
    """Behind x and the weight."""
    words = ["bias" if v.bias else "no_bias" if v.other else "", "other" if v.other else ""]
    return "".join(f", {word}" for word in words if word)
