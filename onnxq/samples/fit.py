"""Arrays as samples for a model: sets of them cut into samples, each checked against the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.formats.kinds import arguments
from onnxq.runtime.own_functions import shown
from onnxq.runtime.session import Feed, Input

#: Reads one sample.
Read = Callable[[], Feed]


#: Samples of one set of arrays: more are no data to calibrate with, but a header that speaks of endless nothing.
MOST_SAMPLES = 1 << 24


class Label(Input):
    """What samples hold besides the model's inputs: an array of any form, of which each sample has a part."""


@dataclass(frozen=True)
class Cut(Sequence[Feed]):
    """What a set of arrays holds, cut when it is asked for.

    Attributes:
        number: of samples.
        steps: rows of each array that a sample has; None: one, which is a number. Empty: all is one sample.
    """

    arrays: Mapping[str, NDArray]
    number: int
    steps: Mapping[str, int | None]

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, i: int) -> Feed:  # type: ignore[override]
        if not 0 <= i < self.number:
            raise IndexError(i)
        return {name: _piece(x, i, self.steps[name]) if self.steps else x for name, x in self.arrays.items()}


def cut(arrays: Mapping[str, NDArray], inputs: tuple[Input, ...], where: str) -> Cut:
    """The samples that a set of arrays holds.

    Arrays with one rank more than their input count samples along the first axis. Others are cut along axis 0 into
    pieces of the input's own size there, 1 if that is free. Where these counts disagree (an input whose first axis
    is not the batch), the set is one sample.

    Raises:
        BadData: a rank that does not fit, an axis 0 that does not divide into pieces of the input's size, or no end of
            samples.
    """
    by_name = {i.name: i for i in inputs}
    _check_names(arrays, by_name, where)
    counts: dict[str, int] = {}
    steps: dict[str, int | None] = {}  # None: the first axis counts samples
    for name, x in arrays.items():
        shape = by_name[name].shape
        if isinstance(by_name[name], Label):
            continue
        rank = x.ndim if shape is None else len(shape)
        if x.ndim not in (rank, rank + 1):
            raise BadData(
                f"{where}: '{name}' has shape {list(x.shape)}, the model expects {shape_words(shape)}, "
                "or one axis more that counts samples"
            )
        if x.ndim == rank + 1:
            steps[name], counts[name] = None, x.shape[0]
            continue
        first = shape[0] if shape else None
        step = first if isinstance(first, int) and first > 0 else 1
        steps[name], counts[name] = step, x.shape[0] // step if rank else 1
        if rank and x.shape[0] % step:
            raise BadData(
                f"{where}: '{name}' has shape {list(x.shape)}, the model expects {shape_words(shape)}: "
                f"{x.shape[0]} is not a multiple of {step}"
            )
    counts, steps = _with_labels(arrays, by_name, counts, steps, where)
    if len(set(counts.values())) > 1:
        if None in steps.values():
            sizes = ", ".join(f"'{name}' {n}" for name, n in counts.items())
            raise BadData(f"{where}: the arrays hold different numbers of samples: {sizes}")
        return Cut(arrays, 1, {})
    count = next(iter(counts.values()), 0)
    if count > MOST_SAMPLES:
        raise BadData(f"{where} holds {count} samples; give {MOST_SAMPLES} at most")
    return Cut(arrays, count, steps)


def _with_labels(
    arrays: Mapping[str, NDArray],
    by_name: Mapping[str, Input],
    counts: dict[str, int],
    steps: dict[str, int | None],
    where: str,
) -> tuple[dict[str, int], dict[str, int | None]]:
    """`counts` and `steps` of labels too: one for each sample, or for each piece of what samples are cut from.

    Raises:
        BadData: there are more or fewer.
    """
    for name in (name for name in arrays if isinstance(by_name[name], Label)):
        x, samples = arrays[name], next(iter(counts.values()), 0)
        if len(set(counts.values())) > 1:
            continue  # all is one sample
        step = next((step for step in steps.values() if step), None) or 1
        if x.ndim == 0 or len(x) not in (samples, samples * step):
            found = "one number" if x.ndim == 0 else f"{len(x)}"
            raise BadData(f"{where}: the labels '{name}' are {found} for {samples} samples; each needs its own")
        counts, steps = counts | {name: samples}, steps | {name: None if len(x) == samples else step}
    return counts, steps


def _piece(x: NDArray, i: int, step: int | None) -> NDArray:
    if step is None:
        return x[i, ...]  # an array also of what has one axis
    return x[i * step : (i + 1) * step] if x.ndim else x


def fit(sample: Mapping[str, NDArray], inputs: tuple[Input, ...], where: str) -> Feed:
    """`sample` as the model takes it: every name there, shapes legal, numbers of the right kind."""
    by_name = {i.name: i for i in inputs}
    _check_names(sample, by_name, where)
    feed: Feed = {}
    for name, i in by_name.items():
        x = array_of(sample[name], f"{where}: '{name}'")
        if isinstance(i, Label):
            feed[name] = x
            continue
        legal = i.shape is None or (
            len(x.shape) == len(i.shape)
            and all(
                not isinstance(want, int) or want < 0 or want == got for want, got in zip(i.shape, x.shape, strict=True)
            )
        )
        if not legal:
            raise BadData(f"{where}: '{name}' has shape {list(x.shape)}, the model expects {shape_words(i.shape)}")
        feed[name] = _converted(x, i.dtype, f"{where}: '{name}'")
    return feed


#: Kinds of numbers that convert to each kind without losing what they mean.
_KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "biu"}


def array_of(x: object, what: str) -> NDArray:
    """`x` as an array.

    Raises:
        BadData: elements are masked: what stands in their places means nothing.
    """
    if arguments.is_masked(x):
        raise BadData(f"{what} has masked elements; fill them with what the model takes for a missing value")
    return np.asarray(arguments.untracked(x))


def _converted(x: NDArray, dtype: np.dtype, what: str) -> NDArray:
    """`x` as `dtype`: of a kind that converts, no number beyond what `dtype` holds. NaN may mean a missing value."""
    if _kind(dtype) == "O" and x.dtype.kind in "OUS":
        return _texts(x, what)
    if x.dtype != dtype and _kind(x.dtype) not in _KINDS.get(_kind(dtype), ""):
        is_text = x.dtype.kind != "O" or all(isinstance(word, str) for word in x.flat)
        raise BadData(f"{what} has type {_name(x.dtype) if is_text else 'objects'}, the model expects {_name(dtype)}")
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore"):
        converted = x.astype(dtype)
    lost = np.isinf(converted) & np.isfinite(x) if _kind(dtype) == "f" else converted != x
    if lost.any():
        at = [int(i) for i in np.argwhere(lost)[0]]
        raise BadData(f"{what} holds {x[tuple(at)]} at {at}, which does not fit {dtype}")
    return converted


def _texts(x: NDArray, what: str) -> NDArray[np.object_]:
    """Texts as onnxruntime takes them. Bytes, of which it would make texts like "b'…'", are UTF-8, as ONNX has it.

    Raises:
        BadData: something is neither, or bytes are not of UTF-8.
    """
    found = np.empty(x.shape, object)
    for i, each in enumerate(x.flat):
        try:
            found.flat[i] = each.decode("utf-8") if isinstance(each, bytes) else each
        except UnicodeDecodeError:
            raise BadData(f"{what} holds bytes that are not text in UTF-8: {each[:40]!r}") from None
        if not isinstance(found.flat[i], str):
            at = [int(j) for j in np.unravel_index(i, x.shape)]
            raise BadData(f"{what} holds {shown(each)} at {at}, the model expects text")
    return found


def _kind(dtype: np.dtype) -> str:
    """numpy's letter for a kind of numbers, with bfloat16 among the floats."""
    return "f" if dtype == ml_dtypes.bfloat16 else dtype.kind


def _name(dtype: np.dtype) -> str:
    return "text" if dtype.kind in "OUS" else str(dtype)


def _check_names(arrays: Mapping[str, NDArray], by_name: Mapping[str, Input], where: str) -> None:
    missing = [name for name in by_name if name not in arrays]
    unknown = [name for name in arrays if name not in by_name]
    if missing or unknown:
        labels = [name for name in missing if isinstance(by_name[name], Label)]
        if labels:
            found = ", ".join(name for name in arrays if name in unknown) or "none besides the inputs"
            raise BadData(f"{where}: the samples have no labels '{labels[0]}'; arrays that are no inputs: {found}")
        wrong = f"lack {', '.join(missing)}" if missing else f"have {', '.join(unknown)}, which is no input"
        hint = "" if missing else "; labels are named by --labels"
        raise BadData(f"{where}: the samples {wrong}; the model's inputs are {', '.join(by_name)}{hint}")


def shape_words(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "any shape"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
