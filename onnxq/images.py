"""Images as calibration data: a declared preprocessing, because nothing in a model file says what it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from onnxq import limits
from onnxq.errors import BadData, BadRecipe, MissingRuntime, OnnxqError, first_line
from onnxq.runtime import Feed, Input

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
Channels = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]
T = TypeVar("T", int, float)


@dataclass(frozen=True)
class Preprocessing:
    """pixel (0…255) → (pixel / scale − mean) / std, after resizing.

    Attributes:
        size: (height, width) to resize to, bilinear; None: the model's own, which must then be fixed.
        crop: resize the shorter side to `size` · 256/224 and cut the centre, as ImageNet models expect.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    channels: Channels = "rgb"
    layout: Layout | None = None
    crop: bool = False


def parse_preprocessing(text: str) -> Preprocessing:
    """From words like `size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 scale=255 channels=rgb layout=nchw`.

    Raises:
        BadRecipe: a word that is not understood.
    """
    found: dict[str, object] = {}
    for word in text.replace(";", " ").split():
        key, _, value = word.partition("=")
        try:
            if key == "size":
                height, _, width = value.partition("x")
                found[key] = (_positive(int(height)), _positive(int(width or height)))
            elif key in ("mean", "std"):
                numbers = [float(part) for part in value.split(",")]
                found[key] = tuple(map(_positive, numbers) if key == "std" else numbers)
            elif key == "scale":
                found[key] = _positive(float(value))
            elif key == "crop":
                found[key] = value in ("", "1", "true", "yes")
            elif (key == "channels" and value in get_args(Channels)) or (key == "layout" and value in get_args(Layout)):
                found[key] = value
            else:
                raise ValueError
        except ValueError:
            known = "size=HxW mean=R,G,B std=R,G,B scale=255 channels=rgb|bgr|gray layout=nchw|nhwc crop"
            raise BadRecipe(f"--preprocess does not understand '{word}'; it knows {known}") from None
    return Preprocessing(**found)  # type: ignore[arg-type]


def _positive(x: T) -> T:
    if not x > 0:
        raise ValueError
    return x


def read_image(path: Path, inputs: tuple[Input, ...], preprocessing: Preprocessing | None) -> Feed:
    """One sample from one image file."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingRuntime("reading images needs Pillow: pip install 'onnxq[images]'") from None
    if preprocessing is None:
        raise BadData(
            f"{path.parent} holds images: declare what the model was trained on, "
            "for instance --preprocess 'size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225'"
        )
    shape = inputs[0].shape if inputs else None
    if len(inputs) != 1 or shape is None or len(shape) != 4:
        raise BadData("images can only calibrate models with one input of four dimensions; use .npz files")
    p, wanted = preprocessing, inputs[0]
    layout = p.layout or ("nhwc" if shape[-1] in (1, 3) and shape[1] not in (1, 3) else "nchw")
    size = p.size or _model_size(wanted.name, shape, layout)
    _require_pixels(size[1], size[0], f"the model's input '{wanted.name}' would have")
    try:
        with limits.open_file(path, BadData) as file, Image.open(file) as opened:
            _require_pixels(opened.width, opened.height, f"{path} has")
            image = opened.convert("L" if p.channels == "gray" else "RGB")
    except OnnxqError:
        raise
    except Exception as error:  # a decoder for each kind of file, with exceptions of its own
        raise BadData(f"{path} is not a readable image: {first_line(error)}") from None
    height, width = size
    if p.crop:
        factor = 256 / 224 * max(height / image.height, width / image.width)
        sides = round(image.width * factor), round(image.height * factor)
        _require_pixels(*sides, f"{path}, its shorter side resized to be cut, has")
        image = image.resize(sides, Image.Resampling.BILINEAR)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    else:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    x: NDArray = np.asarray(image, np.float32).reshape(height, width, -1)
    if p.channels == "bgr":
        x = x[:, :, ::-1]
    for word, numbers in (("mean", p.mean), ("std", p.std)):
        if len(numbers) not in (1, x.shape[2]):
            raise BadRecipe(f"--preprocess: {word} has {len(numbers)} numbers, the image {x.shape[2]} channels")
    x = (x / np.float32(p.scale) - np.array(p.mean, np.float32)) / np.array(p.std, np.float32)
    x = x if layout == "nhwc" else x.transpose(2, 0, 1)
    return {wanted.name: np.ascontiguousarray(x[None]).astype(wanted.dtype)}


def _require_pixels(width: int, height: int, what: str) -> None:
    if not 0 < width * height <= limits.PIXELS:
        raise BadData(f"{what} {width} × {height} pixels; at most {limits.PIXELS >> 20} million are read")


def _model_size(name: str, shape: tuple[int | str | None, ...], layout: str) -> tuple[int, int]:
    height, width = shape[1:3] if layout == "nhwc" else shape[2:4]
    if not isinstance(height, int) or not isinstance(width, int) or height < 1 or width < 1:
        raise BadData(f"the size of '{name}' is free: say it with --preprocess 'size=HEIGHTxWIDTH …'")
    return height, width
