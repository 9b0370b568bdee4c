"""Inputs made up: legal for the model, the same each time, and none where no guess makes it run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq.errors import BadModel
from onnxq.runtime import Feed, Input
from onnxq.synthesize import synthesize

F32, I64, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)
Shape = tuple[int | str | None, ...]


class Picky:
    """A session that runs only what it accepts, and counts how often it was asked."""

    def __init__(self, *inputs: Input, accepts: Callable[[Feed], bool] = lambda feed: True) -> None:
        self.inputs, self.accepts, self.runs = inputs, accepts, 0

    def run(self, feed: Feed) -> list[NDArray]:
        self.runs += 1
        if not self.accepts(feed):
            raise BadModel("onnxruntime cannot run the model: no")
        return []


def model_of(body: str, constants: Mapping[str, NDArray] | None = None) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> {body}')
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


NOTHING = model_of("g () => () {}")


def samples(*inputs: Input, accepts: Callable[[Feed], bool] = lambda feed: True, count: int = 1) -> list[Feed]:
    return synthesize(NOTHING, Picky(*inputs, accepts=accepts), count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        pytest.param((2, 3), (2, 3), id="fixed"),
        pytest.param((), (), id="scalar"),
        pytest.param(("batch", 3), (1, 3), id="batch-is-one"),
        pytest.param((None, 3), (1, 3), id="first-unnamed-axis-is-a-batch"),
        pytest.param((-1, "T"), (1, 16), id="minus-one"),
        pytest.param(("N", 3, "H", "W"), (1, 3, 16, 16), id="image"),
        pytest.param(("batch", "past_length"), (1, 0), id="a-cache-is-empty"),
    ],
)
def test_free_dimensions(shape: Shape, wanted: tuple[int, ...]) -> None:
    (sample,) = samples(Input("x", F32, shape))
    assert sample["x"].shape == wanted
    assert sample["x"].dtype == F32


def test_one_symbol_is_one_size_everywhere() -> None:
    a, b = Input("a", F32, ("batch", "T")), Input("b", F32, ("T", "T"))
    (sample,) = samples(a, b, accepts=lambda feed: feed["b"].shape[0] == 64)
    assert (sample["a"].shape, sample["b"].shape) == ((1, 64), (64, 64))


def test_a_total_is_the_past_and_the_present() -> None:
    inputs = Input("x", F32, ("N", "T")), Input("past", F32, ("N", "past")), Input("mask", I64, ("N", "total"))
    (sample,) = samples(*inputs, accepts=lambda feed: feed["past"].shape[1] > 0)
    assert [x.shape[1] for x in sample.values()] == [16, 1, 17]


def test_one_dimension_may_be_for_itself() -> None:
    image = Input("x", F32, ("N", "C", "H", "W"))
    (sample,) = samples(image, accepts=lambda feed: feed["x"].shape == (1, 3, 224, 224))
    assert sample["x"].shape == (1, 3, 224, 224)


def test_guesses_stay_small_where_many_dimensions_are_free() -> None:
    sizes: list[int] = []
    samples(Input("x", F32, ("N", "C", "H", "W")), accepts=lambda feed: sizes.append(feed["x"].size) or False)
    assert 0 < max(sizes) <= 1 << 22


def test_dimensions_that_are_given_may_be_large() -> None:
    (sample,) = samples(Input("x", F32, ("N", 5, 1 << 20)))
    assert sample["x"].shape == (1, 5, 1 << 20)


def test_no_guess_runs() -> None:
    session = Picky(Input("x", F32, ("N", "T")), accepts=lambda feed: False)
    assert synthesize(NOTHING, session, 3) == []  # type: ignore[arg-type]
    assert 1 <= session.runs <= 100


def test_as_many_as_wanted_different_and_the_same_each_time() -> None:
    x = Input("x", F32, (4, 4))
    first, second = samples(x, count=3), samples(x, count=3)
    assert len({sample["x"].tobytes() for sample in first}) == len(first) == 3
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
    other = synthesize(NOTHING, Picky(x), 1, seed=1)[0]  # type: ignore[arg-type]
    assert (other["x"] != first[0]["x"]).any()


def test_what_each_kind_of_input_gets() -> None:
    inputs = [
        Input("x", F32, (50, 40)),
        Input("half", np.dtype(np.float16), (4,)),
        Input("past_key", F32, (2, 3)),
        Input("mask", I64, (2, 5)),
        Input("flag", BOOL, (2,)),
        Input("position_ids", I64, (2, 4)),
        Input("words", np.dtype(object), (2,)),
    ]
    (sample,) = samples(*inputs)
    assert all(sample[i.name].dtype == i.dtype for i in inputs)
    assert abs(sample["x"].mean()) < 0.1 and abs(sample["x"].std() - 1) < 0.1
    assert np.isfinite(sample["half"]).all()
    np.testing.assert_array_equal(sample["past_key"], 0)
    np.testing.assert_array_equal(sample["mask"], 1)
    assert sample["flag"].all()
    np.testing.assert_array_equal(sample["position_ids"], [[0, 1, 2, 3]] * 2)
    assert sample["words"].tolist() == ["text", "text"]


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        pytest.param("y = Gather(table, i)", 7, id="gather"),
        pytest.param("y = Gather<axis = 1>(table, i)", 5, id="gather-axis-1"),
        pytest.param("j = Cast<to = 6>(i)  k = Squeeze(j)  y = Gather(table, k)", 7, id="behind-shapes"),
        pytest.param("a = Gather(table, i)  b = Gather(small, i)  y = Add(a, b)", 3, id="the-smaller-of-two"),
    ],
)
def test_integers_stay_inside_the_table_they_look_up(body: str, rows: int) -> None:
    model = model_of(f"g (int64[N, 200] i) => (y) {{ {body} }}", {"table": np.ones((7, 5)), "small": np.ones((3, 5))})
    (sample,) = synthesize(model, Picky(Input("i", I64, ("N", 200))), 1)  # type: ignore[arg-type]
    assert (sample["i"].min(), sample["i"].max()) == (0, rows - 1)


def test_words_of_an_embedding_layer_and_its_segments() -> None:
    body = "y = com.microsoft.EmbedLayerNormalization(ids, segments, words, places, kinds, gamma, beta)"
    tables = {name: np.ones((rows, 4), np.float32) for name, rows in (("words", 9), ("places", 8), ("kinds", 2))}
    model = model_of(f"g (int64[N, T] ids, int64[N, T] segments, gamma, beta) => (y) {{ {body} }}", tables)
    inputs = [Input(name, I64, ("N", 100)) for name in ("ids", "segments")]
    (sample,) = synthesize(model, Picky(*inputs), 1)  # type: ignore[arg-type]
    assert (sample["ids"].max(), sample["segments"].max()) == (8, 1)


def test_every_guess_is_the_same_for_all_samples() -> None:
    given = samples(Input("x", F32, ("N", "T")), count=4, accepts=lambda feed: feed["x"].shape[1] == 32)
    assert {sample["x"].shape for sample in given} == {(1, 32)}
