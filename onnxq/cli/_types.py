"""What the words of some options mean: sizes, intervals, parts of the data."""

from __future__ import annotations

import math
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import click

from onnxq.calibration.resume import Every
from onnxq.checking.layers.floor import BY_LAYER, parse_floors
from onnxq.errors import BadData, BadRecipe
from onnxq.files import mirror, storage
from onnxq.output.data_writer import LAYER

_NUMBER = r"(\d{1,18}(?:\.\d{0,18})?)"


#: Options for what is read where there is something, and written where there is nothing.
BOTH = {"ranges", "evidence"}


class _Word(click.ParamType):
    """A word with a meaning of its own; what has none is told in a sentence, as all that is wrong with a recipe."""

    #: How a wrong one is called, and a right one.
    what, example = "", ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = self.meaning(value) if isinstance(value, str) else value
        if found is None:
            option = f"{param.opts[0]}: " if param is not None else ""
            raise BadRecipe(f"{option}invalid {self.what} '{value}'; {self.example}")
        return found

    def meaning(self, text: str) -> Any:
        """None: it has none."""
        raise NotImplementedError


class Place(click.Path):
    """A path, or an address of a store (`s3://…`, `https://…`), which gets a path on this machine.

    Args:
        written: names of options for what is written.
    """

    def __init__(self, written: Container[str] = ()) -> None:
        super().__init__(path_type=Path)
        self._written = written

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not storage.is_url(value):
            if not str(value):  # which would be the working folder
                self.fail("is empty, where a path is expected", param, ctx)
            if "\0" in str(value):  # which the system asks nobody for
                self.fail(f"{str(value)!r} has a NUL in its name, which no file has", param, ctx)
            return super().convert(value, param, ctx)
        name = "" if param is None else param.name or ""
        if name in self._written and not (name in BOTH and storage.exists(value)):
            return mirror.destination(value)
        return mirror.local(value)


class Samples(click.ParamType):
    """What `--data` takes: a word, or an address of a store."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return str(mirror.local(value, BadData)) if storage.is_url(value) else value


class Real(click.FloatRange):
    """A number within bounds: click's own type takes one that is none ('nan') for within them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


class Size(_Word):
    """Bytes: 200MB, 1.5 GiB or 4000000."""

    name = "bytes"
    what, example = "size", "example: 200MB"

    def meaning(self, text: str) -> int | None:
        match = re.fullmatch(_NUMBER + r" *([KMGT]?)(I?)B?", text.strip().upper())
        if match is None:
            return None
        number, unit, is_binary = match.groups()
        return int(float(number) * (1024 if is_binary else 1000) ** " KMGT".index(unit or " "))


class Share(_Word):
    """A number, or one of a hundred: 0.005, 0.5%."""

    name = "float"
    what, example = "number", "examples: 0.005, 0.5%"

    def meaning(self, text: str) -> float | None:
        number, is_share = text.strip().removesuffix("%"), text.strip().endswith("%")
        try:
            return float(number) / (100 if is_share else 1)
        except ValueError:
            return None


class ShardSize(Size):
    """Bytes of a file of data, or `layer`: a file for each."""

    name = "bytes|layer"
    what, example = "size", f"examples: 2GB, {LAYER}"

    def meaning(self, text: str) -> Any:
        return LAYER if text.strip().lower() == LAYER else super().meaning(text)


class Interval(_Word):
    """A number of samples, or of seconds: 100, 60s."""

    name = "samples"
    what, example = "interval", "examples: 100 (samples), 60s (seconds)"

    def meaning(self, text: str) -> Every | None:
        match = re.fullmatch(_NUMBER + "(s?)", text.strip())
        if match is None or (not match[2] and not text.strip().isdigit()) or float(match[1]) <= 0:
            return None
        return Every(seconds=float(match[1])) if match[2] else Every(int(match[1]), None)


class Shard(_Word):
    """One of several parts of the samples: (2, 4) is the second of four."""

    name = "i/n"
    what, example = "part", "example: 2/4, the second of four"

    def meaning(self, text: str) -> tuple[int, int] | None:
        match = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            return None
        return int(match[1]), int(match[2])


class Floors(_Word):
    """The least that figures of a comparison may be: sqnr=30,cosine=0.99."""

    name = "word=number"
    what, example = "floor", f"example: sqnr=30; words: {', '.join(BY_LAYER)}"

    def meaning(self, text: str) -> dict[str, float] | None:
        return parse_floors(text)
