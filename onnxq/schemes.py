"""The words that say what becomes of a whole model, each with what it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scheme:
    """What a scheme word stands for.

    Attributes:
        meaning: as `--help` prints it.
        weights: the number format of weights that its kernels read; empty: it stands for another scheme.
        is_integer: activations are integers too: its kernels multiply integers.
        is_for_speed: what is slower than float goes back to float.
        without_data: the scheme in its place where there is no calibration data, which it needs; empty: it needs none.
        opset: the standard opset that brought what it needs, as dynamic quantization, one scale a channel, bfloat16;
            0: any has it.
    """

    meaning: str
    weights: str = ""
    is_integer: bool = False
    is_for_speed: bool = False
    without_data: str = ""
    opset: int = 0


SCHEMES: Mapping[str, Scheme] = {
    "auto": Scheme(
        "w8a8 where there is calibration data, w4a16 or bf16 where there is none; no kernel slower than float",
        is_for_speed=True,
    ),
    "w8a8": Scheme(
        "int8 weights and activations; activation ranges from calibration data",
        "int8",
        is_integer=True,
        is_for_speed=True,
        without_data="w8a8-dynamic",
        opset=13,
    ),
    "w8a8-dynamic": Scheme(
        "int8 weights and activations; activation ranges measured in every run, no data needed",
        "int8",
        is_integer=True,
        is_for_speed=True,
        opset=11,
    ),
    "w4a8": Scheme(
        "4-bit weights and int8 activations: half the bytes of w8a8, at its speed; ranges from calibration data",
        "int4",
        is_integer=True,
        is_for_speed=True,
        without_data="w4a16",
        opset=21,
    ),
    "w8a16": Scheme("8-bit weights in blocks, float activations", "int8"),
    "w4a16": Scheme("4-bit weights in blocks, float activations", "uint4"),
    "nf4": Scheme("4-bit NormalFloat weights in blocks (QLoRA), float activations", "nf4"),
    "fp4": Scheme("4-bit floating-point weights in blocks (bitsandbytes), float activations", "fp4"),
    "fp16": Scheme(
        "float16 throughout on target onnx; on ort-cpu, which computes in float32, float16 weights", "float16"
    ),
    "bf16": Scheme("bfloat16 weights, computed in the model's own precision", "bfloat16", opset=13),
}
SPEED_SCHEMES = tuple(word for word, scheme in SCHEMES.items() if scheme.is_for_speed)
#: Schemes whose activations become integers with ranges that calibration finds.
STATIC_SCHEMES = tuple(word for word, scheme in SCHEMES.items() if scheme.is_integer and scheme.without_data)
INTEGER_SCHEMES = tuple(word for word, scheme in SCHEMES.items() if scheme.is_integer)


def weight_format(word: str) -> str:
    """The number format that a scheme asks for; the word of a number format itself."""
    return SCHEMES[word].weights if word in SCHEMES else word
