"""Which samples to use: where they come from, how files become inputs, and how many of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq.boundary import require_types
from onnxq.errors import BadRecipe
from onnxq.samples.labels import label_of, without
from onnxq.samples.reading import How, reading_of
from onnxq.samples.source import Data, DataSource, inputs_of, open_data

#: Samples used at most, unless told otherwise: more hardly change a range.
LIMIT = 256
#: Samples kept out of calibration to measure quality on.
HELD_BACK = 6


@dataclass(frozen=True)
class Sampling:
    """
    Attributes:
        source: files, a folder, `module:function`, or dicts of arrays (`source.open_data`); None: no samples.
        preprocessing: how images, sounds and texts become inputs.
        limit: use at most so many: the first, of tables and lines of JSON evenly spread ones, with a `seed` some at
            random; None: all.
        held_back: samples that calibration does not see, at most a quarter of all.
        labels: the array beside the inputs that holds the right answers; None: there is none.

    Raises:
        BadRecipe: something of another type.
    """

    source: DataSource | None = None
    preprocessing: How = None
    limit: int | None = LIMIT
    seed: int | None = None
    held_back: int = HELD_BACK
    labels: str | None = None

    def __post_init__(self) -> None:
        require_types(Sampling, vars(self))

    @staticmethod
    def of(data: DataSource | Sampling | None, limit: int | None = LIMIT) -> Sampling:
        """`data`; of which at most `limit` samples are used where nothing is said but where they come from."""
        return data if isinstance(data, Sampling) else Sampling(data, limit=limit)

    def open(self, model: ir.Model, path: str | Path) -> Data | None:
        """The samples as inputs of `model`, which was read from `path`; None if there are none.

        Raises:
            BadData, BadRecipe: as `source.open_data`.
        """
        if self.source is None:
            reading_of(self.preprocessing).tell_unused("there are no samples to read: give --data")
            return None
        data = self._opened(model, path)
        return data if self.labels is None else without(data, self.labels)

    def open_labeled(self, model: ir.Model, path: str | Path) -> Data:
        """The same samples, with their labels in them.

        Raises:
            BadData, BadRecipe: as `open`; or there are no samples.
        """
        if self.source is None:
            raise BadRecipe("a metric is measured on samples: give --data")
        return self._opened(model, path)

    def _opened(self, model: ir.Model, path: str | Path) -> Data:
        assert self.source is not None
        inputs = inputs_of(model)
        if self.labels is not None:
            inputs = (*inputs, label_of(model, self.labels, self.source))
        data = open_data(self.source, inputs, self.preprocessing, model=model, path=path)
        return data.limited(self.limit, self.seed)
