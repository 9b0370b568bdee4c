"""The words of a `tokenizer.json`, as llama.cpp's metadata have them.

Two kinds are known: byte-level byte pairs (its "gpt2") whose way of cutting texts llama.cpp has under a name, and
byte pairs made of a sentencepiece model (its "llama").

Source: gguf's `constants.py`, llama.cpp's `llama-vocab.cpp`; Hugging Face's tokenizers for the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.checkpoints.gguf_file import Value
from onnxq.errors import BadData, BadModel
from onnxq.samples.texts import tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE, _ONE = (f"{_LETTERS}|{digits}{_REST}" for digits in (r"\p{N}{1,3}", r"\p{N}"))
#: What llama.cpp calls a way of cutting: by the pattern, and whether words of the vocabulary need no merges.
_CUTS = {
    (_THREE, True): "llama-bpe",
    (_THREE, False): "smaug-bpe",
    (_ONE, False): "qwen2",
}
_SPACE = "▁"
#: Letters of a word, at most: of real ones none has a quarter of that.
_LONGEST = 1024
#: Of a score, for words that no merge makes.
_NEVER = np.float32(-1e9)
_ENDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def metadata(file: Path, words: int) -> dict[str, Value]:
    """What a GGUF file says of `file`.

    Args:
        words: rows of the model's table.

    Raises:
        BadData: it cannot be read.
        BadModel: llama.cpp has no tokenizer that does the same; why.
    """
    said = tokenizer.read_json(file)
    try:
        found = _metadata(said, _config(file), words)
        for value in found.values():
            if isinstance(value, (str, list)):
                "".join(value).encode()  # JSON may hold half a character, which no text in a file can
        return found
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
        raise BadData(f"'{file}' is not a tokenizer.json of the tokenizers library") from None


def _config(file: Path) -> Mapping[str, Any]:
    beside = file.with_name(tokenizer.CONFIG)
    return tokenizer.read_json(beside) if beside.is_file() else {}


def _metadata(said: Mapping[str, Any], config: Mapping[str, Any], words: int) -> dict[str, Value]:
    model = said["model"]
    if model.get("type", "BPE") != "BPE":
        raise BadModel(f"its tokenizer is of the kind {model['type']}, which is not written")
    added = {int(each["id"]): each for each in said.get("added_tokens") or ()}
    texts: dict[int, str] = {int(i): str(text) for text, i in model["vocab"].items()}
    texts |= {i: str(each["content"]) for i, each in added.items()}
    if min(texts) < 0:
        raise ValueError("a word has a negative number")
    if max(map(len, texts.values())) > _LONGEST:
        raise BadModel(f"its tokenizer has words of more than {_LONGEST} letters")
    if max(texts) >= words:
        raise BadModel(f"its tokenizer has words up to {max(texts)}, its table {words} rows")
    merges = [tuple(pair.split(" ", 1) if isinstance(pair, str) else pair) for pair in model["merges"]]
    is_bytes = any(step["type"] == "ByteLevel" for step in _steps(said.get("pre_tokenizer")))
    kinds = np.full(words, _UNUSED, np.int32)
    for i, text in texts.items():
        kinds[i] = _NORMAL if i not in added else _CONTROL if added[i].get("special") else _USER
        if not is_bytes and len(text) == 6 and text.startswith("<0x"):
            kinds[i] = _BYTE
        if text == model.get("unk_token"):
            kinds[i] = _UNKNOWN
    found: dict[str, Value] = _byte_level(said, merges) if is_bytes else _pieces(said, texts, merges, words)
    return {
        **found,
        "tokenizer.ggml.tokens": [texts.get(i, f"[PAD{i}]") for i in range(words)],
        "tokenizer.ggml.token_type": kinds,
        **_special(said, config, {text: i for i, text in texts.items()}),
    }


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A step, or those of a sequence."""
    if part is None:
        return
    inner = next((part[key] for key in ("pretokenizers", "normalizers", "processors") if key in part), None)
    for each in [part] if inner is None else inner:
        yield from [each] if inner is None else _steps(each)


def _byte_level(said: Mapping[str, Any], merges: list[tuple[str, ...]]) -> dict[str, Value]:
    if any(step["type"] != "NFC" for step in _steps(said.get("normalizer"))):
        raise BadModel("its tokenizer changes texts in a way that llama.cpp does not")
    *cuts, last = _steps(said["pre_tokenizer"])
    keys = [_cut(step) for step in cuts] + (["words"] if last.get("use_regex", True) else [])
    word = {("words",): "gpt-2", ("digits", "words"): "smollm"}.get(tuple(keys))
    if len(keys) == 1 and word is None:
        word = _CUTS.get((keys[0], bool(said["model"].get("ignore_merges"))))
    if word is None or last["type"] != "ByteLevel":
        raise BadModel("its tokenizer cuts texts by a pattern that llama.cpp has no name for")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": word,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.add_space_prefix": bool(last.get("add_prefix_space", False)),
    }


def _cut(step: Mapping[str, Any]) -> str:
    if step["type"] == "Digits" and step.get("individual_digits"):
        return "digits"
    is_plain = step["type"] == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    return str(step["pattern"].get("Regex", "")) if is_plain else ""


def _pieces(
    said: Mapping[str, Any], texts: Mapping[int, str], merges: list[tuple[str, ...]], words: int
) -> dict[str, Value]:
    """Words of a sentencepiece model: their scores are the order of merges, which has every pair that makes a word."""
    steps = [*_steps(said.get("normalizer")), *_steps(said.get("pre_tokenizer"))]
    is_plain = all(step["type"] in ("Prepend", "Replace", "Metaspace") for step in steps)
    if not said["model"].get("byte_fallback") or not is_plain or not steps:
        raise BadModel("its tokenizer is neither of bytes nor of pieces as sentencepiece has them")
    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(merges):
        ranks.setdefault(first + second, rank)
    known, pairs = set(texts.values()), set(merges)
    for word in ranks:
        for at in range(1, len(word)):
            if word[:at] in known and word[at:] in known and (word[:at], word[at:]) not in pairs:
                raise BadModel(f"its tokenizer never joins {word[:at]!r} and {word[at:]!r}, which llama.cpp would")
    scores = np.zeros(words, np.float32)
    for i, text in texts.items():
        scores[i] = -ranks[text] if text in ranks else _NEVER if len(text) > 1 else 0
    prefixed = any(
        step["type"] == "Prepend" or step.get("prepend_scheme", "never") in ("always", "first") for step in steps
    )
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prefixed,
    }


def _special(said: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Value]:
    """Which words begin and end texts, and whether they are put there."""
    found: dict[str, Value] = {}
    for key, word in _ENDS.items():
        token = config.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in ids:
            found[f"tokenizer.ggml.{word}_token_id"] = np.uint32(ids[token])
    templates = [step for step in _steps(said.get("post_processor")) if step["type"] == "TemplateProcessing"]
    around = templates[0]["single"] if templates else [{"Sequence": {}}]
    found["tokenizer.ggml.add_bos_token"] = "SpecialToken" in around[0]
    found["tokenizer.ggml.add_eos_token"] = "SpecialToken" in around[-1]
    template = config.get("chat_template")
    if isinstance(template, str):
        found["tokenizer.chat_template"] = template
    return found
