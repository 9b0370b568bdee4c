"""What tokenizers of strangers do to texts: no more tokens than were asked for, and the same ones each time."""

from __future__ import annotations

from pathlib import Path

import corpora
import pytest

tokenizers = pytest.importorskip("tokenizers")
from onnxq.errors import BadData  # noqa: E402
from onnxq.samples.texts.tokenizer import open_tokenizer  # noqa: E402


def changed(folder: Path, change: str) -> Path:
    path = corpora.tokenizer(folder) / "tokenizer.json"
    made = tokenizers.Tokenizer.from_file(str(path))
    if change == "twice":
        made.post_processor = tokenizers.processors.TemplateProcessing("[SEP] $A $A", special_tokens=[("[SEP]", 3)])
    if change == "dropout":
        letters = {letter: i for i, letter in enumerate("abcdefgh")} | {"ab": 8, "cd": 9}
        made.model = tokenizers.models.BPE(letters, [("a", "b"), ("c", "d")], dropout=0.5)
    if change == "unknown":
        made.model = tokenizers.models.WordLevel({"the": 0}, unk_token="[NONE]")
    made.save(str(path))
    return path


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9])
def test_copies_of_a_text_fit_in_together(length: int, tmp_path: Path) -> None:
    found, text = open_tokenizer(changed(tmp_path, "twice")), "the quick brown fox jumps over"
    ids, types = found.encode(text, length)
    assert len(ids) == len(types) <= max(length, 3) and ids[0] == 3  # one token of the text is more than no text
    ids, types = found.encode(text, length, special=False)
    assert len(ids) == len(types) <= max(length, 2) and ids[0] != 3


def test_each_pass_sees_the_same_tokens(tmp_path: Path) -> None:
    found = open_tokenizer(changed(tmp_path, "dropout"))
    assert {tuple(found.encode("abcdabcdabcd", 99)[0]) for _ in range(20)} == {(8, 9) * 3}


def test_half_a_character_is_one_that_is_not_known(tmp_path: Path) -> None:
    found = open_tokenizer(changed(tmp_path, ""))
    assert found.encode("the \ud83d fox", 9)[0] == found.encode("the \ufffd fox", 9)[0]


def test_a_text_that_has_no_token_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"tokenizer.json' fails on a text: WordLevel error: Missing"):
        open_tokenizer(changed(tmp_path, "unknown")).encode("quick", 9)
