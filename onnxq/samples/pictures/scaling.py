"""Inputs made of images: opened whatever their kind, resized and cut as declared, in the model's layout."""

from __future__ import annotations

import dataclasses
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, BadRecipe, MissingRuntime, first_line
from onnxq.runtime.session import Feed, Input
from onnxq.samples.pictures.images import Preprocessing, Resample

#: An image in memory, as tables hold them, or a file.
Picture = bytes | Path
#: Of an image before and after resizing: a line of one pixel's width would become a strip of a million.
MOST_PIXELS = 1 << 26
#: Kinds of files that are read, as Pillow calls them: whatever the name, it would run Ghostscript on others.
KINDS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")


_QUIET = logging.NullHandler()


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise MissingRuntime("reading images needs Pillow: pip install 'onnxq[images]'") from None
    logging.getLogger("PIL").addHandler(_QUIET)  # else what it logs goes to stderr, beside our own sentence
    # There is a limit of ours; behind filters of the program's own.
    warnings.filterwarnings("ignore", category=PIL.Image.DecompressionBombWarning, append=True)
    return PIL


def open_picture(picture: Picture, where: str, mode: str) -> Any:
    """An image of Pillow's, upright, in `mode`: RGB or L. Transparency is dropped, 16 bits become 8;
    so do 32, in which numbers up to 255 are pixels of 8 bits, and larger ones of 16.

    Raises:
        BadData: it cannot be read, or its numbers have no range.
    """
    pil = _pillow()
    try:
        with pil.Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture, formats=KINDS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise BadData(f"{where} has {opened.width}×{opened.height} pixels: more than are read")
            opened.load()
            least, most = opened.getextrema() if opened.mode == "I" else (0, 0)
            if opened.mode == "F" or least < 0 or most > 0xFFFF:
                kind = "floating-point numbers" if opened.mode == "F" else "32-bit integers"
                raise BadData(f"{where} holds {kind}, whose range it does not say: make it an image of 8 or 16 bits")
            image = pil.ImageOps.exif_transpose(opened)
            if image.mode == "I" or image.mode.startswith("I;16"):
                # Of 32 bits, as a few libraries write images of any kind. A PNG has 16, also where Pillow says "I".
                unit = 1 if image.mode == "I" and most <= 0xFF and opened.format != "PNG" else 257
                image = pil.Image.fromarray((np.asarray(image).astype(np.float64) / unit).round().astype(np.uint8))
            return image.convert(mode)
    except BadData:
        raise
    except pil.UnidentifiedImageError:  # whose text names a Python object
        raise BadData(f"{where} is not a readable image: it is none of {', '.join(KINDS)}") from None
    except Exception as error:  # a decoder for each kind of file, with exceptions of its own
        raise BadData(f"{where} is not a readable image: {first_line(error)}") from None


class PictureInputs:
    """Makes the input of a model that is an image, and the mask of its pixels where there is one.

    Attributes:
        names: of the inputs it makes.
    """

    def __init__(self, inputs: Sequence[Input], preprocessing: Preprocessing | None, source: str) -> None:
        found = [i for i in inputs if i.dtype.kind in "fu" and _is_image(i)]
        named = [i for i in found if any(word in i.name.lower() for word in ("pixel", "image", "input"))]
        if len(found) != 1 and len(named) != 1:
            raise BadData(f"{source} holds images, which make one input of four dimensions: the model has {len(found)}")
        self.input = (found if len(found) == 1 else named)[0]
        if preprocessing is None and self.input.dtype.kind == "u":
            preprocessing = Preprocessing()
        if preprocessing is None:
            raise BadData(
                f"{source} holds images: declare what the model was trained on, its preprocessor_config.json or for "
                "instance --preprocess 'size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225'"
            )
        shape = self.input.shape or ()
        self.layout = preprocessing.layout or ("nhwc" if shape[-1] in (1, 3) and shape[1] not in (1, 3) else "nchw")
        is_gray = shape[1 if self.layout == "nchw" else 3] == 1 and preprocessing.channels == "rgb"
        self.preprocessing = dataclasses.replace(preprocessing, channels="gray") if is_gray else preprocessing
        self.mask = next((i for i in inputs if "mask" in i.name.lower() and "pixel" in i.name.lower()), None)
        self.names = tuple(i.name for i in (self.input, self.mask) if i is not None)
        p = self.preprocessing
        self.size = None if p.short or not p.resize else p.size or _model_size(self.input.name, shape, self.layout)

    def feed(self, picture: Picture, where: str) -> Feed:
        """From one image."""
        p = self.preprocessing
        image = self._resized(open_picture(picture, where, "L" if p.channels == "gray" else "RGB"), where)
        x: NDArray = np.asarray(image, np.float32).reshape(image.height, image.width, -1)
        for word, numbers in (("mean", p.mean), ("std", p.std)):
            if len(numbers) not in (1, x.shape[2]):
                raise BadRecipe(f"--preprocess: {word} has {len(numbers)} numbers, the image {x.shape[2]} channels")
        if self.input.dtype.kind == "f":
            x = (x / np.float32(p.scale) - np.array(p.mean, np.float32)) / np.array(p.std, np.float32)
        if p.channels == "bgr":  # after means, which are said in the order of R, G, B whatever the model's is
            x = x[:, :, ::-1]
        x = x if self.layout == "nhwc" else x.transpose(2, 0, 1)
        shape = self.input.shape or ()
        batch = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else 1
        feed = {self.input.name: np.ascontiguousarray(np.repeat(x[None], batch, axis=0)).astype(self.input.dtype)}
        if self.mask is not None:
            fixed = zip((self.mask.shape or ())[1:], (image.height, image.width), strict=False)
            size = [d if isinstance(d, int) and d > 0 else own for d, own in fixed] or [image.height, image.width]
            feed[self.mask.name] = np.ones((batch, *size), self.mask.dtype)
        return feed

    def _resized(self, image: Any, where: str) -> Any:
        p, how = self.preprocessing, get_args(Resample).index(self.preprocessing.resample)
        cut = p.cut
        if p.short:
            short, long = sorted((image.height, image.width))
            exact = min(float(p.short), p.long * short / long) if p.long else float(p.short)
            side, other = (n - n % p.whole for n in (round(exact), int(exact * long / short)))
            image = _resize(image, (side, other) if image.width <= image.height else (other, side), how, where)
        elif self.size is not None:
            height, width = self.size
            if p.crop:
                factor = 256 / 224 * max(height / image.height, width / image.width)
                image = _resize(image, (round(image.width * factor), round(image.height * factor)), how, where)
                cut = self.size
            else:
                image = _resize(image, (width, height), how, where)
        if cut:
            _require_size(image, (cut[1], cut[0]), where)
            left, top = (image.width - cut[1]) // 2, (image.height - cut[0]) // 2
            image = image.crop((left, top, left + cut[1], top + cut[0]))
        return image


def _is_image(i: Input) -> bool:
    """Whether it has four axes, of which one may be that of the channels."""
    shape = i.shape or ()
    return len(shape) == 4 and any(dim in (1, 3) or not isinstance(dim, int) or dim < 0 for dim in (shape[1], shape[3]))


def _resize(image: Any, size: tuple[int, int], how: int, where: str) -> Any:
    """To (width, height)."""
    _require_size(image, size, where)
    return image.resize(size, how)


def _require_size(image: Any, size: tuple[int, int], where: str) -> None:
    if size[0] * size[1] > MOST_PIXELS or min(size) < 1:
        raise BadData(f"{where} of {image.width}×{image.height} pixels would become one of {size[0]}×{size[1]}")


def _model_size(name: str, shape: tuple[int | str | None, ...], layout: str) -> tuple[int, int]:
    height, width = shape[1:3] if layout == "nhwc" else shape[2:4]
    if not isinstance(height, int) or not isinstance(width, int) or height < 1 or width < 1:
        raise BadData(f"the size of '{name}' is free: say it with --preprocess 'size=HEIGHTxWIDTH …'")
    return height, width
