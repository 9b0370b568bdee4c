"""What the compiled library measures of a machine by itself: from how many rows on tiles are faster than dot products.

Either way of computing is right; they differ in the last digits, on which a decision may hang. So a machine profile
holds these numbers too, and whoever is given the profile computes as its machine does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from onnxq.runtime import native

#: Formats of products, numbered as `enum Format` in custom_ops/base/format.h does.
FORMATS = ("int4", "int8", "nf4", "fp4", "mxfp4", "bfloat16")
#: Rows of a tile, and words of the numbers for more of them: what a second tile costs that is filled little is measured
#: by itself.
_TILE = 16
_ABOVE = {word: f"{word} above {_TILE}" for word in FORMATS}
#: By word, a format's number and a number of rows.
_ASKED = {word: (i, 2) for i, word in enumerate(FORMATS)} | {
    _ABOVE[word]: (i, _TILE + 1) for i, word in enumerate(FORMATS)
}


def tile_rows() -> dict[str, int]:
    """By format, the least rows of a product that are multiplied in tiles here: up to 16, and above.

    Measured at the first call on a machine. Nothing where no kernel has tiles, or there is no library.
    """
    library = None if native.path() is None else native.library()
    found = {} if library is None else {word: library.onnxq_tile_rows(*asked) for word, asked in _ASKED.items()}
    return {word: rows for word, rows in found.items() if rows > 0}


@contextlib.contextmanager
def taken(rows: Mapping[str, int]) -> Iterator[None]:
    """Until the end, products of this process take these numbers; where there is none, that of this machine.

    Profiles of an earlier version have one number a format: there more rows than a tile has were always in tiles.
    """
    library = None if native.path() is None or not rows else native.library()
    if library is None:
        yield
        return
    given = {_ABOVE[word]: _TILE + 1 for word in FORMATS if word in rows} | dict(rows)
    try:
        for word, asked in _ASKED.items():
            library.onnxq_give_tile_rows(*asked, given.get(word, 0))
        yield
    finally:
        for asked in _ASKED.values():
            library.onnxq_give_tile_rows(*asked, 0)
