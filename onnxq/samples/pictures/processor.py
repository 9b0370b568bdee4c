"""Hugging Face's `preprocessor_config.json`, of images and of sounds, as a preprocessing of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from onnxq.errors import BadData
from onnxq.samples.normal import RANGE, are_deviations, are_means
from onnxq.samples.pictures.images import Preprocessing, Resample
from onnxq.samples.sounds.sound import Sound, checked
from onnxq.samples.texts.tokenizer import read_json

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5,) * 3, (0.5,) * 3
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

#: What a processor does where its file is silent: size, size of the cut, filter (a number of Pillow's), mean and std.
_DEFAULTS: dict[str, tuple[Any, Any, int, tuple[tuple[float, ...], tuple[float, ...]] | None]] = {
    "ViT": ({"height": 224, "width": 224}, None, 2, _HALF),
    "CLIP": ({"shortest_edge": 224}, 224, 3, _CLIP),
    "ChineseCLIP": ({"shortest_edge": 224}, 224, 3, _CLIP),
    "ConvNext": ({"shortest_edge": 384}, None, 2, _HALF),
    "DeiT": ({"height": 256, "width": 256}, 224, 3, _HALF),
    "Beit": ({"height": 256, "width": 256}, 224, 3, _HALF),
    "Bit": ({"shortest_edge": 224}, 224, 3, _CLIP),
    "DPT": ({"height": 384, "width": 384}, None, 3, _HALF),
    "Detr": ({"shortest_edge": 800, "longest_edge": 1333}, None, 2, IMAGENET),
    "Yolos": ({"shortest_edge": 800, "longest_edge": 1333}, None, 2, IMAGENET),
    "MobileNetV1": ({"shortest_edge": 256}, 224, 2, _HALF),
    "MobileNetV2": ({"shortest_edge": 256}, 224, 2, _HALF),
    "MobileViT": ({"shortest_edge": 224}, 256, 2, None),
    "OwlViT": ({"height": 768, "width": 768}, None, 3, _CLIP),
    "Pvt": ({"height": 224, "width": 224}, None, 2, IMAGENET),
    "Segformer": ({"height": 512, "width": 512}, None, 2, IMAGENET),
    "Siglip": ({"height": 224, "width": 224}, None, 3, _HALF),
}
#: Whose size, where it is one number, is that of the shorter side; of the others it is that of both.
_SHORT_SIDE = {"CLIP", "ChineseCLIP", "ConvNext", "Bit", "MobileNetV1", "MobileNetV2", "MobileViT"}
#: Which fill images up only where several of different sizes are one batch.
_PADS_BATCHES = {"Detr", "Yolos", "ConditionalDetr", "DeformableDetr", "Mask2Former", "MaskFormer", "OneFormer"}
#: Of a crop_pct: less would be an image of which next to nothing is looked at.
_LEAST_CROP = 0.01
#: Settings of processors that do more than resize, cut and normalize, and their names.
_MORE = ("size_divisor", "keep_aspect_ratio", "rescale_offset", "include_top", "do_thumbnail", "do_align_long_axis")
_OTHERS = {"Levit", "PoolFormer", "EfficientFormer", "Donut", "Nougat", "ImageGPT", "LayoutLMv2", "LayoutLMv3", "Sam"}
_OTHERS |= {"Pix2Struct", "Perceiver", "VideoMAE", "Vivit", "Flava", "Fuyu", "Idefics", "Qwen2VL", "LlavaNext", "GLPN"}
_OTHERS |= {"EfficientNet", "Swin2SR", "TextNet", "Pixtral"}


class _Invalid(ValueError):
    """A value that is of the right kind, and makes no sense."""


def load_processor(path: Path) -> Preprocessing | Sound:
    """What `path` declares.

    Raises:
        BadData: it is no such file, or of a processor that does more than this project does.
    """
    found = read_json(path)
    for part in ("image_processor", "feature_extractor"):  # processor_config.json holds them in one
        found = found[part] if isinstance(found.get(part), dict) else found
    type = found.get("image_processor_type") or found.get("feature_extractor_type") or ""
    type = type if isinstance(type, str) else ""
    try:
        if "sampling_rate" in found or "num_mel_bins" in found:
            return checked(_sound(found, type, path))
        if any(key in found for key in ("image_mean", "size", "crop_size", "do_resize", "rescale_factor")) or type:
            return _image(found, _stem(type), path)
    except _Invalid as error:
        raise BadData(f"'{path}' has an invalid value: {error}") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):  # of values that are of another kind
        raise BadData(f"'{path}' has an invalid value: one of its entries is of a wrong kind") from None
    raise BadData(f"'{path}' declares neither images nor sounds: it is not a preprocessor_config.json")


def _stem(type: str) -> str:
    for end in ("Fast", "ImageProcessor", "FeatureExtractor"):
        type = type.removesuffix(end)
    return type


def _refuse(path: Path, type: str) -> BadData:
    return BadData(f"'{path}': {type or 'its processor'} is not supported; give its outputs as .npz files")


def _sound(found: dict[str, Any], type: str, path: Path) -> Sound:
    rate = int(found.get("sampling_rate", 16000))
    if type == "WhisperFeatureExtractor":
        fft, seconds = int(found.get("n_fft", 400)), float(found.get("chunk_length", 30))
        mel, hop = int(found.get("feature_size", 80)), int(found.get("hop_length", 160))
        return Sound(rate, mel, fft, hop, fft, "whisper", 0.0, 8000.0, seconds)
    if type == "ASTFeatureExtractor":
        mel, frames = int(found.get("num_mel_bins", 128)), int(found.get("max_length", 1024))
        mean, std = float(found.get("mean", -4.2677393)), 2 * float(found.get("std", 4.5689974))
        if not found.get("do_normalize", True):
            mean, std = 0.0, 1.0
        # Its own filters end at half the rate rounded down, its windows are those of 16 kHz.
        return Sound(rate, mel, 400, 160, 512, "kaldi", 20.0, float(rate // 2), 0.0, frames, False, mean, std)
    if type in ("Wav2Vec2FeatureExtractor", "EncodecFeatureExtractor", "DacFeatureExtractor"):
        return Sound(rate, normalize=type.startswith("Wav2Vec2") and bool(found.get("do_normalize", True)))
    raise _refuse(path, type)


def _image(found: dict[str, Any], type: str, path: Path) -> Preprocessing:
    pads = found.get("do_pad") and type not in _PADS_BATCHES
    if type in _OTHERS or pads or any(found.get(key) for key in _MORE) or found.get("ensure_multiple_of", 1) != 1:
        raise _refuse(path, type)
    if type not in _DEFAULTS:
        needed = {"size": "do_resize", "image_mean": "do_normalize", "image_std": "do_normalize"}
        missing = [key for key, switch in needed.items() if found.get(switch, True) and not found.get(key)]
        if missing and type:
            raise BadData(f"'{path}' lacks '{missing[0]}', for which {type} has no known default; add it")
    size, cut, resample, usual = _DEFAULTS.get(type, _DEFAULTS["ViT"])
    size = found.get("size", size)
    if isinstance(size, dict) and not size.keys() & {"height", "shortest_edge"}:  # bounds of both sides, or of pixels
        raise _refuse(path, type)
    cut = _pair(found.get("crop_size", cut)) if found.get("do_center_crop", cut is not None) else None
    scale = 1 / float(found.get("rescale_factor", 1 / 255)) if found.get("do_rescale", True) else 1.0
    mean, std = (found.get(key) or each for key, each in zip(("image_mean", "image_std"), usual or _HALF, strict=True))
    if usual is None or not found.get("do_normalize", True):  # or of one that never does, whatever its file says
        mean, std = (0.0,), (1.0,)
    mean, std = tuple(map(float, mean)), tuple(map(float, std))
    if not (are_means(mean) and are_deviations((*std, scale))):
        raise _Invalid(f"image_std and rescale_factor are positive numbers, image_mean is made of numbers, {RANGE}")
    number = found.get("resample", resample)
    number = resample if number is None else int(number)
    if not 0 <= number < len(get_args(Resample)):
        raise _Invalid(f"unknown resampling filter {number}")
    return Preprocessing(
        mean=mean,
        std=std,
        scale=scale,
        channels="bgr" if found.get("do_flip_channel_order", type == "MobileViT") else "rgb",
        resample=get_args(Resample)[number],
        resize=bool(found.get("do_resize", True)),
        **_sizes(size, cut, type, float(found.get("crop_pct") or 224 / 256)),
    )


def _sizes(size: Any, cut: tuple[int, int] | None, type: str, crop_pct: float) -> dict[str, Any]:
    """Fields of `Preprocessing`, from a number, {height, width}, or {shortest_edge}."""
    if isinstance(size, int):
        size = {"shortest_edge": size} if type in _SHORT_SIDE else {"height": size, "width": size}
    elif isinstance(size, list):
        size = {"height": size[0], "width": size[1]}
    if "height" in size:
        return {"size": _pair(size), "cut": cut}
    short = _side(size["shortest_edge"])
    if type == "ConvNext":
        if short >= 384:
            return {"size": (short, short)}
        if not _LEAST_CROP <= crop_pct <= 1:
            raise _Invalid(f"crop_pct is a share of a side, from {_LEAST_CROP} to 1")
        return {"short": int(short / crop_pct), "cut": (short, short)}
    long = size.get("longest_edge")
    whole = 16 if type == "Yolos" else 1  # of its patches
    return {"short": short, "long": None if long is None else _side(long), "cut": cut, "whole": whole}


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        both = (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    else:
        both = tuple(size) if isinstance(size, list) else (size, size)
    return _side(both[0]), _side(both[1])


def _side(x: Any) -> int:
    if not isinstance(x, int) or not 0 < x <= 1 << 14:
        raise _Invalid(f"invalid size {x}: not 1 to 16384 pixels")
    return x
