"""onnxruntime's C# binding, compiled from its sources by Mono's compiler, which knows C# 7.

The sources are those of the npm package `com.github.asus4.onnxruntime` (its folder `Runtime`). What they say in C# 8
and 9 is said in C# 7 here; nothing else is changed but where that compiler gives up.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

#: Of newer C#, what it is in C# 7.
_NEWER = (
    (r"\busing var (\w+) =", r"var \1 ="),  # which is closed at the end of the program instead
    (r"\bis null\b", "== null"),
    (r"\((\S+) is not (\w+)\)", r"(!(\1 is \2))"),
    (r"\bstatic (\w+ =>)", r"\1"),
    (r"^( {12,})static (?=[\w<>\[\], .]+ \w+\()", r"\1"),
    (r"([\w<>]+) (\w+) = new\(", r"\1 \2 = new \1("),
    (r": unmanaged\b", ": struct"),
)
#: What it takes for errors, or stumbles over.
_STUMBLES = (
    (r"^( *)([\w.]+)\.Span\[(\w+)\] = ([^;]+);", r"\1var \3Span = \2.Span; \3Span[\3] = \4;"),
    (r"^( *)(\w+\[[^\]]+\]) = (\w+\[[^\]]+\]) = ([^;]+);", r"\1\3 = \4; \2 = \4;"),
)


def older(text: str) -> str:
    """C# 8 and 9, as far as the binding and the samples have it, as C# 7."""
    for pattern, by in _NEWER:
        text = re.sub(pattern, by, text, flags=re.MULTILINE)
    return text


def build(sources: Path, folder: Path) -> Path:
    """Microsoft.ML.OnnxRuntime.dll in `folder`."""
    files = []
    for source in sorted((*sources.glob("*.cs"), *sources.glob("Tensors/*.cs"))):
        text = older(source.read_text(encoding="utf-8-sig"))
        for pattern, by in _STUMBLES:
            text = re.sub(pattern, by, text, flags=re.MULTILINE)
        files.append(folder / source.name)
        files[-1].write_text(text, encoding="utf-8")
    made = folder / "Microsoft.ML.OnnxRuntime.dll"
    words = ["-langversion:latest", "-define:NETSTANDARD2_0", "-target:library", "-unsafe", "-nowarn:1591"]
    done = subprocess.run(
        ["mcs", *words, f"-out:{made}", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return made
