"""Attention: y [..., S, E] = softmax(scale · q · kᵀ + mask) · v, of any number of heads.

Where k is given as [..., T, D] (`transK`), its rank is part of the variant: no operator exchanges the last two of any
number of axes. Where the heads of some of q, k, v and y are joined ([B, T, heads · D]), so are those that are.
"""

from __future__ import annotations

from onnxq.own_ops import ATTENTION, JOINED, Variant


def lines(v: Variant) -> list[str]:
    joined = int(v.moved.removeprefix("joined")) if v.moved.startswith("joined") else 0
    if joined:
        return _joined(v, joined)
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


def _joined(v: Variant, joined: int) -> list[str]:
    """Of four dimensions, k as [..., T, D]."""
    text = [
        f"{ATTENTION} <scale, transK, heads, joined, activations> (q, k, v{', mask' * v.mask}) => (y) {{",
        "scale32 = Constant <value_float: float = @scale> ()",
        "scale_q = CastLike (scale32, q)",
        "heads0 = Constant <value_int: int = @heads> ()",
        "rest = Constant <value_ints = [-1]> ()",
        "heads1 = Reshape (heads0, rest)",
        "same = Constant <value_ints = [0, 0]> ()",
        "split = Concat <axis = 0> (same, heads1, rest)",
        "merged = Concat <axis = 0> (same, rest)",
    ]
    for word in "qkv":
        if joined & JOINED[word]:
            text.append(f"{word}_split = Reshape ({word}, split)")
            turn = "0, 2, 3, 1" if word == "k" else "0, 2, 1, 3"
            text.append(f"{word}4 = Transpose <perm = [{turn}]> ({word}_split)")
        elif word == "k":
            text.append("k4 = Transpose <perm = [0, 1, 3, 2]> (k)")
        else:
            text.append(f"{word}4 = Identity ({word})")
    text += ["products = MatMul (q4, k4)", "scores = Mul (products, scale_q)"]
    if v.mask:
        text.append("masked = Add (scores, mask)")
    text.append(f"weights = Softmax <axis = -1> ({'masked' if v.mask else 'scores'})")
    if not joined & JOINED["y"]:
        return [*text, "y = MatMul (weights, v4)", "}"]
    return [
        *text,
        "y4 = MatMul (weights, v4)",
        "y_turned = Transpose <perm = [0, 2, 1, 3]> (y4)",
        "y = Reshape (y_turned, merged)",
        "}",
    ]
