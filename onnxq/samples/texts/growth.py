"""How much longer a tokenizer can make a text before it looks for tokens, and how often its template repeats them.

A file of a few kilobytes may replace each letter by a thousand, several times over; the tokenizers library, which does
as it is told, ends the process when memory does.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

#: Characters that one character becomes at most by Unicode's own tables (U+FDFA in NFKC; of the others a few).
_BY_UNICODE = {"NFKC": 18, "NFKD": 18, "NFC": 4, "NFD": 4, "StripAccents": 4, "Lowercase": 3, "BertNormalizer": 12}
#: Bytes of a character in UTF-8, each of which becomes a character.
_BYTES = 4
#: A prefix that is so short counts for nothing.
_SHORT = 16


def growth_of(encoder: Any) -> float:
    """Characters at most that one of a text becomes in the normalizer and the pre-tokenizer of a
    `tokenizers.Tokenizer`."""
    return math.prod(_times(_state(part), _grown) for part in (encoder.normalizer, encoder.pre_tokenizer))


def copies_of(encoder: Any) -> float:
    """How often its post-processor repeats the tokens of a single text at most."""
    return _times(_state(encoder.post_processor), _repeated)


def _state(part: Any) -> Mapping[str, Any]:
    """A part as its file has it."""
    return {} if part is None else json.loads(part.__getstate__())


def _times(part: Mapping[str, Any], each: Callable[[Mapping[str, Any]], float]) -> float:
    """The product over parts that come one after the other."""
    for key in ("normalizers", "pretokenizers", "processors"):
        if key in part:
            return math.prod(_times(inner, each) for inner in part[key])
    return float(max(1, each(part)))


def _grown(step: Mapping[str, Any]) -> float:
    kind = step.get("type")
    if kind == "Replace":
        content, found = step["content"], step["pattern"].get("String")
        return len(content) / len(found) if found else 1 + len(content)  # an expression may find nothing, everywhere
    if kind == "Prepend":
        return len(step["prepend"]) if len(step["prepend"]) > _SHORT else 1
    if kind == "Precompiled":
        return _longest(step["precompiled_charsmap"])
    return _BYTES if kind == "ByteLevel" else _BY_UNICODE.get(str(kind), 1)


def _longest(charsmap: str) -> int:
    """Of the texts that a table of SentencePiece puts in the place of others, behind the index that finds them."""
    try:
        raw = base64.b64decode(charsmap)
    except binascii.Error:
        return 1
    return max(map(len, raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")))


def _repeated(processor: Mapping[str, Any]) -> float:
    return sum("Sequence" in piece for piece in processor.get("single", ()))
