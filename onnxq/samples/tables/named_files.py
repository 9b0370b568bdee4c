"""Columns of texts that name files beside the table."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from onnxq.samples.tables.words import words_of

_NAME = re.compile("(image|img|picture|photo|audio|sound|wav|file|path)([ _]?(file|path|name))?", re.IGNORECASE)


def named_files(texts: Sequence[str], suffixes: Collection[str], file: Path) -> list[str]:
    """Those of `texts` that are called like what names files, and whose first cells end as files of this kind do."""
    cells = words_of([name for name in texts if _NAME.fullmatch(name.strip())], file)
    return [n for n, words in cells.items() if words and all(Path(word).suffix.lower() in suffixes for word in words)]
