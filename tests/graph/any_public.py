"""Any call of every public function of the library half, whatever its parameters: run by test_arguments.py.

What a parameter may be is told by its name. A call answers, or says in one sentence what is wrong with it: it never
ends the process, and never fails in a way that would be a bug. What it answers has the shape that is promised.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from any_call import WORDS, answer, arrays, axes, blocks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxq import algorithms, analysis, collectors, fake_quant, formats, layouts
from onnxq.analysis import synthetic, theory
from onnxq.fake_quant import AffineGrid, OffsetGrid
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.layouts import Layout
from onnxq.model.weights import Role
from onnxq.summaries.histogram import Histogram
from onnxq.summaries.ranges import Grid

#: Functions of models and files, and makers of layouts out of functions.
ELSEWHERE = {"analyze_model", "run_benchmark", "layout", "save_plot"}
numbers = st.sampled_from([0, 1, -1, 0.5, 2.0, 1e-3, 1e30, -1e300, float("nan"), float("inf"), 3, 1000])
sizes = st.sampled_from([0, 1, 2, 3, 5, 16, 31, 32, 33, 64, 96, -1, -7])
shapes = st.lists(sizes, max_size=3).map(tuple)
FLOATS = arrays()


@st.composite
def granularities(draw: st.DrawFn) -> Granularity:
    axis = draw(axes)
    return Granularity(
        axis, draw(st.none() | st.sampled_from([1, 2, 16, 32, 64, 1 << 40])) if axis is not None else None
    )


@st.composite
def weights(draw: st.DrawFn) -> QuantizedTensor:
    """Of any format and granularity that can be."""
    shape = draw(st.sampled_from([(2, 64), (3, 33), (1, 96), (16, 32), (5,), (64,), (0, 32), (2, 3, 32), (), (32, 0)]))
    w = np.random.default_rng(draw(st.integers(0, 3))).standard_normal(shape)
    made = answer(lambda: formats.quantize(w, draw(st.sampled_from(WORDS)), draw(st.none() | granularities())))
    return made if made is not None else formats.quantize(w, "int8", Granularity())


@st.composite
def grids(draw: st.DrawFn) -> AffineGrid:
    options = {"symmetric": draw(st.booleans()), "widen": draw(st.booleans()), "powers_of_two": draw(st.booleans())}
    axis = draw(axes)
    block = draw(blocks) if axis is not None else None
    made = answer(lambda: fake_quant.fit(draw(FLOATS), draw(st.integers(2, 16)), axis=axis, block=block, **options))
    return made if made is not None else fake_quant.grid_over(-1, 1)


@st.composite
def offset_grids(draw: st.DrawFn) -> OffsetGrid:
    axis = draw(axes)
    block = draw(blocks) if axis is not None else None
    made = answer(lambda: fake_quant.fit_offset(draw(FLOATS), draw(st.integers(2, 16)), axis=axis, block=block))
    return made if made is not None else fake_quant.offset_grid_over(-1, 1)


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    found = dict(layouts.compact(draw(weights())))
    for name in list(found):
        change = draw(st.sampled_from(["keep", "keep", "cut", "drop", "other"]))
        if change == "drop":
            del found[name]
        elif change != "keep":
            found[name] = np.atleast_1d(found[name])[:-1] if change == "cut" else draw(raw)
    return found


raw = st.tuples(shapes.filter(lambda s: all(n >= 0 for n in s)), st.sampled_from([np.uint8, np.int8, np.float16])).map(
    lambda pair: np.zeros(*pair)
)
stats = FLOATS.map(lambda x: answer(lambda: analysis.error_stats(x, x)) or analysis.error_stats([1.0], [0.5]))
points = st.lists(st.tuples(numbers, stats).map(lambda pair: analysis.ScalePoint(*pair)), max_size=3)
layouts_of = st.sampled_from([value for value in vars(layouts).values() if isinstance(value, Layout)])
words = st.sampled_from([*WORDS, "", "int5", "uniform99", "é"])
#: By the name of a parameter.
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("w", "x", "wanted", "got", "gradient", "step", "arrays", "codes"), FLOATS),
    **dict.fromkeys(("low", "high"), numbers | FLOATS),
    **dict.fromkeys(
        ("absmax", "scales", "zero_points", "packed", "weight", "weight_4bit", "scales_4bit", "array", "tiles"), raw
    ),
    **dict.fromkeys(("rows", "parameter"), raw),
    "groups": raw,
    "parts": parts(),
    "q": weights(),
    "of": layouts_of,
    "format": st.sampled_from(WORDS).map(formats.get),
    "granularity": granularities(),
    "word": words,
    "words": st.lists(words, max_size=2),
    "among": st.lists(st.sampled_from(WORDS), max_size=2),
    "wanted_granularities": st.lists(st.sampled_from(["tensor", "channel", "block32", "row"]), max_size=2),
    "name": st.sampled_from(["w", "", *collectors.names(), "percentile:99", "percentile:1", "x:y"]),
    "algorithm": st.sampled_from([*algorithms.DATA_FREE, "best"]),
    "op_type": st.sampled_from(["MatMul", "Conv", ""]),
    "bits": st.integers(-1, 20),
    "q_bits": st.integers(1, 16),
    "float_bits": st.integers(-1, 64),
    "qmax": st.integers(-2, 300),
    "levels": st.integers(-1, 20),
    "axis": axes,
    "group": st.none() | st.integers(-1, 40),
    "k_axis": st.integers(0, 1),
    "start": st.just(0),
    "block": blocks,
    "shape": shapes,
    "rank": st.integers(0, 4),
    **dict.fromkeys(("size", "n", "k", "count", "directions", "gates"), sizes),
    **dict.fromkeys(
        ("symmetric", "signed", "has_data", "widen", "powers_of_two", "rounding", "higher_is_better", "thorough"),
        st.booleans(),
    ),
    **dict.fromkeys(("threshold", "percent", "slack", "in_float", "quantized", "scale", "sqnr"), numbers),
    "factors": st.none() | st.lists(numbers, max_size=2),
    "seed": st.integers(0, 3),
    "role": st.builds(Role, st.just(0), st.integers(0, 2), st.integers(0, 2)),
    "stats": stats,
    "points": points,
    "found": st.dictionaries(words, stats, max_size=2),
    "made": st.lists(
        st.sampled_from(["gaussian", "outliers rate=0.5", "low_rank rank=2", "", "uniform a=1"]), max_size=1
    ),
    "sizes": st.lists(st.tuples(sizes, sizes), max_size=1),
    "seeds": st.lists(st.integers(0, 3), max_size=1),
    "inputs": st.sampled_from([0, 1, 20]),
    "text": st.sampled_from(["gaussian", "outliers rate=0.1", "low_rank rank=0", "", "a=b", "gaussian mean=é"]),
    "error": st.just(formats.BadModel("it does not fit")),
    "data": raw,
    "flip": st.integers(0, 255),
    **dict.fromkeys(("mean", "deviation", "decades", "rate", "noise", "correlation"), st.sampled_from([0.0, 0.5, 1.0])),
    "dtype": st.sampled_from([np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.uint16)]),
}
#: Where a name means something else.
SPECIAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    **{key: {"wanted": ARGUMENTS["wanted_granularities"]} for key in ("benchmark_arrays",)},
    "benchmark_made": {
        "wanted": ARGUMENTS["wanted_granularities"],
        "sizes": st.lists(st.tuples(sizes, sizes), min_size=1, max_size=1),
        "words": st.just(["int4", "nf4"]) | ARGUMENTS["words"],
    },
    "leads": {"among": st.just(["int4"]) | st.just(["int5"])},
    "compare_granularities": {"format": words, "words": ARGUMENTS["wanted_granularities"]},
    **{key: {"format": words} for key in ("tensor_error", "scale_sweep", "outlier_impact")},
    "compression_ratio": {"of": weights() | stats},
    **{
        key: {"grid": grids()}
        for key in ("forward", "inside", "backward", "backward_lsq", "from_codes", "gradient_factor")
    },
    "codes": {"grid": grids()},
    **{key: {"levels": st.none() | FLOATS} for key in ("get", "quantize", "nearest")},
    "values": {"levels": st.none() | FLOATS, "codes": FLOATS | raw},
    "blocks_last": {"codes": raw},
    **{key: {"axis": st.just(0)} for key in ("as_float32", "encode")},
    **{key: {"block": st.sampled_from([0, -1, 16, 32, 33])} for key in ("from_onnxq_tiles", "from_matmul_bnb4")},
    **{key: {"grid": offset_grids()} for key in ("forward_offset", "backward_offset")},
    "from_codes": {"grid": grids(), "codes": FLOATS | raw},
    "moved_axes": {"w": weights().map(lambda q: layouts.Outline(q.format, q.granularity, q.shape, None))},
    **{key: {"codes": raw} for key in ("low_first", "high_first", "pack_codes", "nibbles_low_first")},
    **{key: {"format": ARGUMENTS["format"]} for key in ("nbytes", "gguf_nbytes")},
}
MATRICES = st.tuples(sizes, sizes)
for _maker in synthetic.MAKERS:
    SPECIAL[_maker] = {"shape": MATRICES, "rank": st.integers(1, 4), "low": st.just(0.5), "high": st.just(2.0)}
#: What is promised of an answer: whether it holds, given the arguments.
PROMISES: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    **dict.fromkeys(("forward", "codes", "inside"), lambda y, a: y.shape == np.shape(a["x"])),
    "forward_offset": lambda y, a: y.shape == np.shape(a["x"]),
    "from_codes": lambda y, a: y.shape == np.shape(a["codes"]),
    "backward": lambda y, a: y.shape == np.shape(a["x"]),
    "backward_lsq": lambda y, a: y[0].shape == np.shape(a["x"]) and y[1].shape == a["grid"].scale.shape,
    "backward_offset": lambda y, a: [t.shape for t in y] == [np.shape(a["x"]), *[a["grid"].scale.shape] * 2],
    "backward_range": lambda y, a: y[0].shape == np.shape(a["x"]) and y[1].shape == y[2].shape,
    "quantize": lambda q, a: q.codes.shape == np.shape(a["w"]) == q.dequantize().shape,
    "outlier_rate": lambda y, a: 0 <= y <= 1,
    "quality_score": lambda y, a: 0 <= y <= 100,
    "compare_bit_widths": lambda y, a: all(stats.count == np.size(a["w"]) for stats in y.values()),
    "compare_formats": lambda y, a: all(stats.count == np.size(a["w"]) for stats in y.values()),
    "tensor_error": lambda y, a: y.count == np.size(a["w"]),
    "from_compact": lambda q, a: q.shape == tuple(a["shape"]),
    "from_gguf": lambda q, a: q.shape == tuple(a["shape"]),
    "unpack_codes": lambda y, a: y.shape == tuple(a["shape"]),
    "from_matmul_bnb4": lambda q, a: q.shape == (a["size"],),
    "from_onnxq_tiles": lambda q, a: q.shape == (a["n"], a["k"]),
    "grid_of": lambda grid, a: fake_quant.from_codes(a["q"].codes, grid).shape == a["q"].shape,
    **{name: lambda y, a: y.shape == tuple(a["shape"]) for name in synthetic.MAKERS},
}


def functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for module in (formats, layouts, algorithms, analysis, fake_quant, collectors, theory, synthetic):
        listed = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in listed:
            made = getattr(module, name)
            own = getattr(made, "__module__", "") or ""
            if name in ELSEWHERE or not own.startswith("onnxq.") or inspect.isclass(made):
                continue
            if (inspect.isfunction(made) or isinstance(made, Layout) or hasattr(made, "cache_info")) and (
                hasattr(module, "__all__") or own == module.__name__
            ):
                found[f"{module.__name__}.{name}"] = made
    return found


def arguments_of(name: str, function: Callable[..., Any]) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each parameter; those with a default are left out now and then."""
    short, found = name.rpartition(".")[2], {}
    known = {**ARGUMENTS, **SPECIAL.get(short, {})}
    parameters = inspect.signature(getattr(function, "pack", function)).parameters
    for each in parameters.values():
        if each.name == "progress":
            continue
        found[each.name] = known[each.name]
        if each.default is not inspect.Parameter.empty and each.name not in SPECIAL.get(short, {}):
            found[each.name] = st.just(each.default) | known[each.name]
    return found


def check(name: str, function: Callable[..., Any], examples: int) -> None:
    short = name.rpartition(".")[2]

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries(arguments_of(name, function)))
    def any_call(given: dict[str, Any]) -> None:
        kinds = inspect.signature(getattr(function, "pack", function)).parameters
        named = {key: x for key, x in given.items() if kinds[key].kind is not inspect.Parameter.POSITIONAL_ONLY}
        made = (
            answer(lambda: function(*(x for key, x in given.items() if key not in named), **named))
            if not isinstance(function, Layout)
            else answer(lambda: function(given["q"]))
        )
        if made is None:
            return
        if isinstance(made, QuantizedTensor) and made.scales is not None:
            assert made.scales.shape == made.granularity.scale_shape(made.shape)
        if short in PROMISES and not isinstance(function, Layout):
            assert PROMISES[short](made, given), (name, given, made)

    any_call()


def observers(examples: int) -> None:
    """Collectors and observers: any batches in, a range or nothing out."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from([*collectors.names(), "percentile:99.9"]),
        st.lists(FLOATS, max_size=3),
        axes,
        st.integers(2, 16),
        st.booleans(),
    )
    def any_batches(name: str, batches: list[Any], axis: int | None, bits: int, symmetric: bool) -> None:
        observer = fake_quant.Observer(name, bits, symmetric=symmetric, axis=axis)
        for batch in batches:
            answer(lambda batch=batch: observer.update(batch))
        grid = answer(observer.grid)
        assert grid is None or (grid.scale.ndim == (axis is not None) and np.isfinite(grid.scale).all())
        assert observer.low.shape == observer.high.shape
        collector = collectors.get(name)()
        for batch in batches:
            if isinstance(batch, np.ndarray) and batch.dtype.kind == "f":
                answer(lambda batch=batch: collector.update(batch))
        found = answer(lambda: collector.range(Grid(2**bits - 1, symmetric)))
        assert found is None or (np.isfinite([found.low, found.high]).all() and found.low <= found.high)
        assert collector.summary.histogram is None or isinstance(collector.summary.histogram, Histogram)

    any_batches()


if __name__ == "__main__":
    warnings.simplefilter("error")
    np.seterr(all="ignore")
    wanted = sys.argv[2:]
    for name, function in functions().items():
        if not wanted or any(word in name for word in wanted):
            check(name, function, int(sys.argv[1]))
            print(name, "passed", flush=True)
    if not wanted:
        observers(int(sys.argv[1]))
        print("observers passed")
