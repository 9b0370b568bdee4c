"""Token ids of texts, by a `tokenizer.json` of the `tokenizers` library and what its folder says of padding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.errors import BadData, MissingRuntime, first_line, without_halves
from onnxq.files import guard, limits
from onnxq.runtime import supervisor
from onnxq.samples.texts import growth

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
#: Tokenizers without a limit of their own say so by a number like 1e30.
MOST_TOKENS = 1 << 20
#: Of a tokenizer's file; those of a million tokens have a tenth of that.
MOST_BYTES = 1 << 29
#: Characters that a text may become before tokens are looked for, which take up to 200 bytes each.
MOST_CHARACTERS = 1 << 24
#: How much longer a text may become; real tokenizers make a hundredfold of it at most.
MOST_GROWTH = 1 << 16
#: Special tokens around a text, and how often a template may repeat it.
MOST_AROUND, MOST_COPIES = 1 << 10, 16
#: Characters of the token that stands for each unknown one, and of what is put before and behind parts of words.
MOST_UNKNOWN = 1 << 10


@dataclass(frozen=True)
class Tokenizer:
    """
    Attributes:
        path: its file.
        pad, start: the ids that fill up a sequence, and that a decoder begins with where the model says nothing else.
        longest: tokens that the model was made for, if the folder says so.
        readable: characters of a text that are looked at: more could become more than memory holds.
        copies: of a text that its template makes.
    """

    path: Path
    encoder: Any
    pad: int = 0
    start: int | None = None
    longest: int | None = None
    readable: int = MOST_CHARACTERS
    copies: int = 1

    def encode(self, text: str, length: int, *, special: bool = True) -> tuple[list[int], list[int]]:
        """(ids, type ids) of the beginning of `text`: at most `length`, special tokens included, where they leave room.

        Special tokens that a tokenizer puts around every text stay whole; with one token of the text that may be more.
        """
        around = self.encoder.num_special_tokens_to_add(False) if special else 0
        self.encoder.enable_truncation(max((length - around) // self.copies, 1) + around)
        supervisor.doing(f"the tokenizers library read a text by {self.path}")
        with _only_bad_data(f"the tokenizer '{self.path}' fails on a text"):
            found = self.encoder.encode(without_halves(text[: self.readable]), add_special_tokens=special)
        return list(found.ids), list(found.type_ids)


def file_of(path: Path) -> Path:
    """The `tokenizer.json` that `path` is, or that the folder there holds.

    Raises:
        BadData: there is none.
    """
    file = path / FILE if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir():
        advice = "AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers writes one"
        raise BadData(f"the folder '{path}' holds no {FILE}: {advice}")
    raise BadData(f"the tokenizer '{path}': no such file")


def open_tokenizer(path: Path) -> Tokenizer:
    """Of a `tokenizer.json`, or of a folder that holds one.

    Raises:
        MissingRuntime, BadData: the library is not there, or the file is none of its.
    """
    try:
        import tokenizers
    except ImportError:
        raise MissingRuntime("reading texts needs the tokenizers library: pip install 'onnxq[text]'") from None
    file = file_of(path)
    if limits.require_file(file, BadData, "the tokenizer ") > MOST_BYTES:
        raise BadData(f"the tokenizer '{file}' is longer than {MOST_BYTES >> 20} MB")
    with _only_bad_data(f"'{file}' is not a tokenizer.json of the tokenizers library"):
        encoder = tokenizers.Tokenizer.from_file(str(file))
        encoder.no_padding()
        encoder.no_truncation()
        if getattr(encoder.model, "dropout", None):
            encoder.model.dropout = None  # which is for training: each pass over the texts would see others
    grown = _require_sane(encoder, file)
    beside = [found for found in (file, file.with_name(CONFIG)) if found.is_file()]
    guard.remember(beside)
    config = read_json(beside[1]) if len(beside) > 1 else {}
    pad = _id(encoder, config, "pad_token")
    start = _id(encoder, config, "bos_token")
    longest = config.get("model_max_length")
    is_limit = isinstance(longest, int) and 0 < longest < MOST_TOKENS
    return Tokenizer(
        file,
        encoder,
        pad or 0,
        pad if start is None else start,
        longest if is_limit else None,
        readable=int(MOST_CHARACTERS / grown),
        copies=int(growth.copies_of(encoder)),
    )


def _require_sane(encoder: Any, file: Path) -> float:
    """How much longer the tokenizer makes a text at most.

    Raises:
        BadData: more than any should, by its steps in front of the tokens or by what comes of these.
    """
    grown = growth.growth_of(encoder)
    affixes = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    unknown = max((getattr(encoder.model, word, None) or "" for word in affixes), key=len)
    faults = {
        f"may make a text more than {MOST_GROWTH} times as long": grown > MOST_GROWTH,
        f"puts more than {MOST_AROUND} tokens around a text": encoder.num_special_tokens_to_add(False) > MOST_AROUND,
        f"repeats a text more than {MOST_COPIES} times": growth.copies_of(encoder) > MOST_COPIES,
        f"has a word of {len(unknown)} characters for each unknown or broken token": len(unknown) > MOST_UNKNOWN,
    }
    if fault := next((words for words, is_so in faults.items() if is_so), ""):
        raise BadData(f"the tokenizer '{file}' {fault}, which onnxq does not read")
    return grown


@contextlib.contextmanager
def _only_bad_data(what: str) -> Iterator[None]:
    """The library raises plain exceptions, and where it gives up, one that is none of Python's `Exception`s."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise BadData(f"{what}: {first_line(error)}") from None


def _id(encoder: Any, config: dict[str, Any], key: str) -> int | None:
    """The id of a special token, whose entry is its text or a table with its text."""
    token = config.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    found = encoder.token_to_id(without_halves(token)) if isinstance(token, str) else None
    return found if found is not None or key != "pad_token" else encoder.token_to_id("[PAD]")


def read_json(path: Path) -> dict[str, Any]:
    """A table from a JSON file, in whose place nothing is written then.

    Raises:
        BadData: it is none.
    """
    guard.remember([path])
    try:
        found = limits.parse_json(limits.read_text(path, "", error=BadData))
    except ValueError as error:
        raise BadData(f"'{path}' cannot be read as JSON: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise BadData(f"'{path}' is not a JSON object but {limits.json_word(found)}")
    return found
