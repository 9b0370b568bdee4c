"""`onnxq explain`: what a word means, wherever it is said."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator

import click

from onnxq.cli._terms import FIGURES, TERMS
from onnxq.errors import BadRecipe, Exit

#: Words that are offered in the place of one that nobody knows.
_OFFERED = 4


@click.command(short_help="Say what a word of a table, an option or a reason means.")
@click.argument("words", nargs=-1, metavar="[WORD]")
def explain(words: tuple[str, ...]) -> None:
    """Say what WORD means: of a table, a scheme, a number format, an algorithm, a calibration method, a target, an exit
    code ('exit 3'), or of a reason why a node is not quantized. Without a word, list them all.
    """
    if not words:
        for kind, known in _kinds():
            click.echo(f"{kind}: {', '.join(known())}\n")
        return
    word = " ".join(words)
    found = [f"{kind}\n  {text}" for kind, text in _found(word)] or _of_parts(word)
    found = found or [f"reason\n  {word}: {text}" for text in _advice(word)]
    if not found:
        every = {part.casefold(): part for _, known in _kinds() for name in known() for part in name.split(", ")}
        near = [every[each] for each in difflib.get_close_matches(word.casefold(), every, _OFFERED, 0.5)]
        offer = f"perhaps {', '.join(near)}" if near else "'onnxq explain' lists those that are"
        raise BadRecipe(f"'{word}' is not explained; {offer}")
    click.echo("\n".join(found))


def _found(word: str) -> Iterator[tuple[str, str]]:
    """(what kind of word it is, what it means)."""
    yield from ((kind, text) for kind, known in _kinds() for name, text in known().items() if _is(name, word))


def _of_parts(word: str) -> list[str]:
    """What the parts mean of what becomes of a node, as tables have it: 'int8 stored', 'uint4 b32+gptq'; nothing where
    one of them is no word."""
    parts = re.split(r"[\s+]+", word)
    found = [[f"{kind}\n  {part}: {text.removeprefix(f'{part}: ')}" for kind, text in _found(part)] for part in parts]
    return [each for of_part in found for each in of_part] if all(found) else []


def _is(name: str, word: str) -> bool:
    """Whether a word is meant by another spelling; several names of one thing are divided by commas."""
    wanted = re.sub(r"[\s_-]+", " ", word).strip().casefold()
    wanted = re.sub(r"^b\d+$", "b32", re.sub(r"^rank\d+$", "rank", wanted))
    return wanted in {re.sub(r"[\s_-]+", " ", each).strip().casefold() for each in (name, *name.split(", "))}


def _kinds() -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
    """Kinds of words, and what makes the table of each."""
    yield "term", lambda: TERMS
    yield "figure", lambda: FIGURES
    yield "scheme", _schemes
    for kind, folder in (
        ("number format", "formats"),
        ("algorithm", "algorithms"),
        ("scaling of channels", "algorithms.channels"),
        ("calibration method", "collectors"),
        ("target", "targets"),
    ):
        yield kind, lambda folder=folder: _files(folder)  # type: ignore[misc]
    yield "rule of the doctor", _rules
    yield "exit code", _exits


def _schemes() -> dict[str, str]:
    from onnxq.schemes import SCHEMES

    return {word: scheme.meaning for word, scheme in SCHEMES.items()}


def _files(folder: str) -> dict[str, str]:
    """The words of a folder of which each file is one, with the first paragraphs of its docstrings."""
    package = importlib.import_module(f"onnxq.{folder}")
    words = getattr(package, "WORDS", None) or package.names()
    found = {}
    for word in words:
        module = importlib.import_module(f"onnxq.{folder}.{word.replace('-', '_')}")
        text = inspect.getdoc(module) or ""
        found[word] = re.sub(r"\s+", " ", text.split("\n\n")[0])
    return found


def _rules() -> dict[str, str]:
    from onnxq.doctor.rule import rules

    return {
        rule.word: f"{rule.severity.name.lower()}: {rule.what}; {rule.why}; to mend it: {rule.fix}" for rule in rules()
    }


def _exits() -> dict[str, str]:
    """What the process ends with, as the comments beside `errors.Exit` say."""
    lines = re.findall(r"^ +([A-Z, ]+) = ([\d, ]+)(?:  # (.*))?$", inspect.getsource(Exit), re.MULTILINE)
    rows = [(names.split(", "), numbers.split(", "), meaning) for names, numbers, meaning in lines]
    return {
        f"exit {number}": f"{name.lower()}: {meaning}" if meaning else name.lower()
        for names, numbers, meaning in rows
        for name, number in zip(names, numbers, strict=True)
    }


def _advice(reason: str) -> Iterator[str]:
    """What would change a reason why a node is not quantized."""
    from onnxq.report.reasons import NOTHING, advice_for

    advice = advice_for(reason)
    if advice != NOTHING:
        yield f"what would change it: {advice}"
