"""The corpus's cases of folders of models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import folder_models
import onnx
from attack import mutate
from attack.corpus_data import deep
from attack.hostile import Hostile


def models(spoil: Callable[[Path], object], *words: str) -> Callable[[Path], list[str]]:
    """A folder of onnxruntime-genai with one model; `spoil` gets it."""

    def make(folder: Path) -> list[str]:
        place = folder / "in"
        config = {"model": {"decoder": {"filename": "a.onnx"}}}
        folder_models.put(place, genai_config=config, a=folder_models.encoder(), config={})
        spoil(place)
        return ["quantize", "in", "-s", "w8a16", "-o", "out", "--no-check", *words]

    return make


def configured(table: object) -> Callable[[Path], object]:
    return lambda place: (place / "genai_config.json").write_text(json.dumps(table))


def hidden_link(place: Path) -> None:
    """A model in a hidden folder that is a link to one outside."""
    onnx.save(folder_models.encoder(), place.parent / "secret.onnx")
    (place / ".h").mkdir()
    (place / ".h" / "b.onnx").symlink_to(Path("..", "..", "secret.onnx"))
    configured({"model": {"decoder": {"filename": ".h/b.onnx"}}})(place)


def circle(place: Path) -> None:
    (place / "b.onnx").symlink_to("b.onnx")


CASES: dict[str, Hostile] = {
    "part in a hidden folder": Hostile(models(hidden_link), "or in a hidden folder"),
    "part upwards": Hostile(
        models(configured({"model": {"decoder": {"filename": "../a.onnx"}}})), "outside the folder"
    ),
    "part of an absolute path": Hostile(models(configured({"model": {"filename": "/a.onnx"}})), "outside the folder"),
    "part with a null character": Hostile(models(configured({"model": {"filename": "a\0.onnx"}})), "is not there"),
    "part that is a circle": Hostile(models(circle), "is a link to a file that is not there"),
    "circle of links, looked at": Hostile(lambda f: models(circle)(f)[:0] or ["inspect", "in"], "is a link"),
    "deep configuration": Hostile(
        models(lambda p: (p / "genai_config.json").write_text(deep(99999))), "nested too deeply"
    ),
    "configuration that is none": Hostile(models(configured([1])), "is not a configuration of onnxruntime-genai"),
    "options that are a list": Hostile(
        models(configured({"model": {"decoder": {"filename": "a.onnx", "session_options": []}}}), "-t", "onnxq"),
        "session_options is a list, not an object",
    ),
    "decoder that is a list": Hostile(
        models(configured({"model": {"decoder": [], "vision": {"filename": "a.onnx"}}}), "-t", "onnxq"),
        "decoder is a list, not an object",
    ),
    "configuration with half a character": Hostile(
        models(configured({"model": {"decoder": {"filename": "a.onnx", "x": "\ud800"}}}), "-t", "onnxq"), "", code=0
    ),
    "part without a decoder beside it": Hostile(
        models(configured({"model": {"embedding": {"filename": "a.onnx"}}}), "-t", "onnxq"), "", code=0
    ),
    "pipe beside the models": Hostile(models(lambda p: os.mkfifo(p / "x.json")), "is not a file"),
    "link out of the folder": Hostile(
        models(lambda p: (p / "x.txt").symlink_to(mutate.elsewhere(p.parent))), "outside the folder"
    ),
    "folder that is a link": Hostile(models(lambda p: (p / "sub").symlink_to("/etc")), "is a link to a folder"),
}
