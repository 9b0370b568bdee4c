"""DenseMatMul: y [..., N] = x [..., K] · wᵀ + bias, the weight in bfloat16, in tiles (`layouts.dense_tiles`).

Here activations stay as they are; runtimes fold what makes the weight float.
"""

from __future__ import annotations

from onnxq.own_ops import DENSE, Variant
from onnxq.own_ops._parts import FLOAT


def lines(v: Variant) -> list[str]:
    text = [
        f"{DENSE} <K, N, activations> (x, weight{', bias' * v.bias}) => (y) {{",
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
    return [*text, f"y = CastLike ({'sum' if v.bias else 'product'}, x)", "}"]
