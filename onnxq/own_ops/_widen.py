"""WidenTiles: tiles of 4-bit codes, as kernels read them, from codes of 2 or 3 bits (`layouts.few_bits_tiles`).

All of it is masks and shifts of bytes, which each hold two codes in the end.
"""

from __future__ import annotations

from onnxq.own_ops import WIDEN, Variant


def lines(v: Variant) -> list[str]:
    bits, is_signed = v.decoded.bits, v.decoded.code_type.kind == "i"
    text = [
        f"{WIDEN} (codes) => (y) {{",
        "zero = Constant <value_ints = [0]> ()",
        "two = Constant <value_ints = [2]> ()",
        "three = Constant <value_ints = [3]> ()",
        "four = Constant <value_ints = [4]> ()",
        "pairs = Slice (codes, zero, two, three)",
        "column = Unsqueeze (pairs, four)",
        "places = Constant <value = uint8[2] {0, 2}> ()",
        'moved = BitShift <direction = "RIGHT"> (column, places)',
        f"low_mask = Constant <value = uint8 {{{0x33}}}> ()",
        "both = BitwiseAnd (moved, low_mask)",
        "shape = Constant <value_ints = [0, 0, 0, 4]> ()",
        "low = Reshape (both, shape)",
    ]
    if not is_signed:
        return [*text, "y = Identity (low)", "}"]
    text += [
        "by_one = Constant <value = uint8 {1}> ()",
        "by_two = Constant <value = uint8 {2}> ()",
        "by_three = Constant <value = uint8 {3}> ()",
    ]
    if bits == 2:  # 8 is added: of a negative code bits 1 and 2 are set, of any other one bit 3
        text += [
            f"middle_mask = Constant <value = uint8 {{{0x22}}}> ()",
            "set = BitwiseAnd (low, middle_mask)",
            'third = BitShift <direction = "LEFT"> (set, by_one)',
            "others = BitwiseXor (set, middle_mask)",
            'fourth = BitShift <direction = "LEFT"> (others, by_two)',
        ]
    else:  # of a negative code bit 2 is set, of any other one bit 3
        text += [
            "plane = Slice (codes, two, three, three)",
            "each = Constant <value = uint8[4] {0, 1, 2, 3}> ()",
            'spread = BitShift <direction = "RIGHT"> (plane, each)',
            f"one_mask = Constant <value = uint8 {{{0x11}}}> ()",
            "set = BitwiseAnd (spread, one_mask)",
            'third = BitShift <direction = "LEFT"> (set, by_two)',
            "others = BitwiseXor (set, one_mask)",
            'fourth = BitShift <direction = "LEFT"> (others, by_three)',
        ]
    return [*text, "upper = BitwiseOr (third, fourth)", "y = BitwiseOr (low, upper)", "}"]
