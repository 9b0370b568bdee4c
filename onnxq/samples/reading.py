"""What the user said of how files become inputs: a preprocessing, a tokenizer, lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxq.boundary import warn
from onnxq.errors import BadRecipe, UnusedOption
from onnxq.samples.pictures.images import Preprocessing, parse_preprocessing
from onnxq.samples.pictures.processor import load_processor
from onnxq.samples.sounds import sound
from onnxq.samples.sounds.sound import Sound, parse_sound
from onnxq.samples.texts import tokenizer
from onnxq.samples.texts.text import LENGTHS
from onnxq.samples.texts.tokenizer import file_of


@dataclass(frozen=True)
class Reading:
    """
    Attributes:
        preprocessing: of images or sounds.
        tokenizer: its file, or the folder that holds it.
        lengths: tokens of the samples, in turns; none: the usual mix.
    """

    preprocessing: Preprocessing | Sound | None = None
    tokenizer: Path | None = None
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Everything that decides what samples look like, contents of files included: data are hashed with it."""
        digest = hashlib.sha256()
        if self.tokenizer is not None:
            folder = self.tokenizer if self.tokenizer.is_dir() else self.tokenizer.parent
            file = folder / tokenizer.FILE if self.tokenizer.is_dir() else self.tokenizer
            for each in (file, folder / tokenizer.CONFIG):
                digest.update(each.read_bytes() if each.is_file() else b"-")
        return f"{self.preprocessing} {digest.hexdigest()} {self.lengths or LENGTHS}"

    def openable(self) -> Reading:
        """The same for processes in other folders."""
        return self if self.tokenizer is None else replace(self, tokenizer=self.tokenizer.absolute())

    def tell_unused(self, why: str) -> None:
        """A sentence for each part of it, none of which has an effect; `why` goes behind a colon."""
        for what in self._said():
            warn(f"{what} nothing: {why}", UnusedOption)

    def _said(self) -> Iterator[str]:
        if self.preprocessing is not None:
            yield "the preprocessing changes"
        if self.tokenizer is not None:
            yield f"the tokenizer '{self.tokenizer}' changes"
        if self.lengths:
            yield f"lengths of {','.join(map(str, self.lengths))} tokens change"


#: A declared preprocessing, words or a file for one, or all that can be said.
How = Reading | Preprocessing | Sound | str | Path | None


def reading_of(
    how: How = None, tokenizer: str | Path | None = None, lengths: Sequence[int] | int | str | None = None
) -> Reading:
    """From what `--preprocess`, `--tokenizer` and `--length` say.

    Raises:
        BadRecipe, BadData: a word or a file that is not understood.
    """
    if isinstance(how, Reading):
        return how
    if isinstance(how, (str, Path)):
        how = parse(how)
    where = None if tokenizer is None else Path(tokenizer)
    if where is not None:
        file_of(where)  # a name that is misspelt is told whether or not the samples are texts
    return Reading(how, where, _lengths(lengths))


def parse(text: str | Path) -> Preprocessing | Sound:
    """The preprocessing that words, or a processor's JSON file, declare."""
    if isinstance(text, Path) or text.strip().endswith(".json"):
        return load_processor(Path(text))
    words = {word.partition("=")[0] for word in text.replace(";", " ").split()}
    return parse_sound(text) if words & sound.OWN_WORDS else parse_preprocessing(text)


def _lengths(text: Sequence[int] | int | str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text
    try:
        found = tuple(int(word) for word in words)
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise BadRecipe(f"--length: invalid lengths '{text}'; examples: 128, or 16,128 for a mix")
    return found
