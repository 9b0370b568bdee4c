"""What the names of inputs and outputs say."""

from __future__ import annotations

import re

#: Words in which the names of an output and of the input that it becomes may differ.
STEP_WORDS = frozenset(
    {"past", "present", "presents", "new", "next", "updated", "in", "out", "cache", "prev", "last", "n"}
)


def words(name: str) -> list[str]:
    """The words and numbers of a name, in small letters: past_key_values.0.key, inputImage, h_in."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"(past|present)_key_values?", r"\1", name))
    return re.findall(r"[a-z]+|\d+", spaced.lower())


def key(name: str) -> tuple[str, ...]:
    """A name without the words that change from one step to the next."""
    return tuple(word for word in words(name) if word not in STEP_WORDS)


def is_stepped(name: str) -> bool:
    """Whether a name has a word that changes from one step to the next, and others."""
    return key(name) != () and not STEP_WORDS.isdisjoint(words(name))
