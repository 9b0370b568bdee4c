"""Images as calibration data: a declared preprocessing, because nothing in a model file says what it was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from onnxq.errors import BadRecipe
from onnxq.samples.normal import are_deviations, are_means

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
Channels = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]
#: Pillow's filters, in the order of its numbers.
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


@dataclass(frozen=True)
class Preprocessing:
    """pixel (0…255) → (pixel / scale − mean) / std, after resizing.

    Attributes:
        mean, std: one number, or one for each of R, G and B in this order, whatever `channels` is.
        size: (height, width) to resize to; None: the model's own, which must then be fixed.
        crop: resize the shorter side to `size` · 256/224 and cut the centre, as ImageNet models expect.
        resample: how pixels between pixels are found.
        short: the shorter side is resized to so much, whatever that makes of the longer one, and `cut` follows.
        long: what the longer side may come to at most, where there is a `short`.
        cut: (height, width) cut out of the centre in the end; what lies outside the image is black.
        resize: without, images keep their size.
        whole: what sides are cut down to a multiple of, where there is a `short`.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    channels: Channels = "rgb"
    layout: Layout | None = None
    crop: bool = False
    resample: Resample = "bilinear"
    short: int | None = None
    long: int | None = None
    cut: tuple[int, int] | None = None
    resize: bool = True
    whole: int = 1


def parse_preprocessing(text: str) -> Preprocessing:
    """From words like `size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 scale=255 channels=rgb layout=nchw`.

    Raises:
        BadRecipe: a word that is not understood.
    """
    found: dict[str, object] = {}
    for word in text.replace(";", " ").split():
        key, _, value = word.partition("=")
        try:
            if key in ("size", "cut"):
                height, _, width = value.partition("x")
                found[key] = (_positive(int(height)), _positive(int(width or height)))
            elif key == "short":
                found[key] = _positive(int(value))
            elif key == "resample" and value in get_args(Resample):
                found[key] = value
            elif key in ("mean", "std"):
                numbers = tuple(map(float, value.split(",")))
                if not (are_deviations if key == "std" else are_means)(numbers):
                    raise ValueError
                found[key] = numbers
            elif key == "scale" and are_deviations([float(value)]):
                found[key] = float(value)
            elif key == "crop":
                found[key] = value in ("", "1", "true", "yes")
            elif (key == "channels" and value in get_args(Channels)) or (key == "layout" and value in get_args(Layout)):
                found[key] = value
            else:
                raise ValueError
        except (ValueError, OverflowError):  # an integer beyond all floats
            known = (
                "size=HxW mean=R,G,B std=R,G,B scale=255 channels=rgb|bgr|gray layout=nchw|nhwc crop short=N cut=HxW "
                f"resample={'|'.join(get_args(Resample))}"
            )
            raise BadRecipe(f"--preprocess: invalid setting '{word}'; valid settings for images: {known}") from None
    return Preprocessing(**found)  # type: ignore[arg-type]


def _positive(x: int) -> int:
    if not math.isfinite(x) or not x > 0:
        raise ValueError
    return x
