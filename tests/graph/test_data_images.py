"""Images as calibration data: what `--preprocess` makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import BadData, BadRecipe
from onnxq.runtime.session import Input
from onnxq.samples.pictures.images import Preprocessing, parse_preprocessing
from onnxq.samples.source import open_data

F32 = np.dtype(np.float32)
X = (Input("x", F32, (None, 3)),)
IMAGE = (Input("image", F32, (1, 3, 4, 6)),)


@pytest.fixture
def photo(tmp_path: Path) -> NDArray[np.uint8]:
    """A 4 × 6 picture in the folder."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(tmp_path / "p.png")
    return pixels


def test_images(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    p = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    (sample,) = open_data(tmp_path, IMAGE, p)
    wanted = ((photo / 255 - p.mean) / p.std).transpose(2, 0, 1)[None]
    np.testing.assert_allclose(sample["image"], wanted, rtol=0, atol=1e-6)
    (sample,) = open_data(tmp_path, IMAGE, parse_preprocessing("channels=bgr mean=0.1,0.2,0.3 std=0.5,0.6,0.7"))
    np.testing.assert_allclose(sample["image"], wanted[:, ::-1], rtol=0, atol=1e-6)  # numbers are of R, G and B
    bgr_last = Preprocessing(scale=1, channels="bgr", layout="nhwc")
    (sample,) = open_data(tmp_path, (Input("image", F32, (1, 4, 6, 3)),), bgr_last)
    np.testing.assert_array_equal(sample["image"], photo[None, :, :, ::-1])


def test_images_are_resized_and_cropped(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    for crop in (False, True):
        (sample,) = open_data(tmp_path, (Input("image", F32, (None, 3, None, None)),), Preprocessing((7, 5), crop=crop))
        assert sample["image"].shape == (1, 3, 7, 5)


def test_images_need_a_preprocessing_and_a_size(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    with pytest.raises(BadData, match="declare what the model was trained on"):
        list(open_data(tmp_path, IMAGE))
    with pytest.raises(BadData, match="the size of 'image' is free"):
        list(open_data(tmp_path, (Input("image", F32, (None, 3, None, None)),), Preprocessing()))
    with pytest.raises(BadData, match="one input of four dimensions"):
        list(open_data(tmp_path, X, Preprocessing()))
    with pytest.raises(BadRecipe, match="mean has 2 numbers, the image 3 channels"):
        list(open_data(tmp_path, IMAGE, Preprocessing(mean=(0.0, 1.0))))
    (tmp_path / "q.png").write_bytes((tmp_path / "p.png").read_bytes()[:60])
    with pytest.raises(BadData, match=r"q.png' is not a readable image"):
        list(open_data(tmp_path, IMAGE, Preprocessing()))


def test_preprocessing_words() -> None:
    words = "size=224x192 mean=0.4,0.5,0.6 std=0.2;scale=1 channels=gray layout=nhwc crop"
    assert parse_preprocessing(words) == Preprocessing((224, 192), (0.4, 0.5, 0.6), (0.2,), 1.0, "gray", "nhwc", True)
    assert parse_preprocessing("size=32").size == (32, 32)
    assert parse_preprocessing("") == Preprocessing()


@pytest.mark.parametrize("word", ["size=0x3", "size=axb", "std=0", "scale=0", "mean=", "channels=cmyk", "zoom=2"])
def test_preprocessing_words_that_are_not_understood(word: str) -> None:
    with pytest.raises(BadRecipe, match=f"--preprocess: invalid setting '{word}'; valid settings for images: size="):
        parse_preprocessing(f"layout=nchw {word}")
