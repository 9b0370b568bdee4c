"""Images of every kind become what Hugging Face's processors make of them, or one sentence."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import BadData, BadOutput
from onnxq.files import limits
from onnxq.files.guard import Guard
from onnxq.runtime.session import Input
from onnxq.samples import files
from onnxq.samples.pictures import scaling
from onnxq.samples.pictures.images import Preprocessing, parse_preprocessing
from onnxq.samples.pictures.processor import load_processor
from onnxq.samples.source import open_data

Image = pytest.importorskip("PIL.Image")
F32 = np.dtype(np.float32)
BILINEAR = 2
ANY = (Input("pixel_values", F32, (None, 3, None, None)),)
RAW = Preprocessing(size=(4, 4), scale=1)


def only(source: Path, how: Any = RAW, inputs: tuple[Input, ...] = ANY) -> NDArray:
    (sample,) = open_data(source, inputs, how)
    return sample[inputs[0].name]


PROCESSORS = {
    "ViT, a number": ("ViTImageProcessor", {"size": 32}),
    "ViT, height and width": ("ViTImageProcessor", {"size": {"height": 20, "width": 28}, "resample": 3}),
    "ViT, no rescaling": ("ViTImageProcessor", {"size": 16, "do_rescale": False, "do_normalize": False}),
    "CLIP, a number": ("CLIPImageProcessor", {"size": 32, "crop_size": 24}),
    "CLIP, shorter side": (
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 30}, "crop_size": {"height": 28, "width": 20}},
    ),
    "CLIP, cut larger than the image": ("CLIPImageProcessor", {"size": {"shortest_edge": 16}, "crop_size": 25}),
    "ConvNext, cut": ("ConvNextImageProcessor", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}),
    "ConvNext, a number": ("ConvNextImageProcessor", {"size": 24, "crop_pct": 0.9, "resample": 3}),
    "ConvNext, stretched": ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    "DeiT": ("DeiTImageProcessor", {"size": {"height": 32, "width": 32}, "crop_size": {"height": 28, "width": 28}}),
    "BEiT": ("BeitImageProcessor", {"size": {"height": 24, "width": 24}, "do_center_crop": False}),
    "MobileNetV2": ("MobileNetV2ImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": 28}),
    "MobileViT": ("MobileViTImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": 28}),
    "MobileViT, with means that it never takes": (
        "MobileViTImageProcessor",
        {"size": {"shortest_edge": 32}, "crop_size": 28, "do_normalize": True}
        | {"image_mean": [0.1, 0.5, 0.9], "image_std": [0.2, 0.3, 0.4]},
    ),
    "SegFormer": ("SegformerImageProcessor", {"size": {"height": 24, "width": 24}}),
    "SigLIP": ("SiglipImageProcessor", {"size": {"height": 24, "width": 24}}),
    "DETR": ("DetrImageProcessor", {"size": {"shortest_edge": 24, "longest_edge": 30}, "do_pad": False}),
    "YOLOS": ("YolosImageProcessor", {"size": {"shortest_edge": 40, "longest_edge": 70}, "do_pad": False}),
    "YOLOS, long": ("YolosImageProcessor", {"size": {"shortest_edge": 50, "longest_edge": 60}, "do_pad": False}),
    "defaults of ViT": ("ViTImageProcessor", {}),
    "defaults of CLIP": ("CLIPImageProcessor", {}),
    "defaults of DeiT": ("DeiTImageProcessor", {}),
    "defaults of ConvNext": ("ConvNextImageProcessor", {}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_agree_with_transformers(tmp_path: Path, name: str) -> None:
    """Every number within 1/255 of the range of pixels, before mean and std: what rounding of pixels may do."""
    word, settings = PROCESSORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        kind = getattr(transformers, word)
        file = tmp_path / "preprocessor_config.json"
        # As old versions wrote it: what was not set is not there.
        file.write_text(json.dumps({"image_processor_type": word} | settings))
        ours = load_processor(file)
        if word in ("ConvNextImageProcessor", "MobileViTImageProcessor"):
            # Which transformers 5 no longer takes where a file says nothing.
            settings = {"resample": BILINEAR} | settings
        assert isinstance(ours, Preprocessing)
        for size in ((40, 60), (61, 33)):
            folder = corpora.images(tmp_path / f"{size[0]}", count=1, size=size)
            image = Image.open(folder / "0.png")
            wanted = kind(**settings)(image, return_tensors="np")["pixel_values"]
            got = only(folder, ours)
            assert got.shape == wanted.shape
            step = (255 / ours.scale) / 255 / min(ours.std)
            assert np.abs(got - wanted).max() <= step * 1.01
            assert np.abs(got - wanted).mean() < 0.05 * step


def test_sides_for_yolos_are_whole_patches(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    size = {"shortest_edge": 333, "longest_edge": 500}
    file.write_text(json.dumps({"image_processor_type": "YolosImageProcessor", "size": size}))
    folder = corpora.images(tmp_path / "images", count=1, size=(480, 640))
    assert sorted(only(folder, load_processor(file)).shape) == [1, 3, 320, 432]  # of 333 and 444


def test_fast_processors_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": "ViTImageProcessorFast", "size": {"height": 8, "width": 6}}))
    assert load_processor(file) == Preprocessing((8, 6), (0.5,) * 3, (0.5,) * 3)


def test_the_processor_beside_the_model_is_used_and_named(tmp_path: Path) -> None:
    """From the folder above too, where the model lies in 'onnx', and from a file that holds several processors."""
    folder = corpora.images(tmp_path / "images", count=1)
    (tmp_path / "onnx").mkdir()
    inner = {"image_processor_type": "ViTImageProcessor", "size": 8}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
    with pytest.warns(
        RuntimeWarning, match=r"inputs are made as .*processor_config\.json says, which lies beside the model"
    ):
        data = open_data(folder, ANY, path=tmp_path / "onnx" / "model.onnx")
    assert next(iter(data))["pixel_values"].shape == (1, 3, 8, 8)
    before = data.hash()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner | {"resample": 3}}))
    with pytest.warns(RuntimeWarning):
        assert open_data(folder, ANY, path=tmp_path / "onnx" / "model.onnx").hash() != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object but a list"),
        ("{}", "declares neither images nor sounds"),
        ('{"size": "large"}', "has an invalid value"),
        ('{"size": {"height": 0, "width": 3}}', "invalid size 0: not"),
        ('{"size": 100000000}', "invalid size 100000000: not 1 to 16384 pixels"),
        ('{"size": 8, "image_std": [0, 1, 1]}', "image_std and rescale_factor are positive"),
        ('{"size": 8, "image_std": [1e-320, 1, 1]}', "image_std and rescale_factor are positive .* beyond 1e±12"),
        ('{"size": 8, "image_mean": [1e308, 1, 1]}', "image_mean is made of numbers, none beyond 1e±12"),
        ('{"size": 8, "resample": 17}', "unknown resampling filter 17"),
        ('{"size": 8, "resample": NaN}', "one of its entries is of a wrong kind"),
        ('{"size": 8, "rescale_factor": "abc"}', "one of its entries is of a wrong kind"),
        ('{"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": "x"}', "is of a wrong kind"),
        ('{"size": 8, "size_divisor": 32}', "its processor is not supported"),
        ('{"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 9}}', "Pixtral is not supported"),
        ('{"size": {"longest_edge": 9}, "image_mean": [0.5, 0.5, 0.5]}', "its processor is not supported"),
        ('{"image_processor_type": "NewImageProcessor", "size": 8}', "lacks 'image_mean', for which New has"),
        ('{"image_processor_type": "LayoutLMv3ImageProcessor"}', "LayoutLMv3 is not supported"),
        (
            '{"feature_extractor_type": "ClapFeatureExtractor", "sampling_rate": 1}',
            "ClapFeatureExtractor is not",
        ),
    ],
)
def test_processors_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(BadData, match=message):
        load_processor(tmp_path / "p.json")


def test_folders_by_class_are_taken_in_turns(tmp_path: Path) -> None:
    for value, name in enumerate(("cat", "dog", "owl")):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (5, 5), (value, i, 0)).save(tmp_path / "train" / name / f"{i}.png")
    (tmp_path / "labels.csv").write_text("file,label\n")
    found = [tuple(s["pixel_values"][0, :2, 0, 0].tolist()) for s in open_data(tmp_path, ANY, RAW)]
    assert found == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_classes_may_be_links_to_folders_elsewhere(tmp_path: Path) -> None:
    """What is named may hold links, which lead to each folder once; so do those that lead back."""
    photos, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"
    corpora.images(photos / "dogs", count=2)
    corpora.images(elsewhere / "cats", count=3)
    (photos / "cats").symlink_to(elsewhere / "cats")
    (photos / "cats again").symlink_to(elsewhere / "cats")
    (elsewhere / "cats" / "back").symlink_to(photos)
    (tmp_path / "link").symlink_to(photos)
    for folder in (photos, tmp_path / "link"):
        assert open_data(folder, ANY, RAW).count == 5
    guard = Guard(force=True)
    guard.reads(photos)
    with pytest.raises(BadOutput, match="is read, so it cannot be the output"):
        guard.writes(elsewhere / "cats" / "0.png")


def _odd(kind: str) -> Any:
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    if kind == "palette":
        return red.convert("P", palette=Image.Palette.ADAPTIVE)
    if kind == "alpha":
        return red.convert("RGBA")
    if kind == "cmyk":
        return red.convert("CMYK")
    return Image.new("RGB", (1, 1), (255, 0, 0))


@pytest.mark.parametrize("kind", ["palette", "alpha", "cmyk", "one pixel"])
def test_odd_images(tmp_path: Path, kind: str) -> None:
    _odd(kind).save(tmp_path / ("i.tif" if kind == "cmyk" else "i.png"))
    found = only(tmp_path)
    assert (found[0, 0] > 250).all() and (found[0, 1:] < 5).all()


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0x8080, np.uint16)).save(tmp_path / "i.png")
    np.testing.assert_array_equal(only(tmp_path), np.full((1, 3, 4, 4), 128, np.float32))


def test_of_32_bits_small_numbers_are_pixels_of_8_bits(tmp_path: Path) -> None:
    for most, wanted in ((255, 200), (0xFFFF, 1)):
        Image.fromarray(np.array([[200, most]] * 2, np.int32)).save(tmp_path / "i.tif")
        assert only(tmp_path, Preprocessing(scale=1, resize=False))[0, 0, 0].tolist() == [wanted, 255]
    for wrong in (-300, 1 << 16):
        Image.fromarray(np.array([[200, wrong]], np.int32)).save(tmp_path / "i.tif")
        with pytest.raises(BadData, match="holds 32-bit integers, whose range it does not say"):
            only(tmp_path)
    (tmp_path / "i.tif").unlink()
    Image.fromarray(np.full((4, 4), 257, np.uint16)).save(tmp_path / "i.png")
    assert (only(tmp_path) == 1).all()  # of 16 bits, which a PNG says


def test_images_are_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 2), (0, 0, 0))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    image.save(tmp_path / "i.png", exif=exif)
    found = only(tmp_path, Preprocessing(scale=1, resize=False))
    assert found.shape == (1, 3, 4, 2) and found[0, 0, 0, 1] == 255


def test_a_model_of_one_channel_gets_gray(tmp_path: Path) -> None:
    corpora.images(tmp_path, count=1)
    assert only(tmp_path, RAW, (Input("x", F32, (None, 1, 4, 4)),)).shape == (1, 1, 4, 4)


def test_pixels_for_a_model_of_integers(tmp_path: Path) -> None:
    """TensorFlow's models take pixels as they are, channels last; nothing has to be declared."""
    Image.new("RGB", (4, 4), (200, 1, 0)).save(tmp_path / "i.png")
    found = only(tmp_path, None, (Input("x", np.dtype(np.uint8), (None, 4, 4, 3)),))
    assert found.dtype == np.uint8 and found[0, 0, 0].tolist() == [200, 1, 0]


def test_the_mask_of_pixels(tmp_path: Path) -> None:
    corpora.images(tmp_path, count=1)
    mask = Input("pixel_mask", np.dtype(np.int64), (None, 64, 64))
    (sample,) = open_data(tmp_path, (*ANY, mask), RAW)
    assert sample["pixel_mask"].shape == (1, 64, 64) and sample["pixel_mask"].all()


def test_words_for_sizes(tmp_path: Path) -> None:
    corpora.images(tmp_path, count=1, size=(20, 40))
    how = parse_preprocessing("short=10 cut=8x12 resample=bicubic")
    assert only(tmp_path, how).shape == (1, 3, 8, 12)


def _png(width: int, height: int) -> bytes:
    """A black image of one bit, which compresses by a thousand."""
    held = io.BytesIO()
    Image.new("1", (width, height)).save(held, "PNG")
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a readable image: it is none of BMP, .*, WEBP$"),
        (b"\x89PNG\r\n\x1a\n" + b"\xff" * 40, "is not a readable image"),
        (_png(40_000, 5_000), "is not a readable image: Image size .* exceeds limit"),
        (_png(9000, 9000), r"has 9000×9000 pixels: more than are read"),
        (_png(1, 30_000), r"of 1×30000 pixels would become one of 512×15360000"),
    ],
    ids=["empty", "huge header", "bomb", "large", "line"],
)
def test_hostile_images(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "i.png").write_bytes(content)
    with pytest.raises(BadData, match=message):
        only(tmp_path, Preprocessing(short=512))


def test_numbers_without_a_range(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "i.tif")
    with pytest.raises(BadData, match="holds floating-point numbers, whose range it does not say"):
        only(tmp_path)


def test_a_folder_of_more_files_than_anybody_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLDER_ENTRIES", 3)
    for i in range(4):
        (tmp_path / f"{i}.png").touch()
    with pytest.raises(BadData, match="holds more than 3 files: name the one with the samples"):
        files.files_in(tmp_path, {".png"})
    (tmp_path / "0.png").unlink()
    assert len(files.files_in(tmp_path, {".png"})) == 3


def test_what_pillow_logs_does_not_reach_the_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling._pillow()
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own: a command has none
    logging.getLogger("PIL.TiffImagePlugin").error("More samples per pixel than can be decoded")
    assert capfd.readouterr().err == ""
