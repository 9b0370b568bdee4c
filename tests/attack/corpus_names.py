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


def folders(*parts: str, name: str = "folder") -> Callable[[Path], None]:
    """Folders `name` and `other` of sound models that are called so."""

    def make(folder: Path) -> None:
        scenes.put(folder, "model")
        (folder / "out").mkdir()
        for each in (name, "other"):
            (folder / each).mkdir()
            for part in parts:
                (folder / each / f"{part}.onnx").write_bytes((folder / "model.onnx").read_bytes())

    return make


WORDS = {
    "quantized": ("quantize", "./{}.onnx", "-s", "w4a16", "-o", "out/q.onnx", "--no-check"),
    "calibrated": ("calibrate", "./{}.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out/{}.ranges"),
    "planned": ("plan", "./{}.onnx", "-o", "out/{}.json"),
    "reported": ("report", "./{}.onnx", "-o", "out/{}.html", "--json", "out/r.json"),
}
CHECKED = ("check", "./{}.onnx", "./{}.onnx")
WRITTEN = ("quantize", "./{}.onnx", "-s", "w4a16", "-o", "out/{}.onnx")
PAGE, IS_READ = ("-o", "out/f.html", "--json", "out/f.json"), "is read, so it cannot be the output"
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
    "parts whose names are no text, reported": Hostile(folders(NO_TEXT, "b"), "", ("report", "folder", *PAGE), 0),
    "folder whose name is no text, reported": Hostile(
        folders("a", name=NO_TEXT), "", ("report", NO_TEXT, "--against", "other", *PAGE), 0
    ),
    "parts whose names are no text, checked": Hostile(folders(NO_TEXT), REFUSED, ("check", "folder", "other")),
    "parts whose names are no text, by layer": Hostile(
        folders(NO_TEXT), "", ("check", "folder", "other", "--by-layer", "--html", "out/f.html"), 0
    ),
    **{
        f"page in the place of a part: {' '.join(words)}": Hostile(folders("a"), IS_READ, words)
        for words in (
            ("report", "folder", "-f", "-o", "folder/a.onnx"),
            ("report", "folder", "-f", "--json", "folder/a.onnx"),
            ("report", "folder", "-f", "--against", "other", "-o", "other/a.onnx"),
            ("check", "folder", "other", "-f", "--html", "other/a.onnx"),
        )
    },
}
