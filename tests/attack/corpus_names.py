"""Cases of files whose names are odd, though files of such names are there (`every.py`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attack import scenes
from attack.hostile import Hostile

#: Bytes that are no UTF-8, as Python keeps them.
NO_TEXT = "\udcff"


def named(name: str, *words: str) -> Callable[[Path], list[str]]:
    """A sound model of this name; `{}` in words is the name."""

    def make(folder: Path) -> list[str]:
        scenes.put(folder, "model")
        (folder / "model.onnx").rename(folder / f"{name}.onnx")
        (folder / "out").mkdir()
        return [word.replace("{}", name) for word in words]

    return make


WORDS = {
    "quantized": ("quantize", "./{}.onnx", "-s", "w4a16", "-o", "out/q.onnx", "--no-check"),
    "calibrated": ("calibrate", "./{}.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out/{}.ranges"),
    "planned": ("plan", "./{}.onnx", "-o", "out/{}.json"),
    "reported": ("report", "./{}.onnx", "-o", "out/{}.html", "--json", "out/r.json"),
}
CHECKED = ("check", "./{}.onnx", "./{}.onnx")
WRITTEN = ("quantize", "./{}.onnx", "-s", "w4a16", "-o", "out/{}.onnx")
REFUSED = "onnxruntime opens only files whose path is text in UTF-8; rename it"
CASES = {
    "name that is no text, checked": Hostile(named(NO_TEXT, *CHECKED), REFUSED),
    "name that is no text, written": Hostile(named(NO_TEXT, *WRITTEN), REFUSED),
    "name too long for what is written beside": Hostile(
        named("n" * 245, *WORDS["calibrated"]), ".ranges.partial' cannot be written: File name too long"
    ),
    "name as long as may be": Hostile(named("n" * 245, *WRITTEN), "", code=0),
    **{f"name that is no text, {what}": Hostile(named(NO_TEXT, *WORDS[what]), "", code=0) for what in WORDS},
    **{
        f"name {name[:9]!r}, {what}": Hostile(named(name, *words), "", code=0)
        for name in ("a\nb", "\x1b[2J", "re:x", "{0}%s")
        for what, words in (("calibrated", WORDS["calibrated"]), ("checked", CHECKED), ("written", WRITTEN))
    },
}
