"""Cases of places that are no places: links in circles or to nowhere, where what is printed goes (`every.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from attack import scenes
from attack.corpus_data import arrays
from attack.hostile import CALIBRATE, Hostile, changed, outside

LINKS = {"loop": "loop", "nowhere": "no/such/place"}


def linked(*words: str) -> Callable[[Path], list[str]]:
    """A sound model, and links that lead in a circle or to nowhere, whatever their suffix."""

    def make(folder: Path) -> list[str]:
        scenes.put(folder, "model")
        suffix = Path(words[-1]).suffix
        for name, target in LINKS.items():
            os.symlink(target + suffix * (name == "loop"), folder / (name + suffix))
        return [*words[:1], "-f", *words[1:]]

    return make


def circle(folder: Path) -> None:
    """Weights of a file that is a link to itself."""
    changed(lambda proto: proto.graph.initializer.append(outside("circle")))(folder)
    os.symlink("circle", folder / "circle")


def made_up(suffix: str, *, inside: bool) -> Callable[[Path], list[str]]:
    """Data that are a link to a file of the kernel's, or a folder that holds one: some of these never end."""

    def make(folder: Path) -> list[str]:
        scenes.put(folder, "model")
        (folder / "d").mkdir()
        file = folder / ("d" if inside else "") / f"a{suffix}"
        file.symlink_to("/proc/self/environ")
        return [*CALIBRATE, "d" if inside else file.name]

    return make


def indexed(folder: Path) -> list[str]:
    """A checkpoint of several files, one of which is a link out of its folder."""
    arrays("w")(folder)
    (folder / "in").mkdir()
    (folder / "in" / "a.safetensors").symlink_to(folder / "w.safetensors")
    (folder / "in" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    scenes.put(folder, "model")
    return ["import-weights", "model.onnx", "in", "-o", "out.onnx"]


def traced(*words: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        scenes.put(folder, "model")
        return ["quantize", "model.onnx", "-s", "w8a8-dynamic", "--no-check", *words]

    return make


NO_PLACE = "is a link that leads nowhere; choose another place"
CASES = {
    "index of a link out of the folder": Hostile(indexed, "in 'a.safetensors', a link out of the folder"),
    **{
        f"{name} where something else goes": Hostile(traced(*words), "choose another name")
        for name, words in {
            "steps": ("-o", "out.onnx", "--trace", "out.onnx"),
            "steps, spelled otherwise,": ("-o", "out.onnx", "--trace", "./OUT.onnx"),
            "steps below": ("-o", "out.onnx", "--trace", "out.onnx/steps"),
            "steps of a report": ("-o", "out.onnx", "--trace", "r.json", "--report", "r.json"),
        }.items()
    },
    "bundle at links in a circle": Hostile(
        linked("export", "model.onnx", "-o", "loop"), "'loop' is not a folder; choose another name with -o"
    ),
    **{
        f"{word} {option} at a link: {name}": Hostile(linked(*said, option, name), f"'{name}' {NO_PLACE}")
        for word, option, name, said in (
            ("ranges", "-o", "loop.ranges", ("calibrate", "model.onnx", "-s", "w8a8", "--data", "data.npz")),
            ("ranges", "-o", "nowhere.ranges", ("calibrate", "model.onnx", "-s", "w8a8", "--data", "data.npz")),
            ("plan", "-o", "nowhere.json", ("plan", "model.onnx")),
            ("page", "--html", "nowhere.html", ("check", "model.onnx", "model.onnx", "--by-layer")),
        )
    },
    "report in a folder of the kernel": Hostile(
        linked("quantize", "model.onnx", "-s", "w4a16", "-o", "out.onnx", "--report", "/proc/self/r.json"),
        "the folder '/proc/self' cannot be written to",
    ),
    **{
        f"data that the kernel makes up: {suffix} {'in a folder' if inside else 'named'}": Hostile(
            made_up(suffix, inside=inside), f"a{suffix}' is not a file: the kernel makes up what is in it"
        )
        for suffix in (".txt", ".jsonl", ".csv", ".arrow", ".png", ".wav")
        for inside in (False, True)
        if Path("/proc/self/environ").exists()
    },
    "weights at links in a circle": Hostile(circle, "'circle' cannot be read: Too many levels of symbolic links"),
}
