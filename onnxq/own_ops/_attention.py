"""Attention: y [..., S, E] = softmax(scale · q · kᵀ + mask) · v, of any number of heads.

Where k is given as [..., T, D] (`transK`), its rank is part of the variant: no operator exchanges the last two of any
number of axes.
"""

from __future__ import annotations

from onnxq.own_ops import ATTENTION, Variant


def lines(v: Variant) -> list[str]:
    text = [
        f"{ATTENTION} <scale, transK, activations> (q, k, v{', mask' * v.mask}) => (y) {{",
        "scale32 = Constant <value_float: float = @scale> ()",
        "scale_q = CastLike (scale32, q)",
    ]
    if v.moved:
        rank = int(v.moved.removeprefix("turned"))
        axes = ", ".join(map(str, [*range(rank - 2), rank - 1, rank - 2]))
        text.append(f"turned = Transpose <perm = [{axes}]> (k)")
    text += [f"products = MatMul (q, {'turned' if v.moved else 'k'})", "scores = Mul (products, scale_q)"]
    if v.mask:
        text.append("masked = Add (scores, mask)")
    text.append(f"weights = Softmax <axis = -1> ({'masked' if v.mask else 'scores'})")
    return [*text, "y = MatMul (weights, v)", "}"]
