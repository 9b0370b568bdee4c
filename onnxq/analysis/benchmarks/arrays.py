"""What each format keeps of arrays: given ones, or ones made up of any kind, size and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq import formats
from onnxq.analysis import granularities, synthetic
from onnxq.analysis.benchmarks.results import Benchmark, Degradation, ranked
from onnxq.analysis.layers import Form, forms_for
from onnxq.analysis.statistics import ErrorSums, retention
from onnxq.analysis.synthetic import Made
from onnxq.analysis.trial import Decisions
from onnxq.errors import NothingToDo, OnnxqError
from onnxq.formats import FloatArray, Granularity
from onnxq.formats.kinds import arguments
from onnxq.model.weights import Role
from onnxq.progress import QUIET, Progress

#: Gaussian inputs that are classified, and outputs that are looked at in all.
INPUTS, MOST_OUTPUTS = 2048, 1 << 24
#: What the arrays are together, where there are several.
ALL = "all arrays"


def benchmark_arrays(
    arrays: ArrayLike | Mapping[str, ArrayLike],
    words: Sequence[str] = (),
    wanted: Sequence[str] = (),
    *,
    inputs: int = INPUTS,
    seed: int = 0,
    progress: Progress = QUIET,
) -> Benchmark:
    """What each format keeps of an array, or of several by name and all together.

    Two figures need a use of the weights: an array of two or more dimensions is taken for a linear layer whose inputs
    lie along its last axis, which classifies Gaussian inputs.

    Args:
        arrays: of any shape and floating-point type, or nested lists of numbers; a channel is an index of the first
            axis (a vector has one), a block lies along the last.
        words, wanted: formats and granularities, as `layers.forms_for` takes them.
        inputs: how many are classified at most; 0: none.
        seed: of the inputs.

    Returns:
        A table for each array, by its name (`array` for one), and one of all.

    Raises:
        BadRecipe: an unknown word.
        NothingToDo: there are no arrays.
        ValueError: an array is none of real numbers. That it is not finite is said in its table.
    """
    given = arrays if isinstance(arrays, Mapping) else {"array": arrays}
    forms = forms_for(words, wanted)
    if not given:
        raise NothingToDo("there are no arrays to encode")
    tables, sums = {}, {form: ErrorSums() for form in forms}
    for name, array in given.items():
        progress.start(name, len(forms))
        tables[name] = table_of(arguments.numbers(array, f"array '{name}'"), forms, inputs, seed, sums, progress)
    if len(tables) > 1:
        broken = {row.form for rows in tables.values() for row in rows if row.problem}
        tables[ALL] = ranked([Degradation(form, sums[form].stats()) for form in forms if form not in broken])
    return Benchmark(tables)


def benchmark_made(
    made: Sequence[Made | str],
    words: Sequence[str] = (),
    wanted: Sequence[str] = (),
    *,
    sizes: Sequence[tuple[int, int]] = ((256, 1024),),
    seeds: Sequence[int] = (0,),
    inputs: int = INPUTS,
    progress: Progress = QUIET,
) -> Benchmark:
    """What each format keeps of weights made up for it.

    Args:
        made: makers with their parameters, or words for them (`outliers rate=0.01`).
        words, wanted: formats and granularities, as `layers.forms_for` takes them.
        sizes: (outputs, inputs) of each weight.
        seeds: each makes other weights.

    Returns:
        A table for each maker, size and seed; the name says of those what differs.

    Raises:
        BadRecipe: an unknown word, or a size that is too large.
        NothingToDo: nothing is to be made.
    """
    forms, tables = forms_for(words, wanted), {}
    for each in [synthetic.parse(kind) if isinstance(kind, str) else kind for kind in made]:
        for size in sizes:
            for seed in seeds:
                parts = [each.label, f"{size[0]}×{size[1]}" * (len(sizes) > 1), f"seed {seed}" * (len(seeds) > 1)]
                name = " ".join(part for part in parts if part)
                progress.start(f"{name} weights", len(forms))
                tables[name] = table_of(each.weights(size, seed), forms, inputs, seed, None, progress)
    if not tables:
        raise NothingToDo("no weights are to be made up")
    return Benchmark(tables)


def table_of(
    array: NDArray,
    forms: Sequence[Form],
    inputs: int,
    seed: int,
    sums: Mapping[Form, ErrorSums] | None = None,
    progress: Progress = QUIET,
) -> tuple[Degradation, ...]:
    """The figures of one array in each form, best SQNR first.

    Args:
        sums: where the errors are added up, too.
    """
    x = y = None
    if array.ndim > 1 and array.size and inputs and np.isfinite(array.astype(np.float64)).all():
        matrix = array.reshape(-1, array.shape[-1]).astype(np.float32)
        count = max(1, min(inputs, MOST_OUTPUTS // len(matrix)))
        x = np.random.default_rng(seed + 1).standard_normal((count, matrix.shape[1]), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            y = x @ matrix.T
        y = y if np.isfinite(y).all() else None  # of numbers near the end of float32
    rows = []
    for form in forms:
        rows.append(_degradation(form, array, x, y, None if sums is None else sums[form]))
        progress.advance(1)
    return ranked(rows)


def _degradation(
    form: Form, array: NDArray, x: FloatArray | None, y: FloatArray | None, sums: ErrorSums | None
) -> Degradation:
    format = formats.get(form.format)
    try:
        w = formats.as_float32(array, "w")
        q = formats.encode(format, w, _granularity(form, w.ndim), "w")
    except OnnxqError as error:
        return Degradation(form, None, problem=str(error))
    weights = ErrorSums()
    weights.add_quantized(w, q)
    if sums is not None:
        sums.merge(weights)
    if x is None or y is None:
        return Degradation(form, weights.stats())
    with np.errstate(over="ignore", invalid="ignore"):
        got = x @ q.dequantize().reshape(y.shape[1], -1).T
    if not np.isfinite(got).all():
        return Degradation(form, weights.stats())
    outputs, same = ErrorSums(), Decisions()
    outputs.add(y, got)
    same.add(y, got)
    share = None if math.isnan(same.share) else retention(1.0, same.share)
    return Degradation(form, weights.stats(), share, outputs.stats().sqnr)


def _granularity(form: Form, rank: int) -> Granularity:
    """Of a vector a channel is the whole, and a number has no axis."""
    if form.granularity is None or rank == 0 or (rank == 1 and form.granularity == "channel"):
        return Granularity()
    return granularities.parse(form.granularity, Role(0, channel=0, contraction=rank - 1))
