"""Cases of small files that ask for much: texts that grow, headers of sparse files, rules and columns without end
(`every.py`)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
from attack.corpus_data import texts
from attack.hostile import CALIBRATE, QUANTIZE, Hostile, file, model

RECIPE = (*QUANTIZE, "--recipe", "r.toml")
IMPORT = ("import-weights", "model.onnx", "w.gguf", "-o", "out.onnx")
_KEY, _TEXT, _LIST, _BYTE = struct.pack("<Q", 1) + b"a", 8, 9, 0
#: More than a header may be.
_HUGE = 140 << 20


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], list[str]]:
    """A text, and beside the model a tokenizer with something else in it."""

    def spoil(folder: Path) -> None:
        path = folder / "tokenizer.json"
        said = json.loads(path.read_text())
        change(said)
        path.write_text(json.dumps(said))

    return texts(spoil)


def steps(step: dict[str, Any], count: int) -> Callable[[dict[str, Any]], object]:
    return lambda said: said.update(normalizer={"type": "Sequence", "normalizers": [step] * count})


def template(*pieces: dict[str, Any], ids: int = 1) -> Callable[[dict[str, Any]], object]:
    """A tokenizer that puts these pieces in the place of a text; [PAD] stands for so many tokens."""
    pad = {"id": "[PAD]", "ids": [0] * ids, "tokens": ["[PAD]"] * ids}
    made = {"type": "TemplateProcessing", "single": [*pieces], "pair": [TEXT, OTHER], "special_tokens": {"[PAD]": pad}}
    return lambda said: said.update(post_processor=made)


TEXT, OTHER = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
SPECIAL = {"SpecialToken": {"id": "[PAD]", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
UNKNOWN = "U" * 9999
REPLACE = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}


def sparse_gguf(body: bytes, pairs: int = 1) -> Callable[[Path], None]:
    """A header that goes on as `body` and then as zeros, in a long file that takes a block of the disk."""

    def make(folder: Path) -> None:
        model(folder)
        with open(folder / "w.gguf", "wb") as written:
            written.write(b"GGUF" + struct.pack("<IQQ", 3, 0, pairs) + body)
            written.truncate(_HUGE + (1 << 20))

    return make


def many_columns(folder: Path) -> list[str]:
    corpora.tokenizer(folder)
    (folder / "t.csv").write_text("\n".join([",".join(f"x{i}" for i in range(200_000)), ",".join(["1"] * 200_000)]))
    model(folder)
    return [*CALIBRATE, "t.csv"]


CASES = {
    "tokenizer that makes texts longer": Hostile(tokenizer(steps(REPLACE, 8)), "65536 times as long"),
    "tokenizer of more characters than bytes": Hostile(
        tokenizer(lambda said: said.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 9})),
        "65536 times as long",
    ),
    "tokenizer with a long template": Hostile(tokenizer(template(*[SPECIAL] * 900, TEXT, ids=900)), "tokens around"),
    "tokenizer that repeats texts": Hostile(tokenizer(template(*[TEXT] * 9000)), "repeats a text"),
    "tokenizer with a long unknown word": Hostile(
        tokenizer(lambda said: said["model"].update(unk_token=UNKNOWN, vocab=said["model"]["vocab"] | {UNKNOWN: 1})),
        "a word of 9999 characters",
    ),
    "tokenizer that grows a little": Hostile(tokenizer(steps(REPLACE | {"content": "ee"}, 8)), "", code=0),
    "table of many columns": Hostile(many_columns, "has 200000 columns"),
    "recipe of a deep key": Hostile(file("r.toml", "a." * 30_000 + "b = 1", *RECIPE), "is nested too deeply"),
    "recipe of a deep key in quotes": Hostile(
        file("r.toml", '"\\"".' * 30_000 + "b = 1", *RECIPE), "is nested too deeply"
    ),
    "recipe with long names": Hostile(
        file("r.toml", f'# see {"a." * 99}b\n[[rule]]\nset = "keep"\nnodes = "{"p." * 99}w*"', *RECIPE), "", code=0
    ),
    "recipe of a deep table": Hostile(file("r.toml", "[" + "a . " * 30_000 + "b]", *RECIPE), "is nested too deeply"),
    "recipe of many rules": Hostile(file("r.toml", '[[rule]]\nset="int8"\n' * 90_000, *RECIPE), "has 90000 rules"),
    "recipe of many numbers": Hostile(file("r.toml", f"a = [{'1,' * 2_000_000}]", *RECIPE), "is longer than 2 MB"),
    "gguf with a long text": Hostile(
        sparse_gguf(_KEY + struct.pack("<IQ", _TEXT, _HUGE)), "a text is longer than the file, or than a header", IMPORT
    ),
    "gguf with a long list": Hostile(
        sparse_gguf(_KEY + struct.pack("<IIQ", _LIST, _BYTE, _HUGE)), "a list is longer than the file", IMPORT
    ),
    "gguf with a billion entries": Hostile(sparse_gguf(b"", 10**9), "it tells of more than it can hold", IMPORT),
    "gguf that says a key twice": Hostile(sparse_gguf(b"", 10**6), "it says twice what '' is", IMPORT),
}
