"""Inputs made up: legal for the model, of many kinds, the same each time, and none where no guess makes it run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.made_up import make_up, pictures, sounds
from onnxq.made_up.kinds import tokens
from onnxq.made_up.roles import Role, parts_of
from onnxq.runtime.session import Feed, Input, Session
from onnxq.samples.trials import Trials

F32, I64, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)
Shape = tuple[int | str | None, ...]


class Picky:
    """A session that runs only what it accepts, and counts how often it was asked."""

    def __init__(self, *inputs: Input, accepts: Callable[[Feed], bool] = lambda feed: True) -> None:
        self.inputs, self.accepts, self.runs, self.outputs = inputs, accepts, 0, ()

    def run(self, feed: Feed) -> list[NDArray]:
        self.runs += 1
        if not self.accepts(feed):
            raise BadModel("onnxruntime cannot run the model: no")
        return []


def model_of(body: str, constants: Mapping[str, NDArray] | None = None) -> ir.Model:
    return ir.from_proto(tiny.model(body, constants))


NOTHING = model_of("g () => () {}")


def trials(*inputs: Input, accepts: Callable[[Feed], bool] = lambda feed: True, seed: int = 0) -> Trials:
    return make_up(NOTHING, Picky(*inputs, accepts=accepts), seed)  # type: ignore[arg-type]


def feeds(*inputs: Input, accepts: Callable[[Feed], bool] = lambda feed: True) -> list[Feed]:
    return trials(*inputs, accepts=accepts).feeds


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        pytest.param((2, 3), (2, 3), id="fixed"),
        pytest.param((), (), id="scalar"),
        pytest.param(("batch", 3), (1, 3), id="batch-is-one"),
        pytest.param((None, 3), (1, 3), id="first-unnamed-axis-is-a-batch"),
        pytest.param((-1, "T", 5), (1, 32, 5), id="minus-one"),
        pytest.param(("N", 3, "H", "W"), (1, 3, 224, 224), id="image"),
        pytest.param(("N", 3, "32*h", "4*w"), (1, 3, 224, 224), id="multiples"),
        pytest.param(("N", "samples"), (1, 16000), id="sound"),
        pytest.param(("batch", "past_length"), (1, 0), id="a-cache-is-empty"),
        pytest.param(("batch", 2, "2*T + 1"), (1, 2, 33), id="a-sum"),
    ],
)
def test_free_dimensions(shape: Shape, wanted: tuple[int, ...]) -> None:
    first = feeds(Input("x", F32, shape))[0]
    assert first["x"].shape == wanted
    assert first["x"].dtype == F32


def test_a_picture_of_no_pixels_is_empty() -> None:
    assert feeds(Input("x", F32, ("N", 3, "0*h", "w")))[0]["x"].shape[2] == 0


def test_one_symbol_is_one_size_everywhere() -> None:
    a, b = Input("a", F32, ("batch", "T", 3)), Input("b", F32, ("T", "T"))
    found = feeds(a, b, accepts=lambda feed: feed["b"].shape[0] == 64)
    assert {(feed["a"].shape, feed["b"].shape) for feed in found} == {((1, 64, 3), (64, 64))}


@pytest.mark.parametrize(
    "mask", ["total", "past + T", "T + past", "past+T", "(past + T)", "past - 1 + T + 1", "Max(past + T, 1)"]
)
def test_a_total_is_the_past_and_the_present(mask: str) -> None:
    inputs = Input("x", I64, ("N", "T")), Input("past", F32, ("N", "past")), Input("mask", I64, ("N", mask))
    found = feeds(*inputs, accepts=lambda feed: feed["past"].shape[1] > 0)
    assert found
    for feed in found:
        assert feed["mask"].shape[1] == feed["past"].shape[1] + feed["x"].shape[1]


def test_one_dimension_may_be_for_itself() -> None:
    image = Input("x", F32, ("N", "C", "H", "W"))
    assert feeds(image, accepts=lambda feed: feed["x"].shape == (1, 3, 64, 64))[0]["x"].shape == (1, 3, 64, 64)


def test_guesses_stay_small_where_many_dimensions_are_free() -> None:
    sizes: list[int] = []
    feeds(Input("x", F32, ("N", "C", "H", "W")), accepts=lambda feed: sizes.append(feed["x"].size) or False)
    assert 0 < max(sizes) <= 1 << 22


def test_words_stay_words_beside_a_mask_without_axes() -> None:
    for dtype in (F32, I64):
        made = feeds(Input("input_ids", I64, ("batch", "seq")), Input("mask", dtype, ()))
        assert {feed["mask"].shape for feed in made} == {()} and any(len(feed["input_ids"]) == 2 for feed in made)


def test_of_many_switches_few_settings_are_tried() -> None:
    inputs = [Input(f"flag{i}", BOOL, (1,)) for i in range(60)]
    tried: dict[tuple[int, ...], None] = {}
    feeds(*inputs, accepts=lambda feed: bool(tried.update({tuple(int(x[0]) for x in feed.values()): None})))
    assert [sum(each) for each in tried] == [60, *[59] * 7]


@pytest.mark.parametrize("number", [1e300, -(2.0**70), 2.0**63])
def test_numbers_that_no_integer_holds_are_not_compared_with(number: float) -> None:
    body = "g (int64[1] n) => (bool[1] y) { d = Cast<to = 11>(n)  y = Equal(d, c) }"
    session = Picky(Input("n", I64, (1,)))
    assert make_up(model_of(body, {"c": np.array([number])}), session).feeds  # type: ignore[arg-type]


def test_a_table_of_any_number_of_rows_takes_no_room() -> None:
    body = "g (int64[1, 4] ids) => (y) { y = OneHot(ids, depth, values) }"
    constants = {"depth": np.array(10**12), "values": np.float32([0, 1])}
    session = Picky(Input("ids", I64, (1, 4)))
    made = make_up(model_of(body, constants), session).feeds  # type: ignore[arg-type]
    assert all(feed["ids"].min() >= 0 and feed["ids"].max() < 1 << 20 for feed in made)


def test_dimensions_that_are_given_may_be_large() -> None:
    assert feeds(Input("x", F32, ("N", 1, 1 << 20)))[0]["x"].shape == (1, 1, 1 << 20)


def test_no_guess_runs() -> None:
    session = Picky(Input("x", F32, ("N", "T")), accepts=lambda feed: False)
    assert make_up(NOTHING, session).samples == ()  # type: ignore[arg-type]
    assert 1 <= session.runs <= 200


def test_the_same_each_time_and_another_with_another_seed() -> None:
    x = Input("x", F32, (4, 40))
    once, again, other = (trials(x, seed=seed) for seed in (0, 0, 1))
    assert once.labels == again.labels == other.labels and len(set(once.labels)) > 2
    assert not once.proves
    for a, b, c in zip(once.feeds, again.feeds, other.feeds, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        assert (a["x"] != c["x"]).any()


def test_a_kind_that_is_not_legal_is_left_out_and_said() -> None:
    class Overflows(Picky):
        def run(self, feed: Feed) -> list[NDArray]:
            return [np.where(abs(feed["x"]) > 5, np.inf, feed["x"])]

    session = Overflows(Input("x", F32, (4, 400)))
    session.outputs = ("y",)
    found = make_up(NOTHING, session)  # type: ignore[arg-type]
    assert "a few large numbers" not in found.labels and len(found.labels) >= 3
    assert any("a few large numbers" in note for note in found.notes)


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
    sample = feeds(*inputs)[0]
    assert all(sample[i.name].dtype == i.dtype for i in inputs)
    assert abs(sample["x"].mean()) < 0.1 and abs(sample["x"].std() - 1) < 0.1
    assert np.isfinite(sample["half"]).all()
    np.testing.assert_array_equal(sample["past_key"], 0)
    np.testing.assert_array_equal(sample["mask"], 1)
    assert sample["flag"].all()
    np.testing.assert_array_equal(sample["position_ids"], [[0, 1, 2, 3]] * 2)
    assert sample["words"].tolist() == ["text", "text"]


def test_padding_masks_and_positions_agree() -> None:
    inputs = [
        Input("input_ids", I64, ("batch", "seq")),
        Input("attention_mask", I64, ("batch", "past + seq")),
        Input("position_ids", I64, ("batch", "seq")),
        Input("past_key_values.0.key", F32, ("batch", 2, "past", 4)),
    ]
    found = trials(*inputs)
    assert {feed["input_ids"].shape for feed in found.feeds} >= {(1, 128), (1, 12), (1, 1), (2, 12)}
    (padded,) = (each.feed for each in found.samples if "padded" in each.label)
    mask, positions = padded["attention_mask"], padded["position_ids"]
    assert mask[0].all() and not mask[1, 0] and mask[1, -1]
    np.testing.assert_array_equal(positions[0], np.arange(12))
    assert positions[1, -1] == mask[1].sum() - 1 and positions.min() == 0


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        pytest.param("y = Gather(table, i)", 7, id="gather"),
        pytest.param("y = Gather<axis = 1>(table, i)", 5, id="gather-axis-1"),
        pytest.param("j = Cast<to = 6>(i)  k = Squeeze(j)  y = Gather(table, k)", 7, id="behind-shapes"),
        pytest.param("a = Gather(table, i)  b = Gather(small, i)  y = Add(a, b)", 3, id="the-smaller-of-two"),
        pytest.param("t = DequantizeLinear(table, one)  y = Gather(t, i)", 7, id="codes"),
        pytest.param("c = Cast<to = 1>(table)  t = Mul(c, one)  y = Gather<axis = 1>(t, i)", 5, id="codes-unpacked"),
        pytest.param("c = Cast<to = 1>(table)  t = Mul(each, c)  y = Gather(t, i)", 7, id="codes-by-a-scale-before"),
        pytest.param("c = Mul(blocks, one)  t = Reshape(c, whole)  y = Gather(t, i)", 6, id="blocks"),
        pytest.param("t = Transpose<perm = [1, 0]>(table)  y = Gather(t, i)", 5, id="codes-turned"),
        pytest.param("j = Gather<axis = 1>(i, places)  y = Gather(table, j)", 7, id="columns-in-two-dimensions"),
        pytest.param("y = onnxq.GatherNBits<K = 4, N = 9>(table, one, , i)", 9, id="onnxq"),
    ],
)
def test_integers_stay_inside_the_table_they_look_up(body: str, rows: int) -> None:
    constants = {
        "table": np.ones((7, 5)),
        "small": np.ones((3, 5)),
        "blocks": np.ones((6, 2, 5)),
        "one": np.ones(()),
        "each": np.ones(1),
    }
    whole = {"whole": np.array([6, 10]), "places": np.array([[0, 1], [2, 3]])}
    model = model_of(f"g (int64[N, 200] i) => (y) {{ {body} }}", constants | whole)
    sample = make_up(model, Picky(Input("i", I64, ("N", 200)))).feeds[0]  # type: ignore[arg-type]
    assert (sample["i"].min(), sample["i"].max()) == (0, rows - 1)
    counts = np.bincount(sample["i"].reshape(-1))
    assert counts.max() > 1.5 * counts.mean() or rows < 6  # a few words come often


@pytest.mark.parametrize(
    "called",
    ["OneHot(i)", "EmbedLayerNormalization(i)", "GatherBlockQuantized(table, i)", "Gather(table, i)", "Equal(i)"],
)
def test_functions_of_a_model_are_no_operators(called: str) -> None:
    body = f"g (int64[N, 200] i) => (y) {{ k = local.Slice(i)  y = local.{called} }}"
    (part,) = parts_of(model_of(body, {"table": np.ones((7, 5))}), (Input("i", I64, ("N", 200)),))
    assert part.rows is None and not part.compared


SOUGHT = "flags = Equal(j, end)  n = Cast<to = 6>(flags)  at = ArgMax<axis = -1>(n)  y = Gather(table, i)"


@pytest.mark.parametrize(
    ("body", "sought"),
    [
        pytest.param(f"j = Cast<to = 7>(i)  {SOUGHT}", (42,), id="as-clip-does"),
        pytest.param("flags = Equal(i, end)  at = Cast<to = 1>(flags)  y = Gather(table, i)", (), id="a-mask"),
    ],
)
def test_a_text_has_the_word_whose_place_is_looked_for(body: str, sought: tuple[int, ...]) -> None:
    """Without it the model would look at the first word alone."""
    model = model_of(f"g (int64[N, T] i) => (at, y) {{ {body} }}", {"table": np.ones((500, 4)), "end": np.array(42)})
    (part,) = parts_of(model, (Input("i", I64, ("N", "T")),))
    assert (part.role, part.sought) == (Role.TOKENS, sought)
    drawn = tokens(part, (50, 12), np.random.default_rng(0)) == 42
    assert drawn.any(axis=1).all() == bool(sought)
    assert not sought or (drawn[:, 6:].any(axis=1).all() and tokens(part, (50, 1), np.random.default_rng(0)).std() > 0)


TAKEN = {
    "gather": "a = Gather<axis = 1>(i, zero)  b = Gather<axis = -1>(i, one)",
    "slice": "a = Slice(i, zeros, ones, ones)  b = Slice(i, ones, twos, ones)",
    "split": "a, b = Split<axis = 1, num_outputs = 2>(i)",
}


@pytest.mark.parametrize("taken", TAKEN)
def test_each_column_stays_inside_the_table_that_it_looks_up(taken: str) -> None:
    """As recommenders do, whose large tables the rows of the smallest one would leave unseen."""
    constants = {"large": np.ones((500, 4)), "small": np.ones((3, 4)), "zero": np.array(0), "one": np.array(1)}
    constants |= {"zeros": np.array([0]), "ones": np.array([1]), "twos": np.array([2])}
    text = f"g (int64[N, 2] i) => (y, z) {{ {TAKEN[taken]}  y = Gather(large, a)  z = Gather(small, b) }}"
    given = Input("i", I64, ("N", 2))
    (part,) = parts_of(model_of(text, constants), (given,))
    assert (part.role, part.rows, part.columns) == (Role.TOKENS, 3, (500, 3))
    drawn = tokens(part, (1000, 2), np.random.default_rng(0))
    assert drawn[:, 0].max() > 400 and drawn[:, 1].max() == 2 and drawn.min() == 0


@pytest.mark.parametrize("batch", ["N", 1])
def test_outputs_of_few_numbers_are_seen_more_often(batch: str | int, tmp_path: Path) -> None:
    """One probability says nothing of how far scores are off."""
    constants = {"w": tiny.normal(9, 1)}
    made = tiny.model(f"g (float[{batch}, 9] x) => (float[{batch}, 1] y) {{ y = MatMul(x, w) }}", constants)
    session = Session(tiny.save(made, tmp_path))
    found = make_up(ir.from_proto(made), session)
    for label in {sample.label for sample in found.samples}:
        assert sum(session.run(sample.feed)[0].size for sample in found.samples if sample.label == label) > 8
    assert len(found.samples[0].feed["x"]) == 1  # what is timed stays what people run


def test_a_batch_of_pictures_is_not_what_a_single_score_takes() -> None:
    """It would take as long as the rest of the command."""
    model = model_of("g (float[N, 3, 64, 64] x) => (float[N, C, H, W] y) { y = GlobalAveragePool(x) }")
    session = Session(model)
    assert {len(feed["x"]) for feed in make_up(model, session).feeds} == {1}


def test_words_of_an_embedding_layer_and_its_segments() -> None:
    body = "y = com.microsoft.EmbedLayerNormalization(ids, segments, words, places, kinds, gamma, beta)"
    tables = {name: np.ones((rows, 4), np.float32) for name, rows in (("words", 9), ("places", 8), ("kinds", 2))}
    model = model_of(f"g (int64[N, T] ids, int64[N, T] segments, gamma, beta) => (y) {{ {body} }}", tables)
    sample = make_up(model, Picky(*(Input(name, I64, ("N", 100)) for name in ("ids", "segments")))).feeds[0]  # type: ignore[arg-type]
    assert (sample["ids"].max(), sample["segments"].max()) == (8, 1)


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("x", ("N", 3, 224, 224), Role.IMAGE),
        ("x", (1, 96, 96, 1), Role.IMAGE),
        ("past_key_values.0.key", ("batch", 4, "past", 64), Role.CACHE),
        ("input_values", ("N", "T"), Role.AUDIO),
        ("x", ("N", 1, 16000), Role.AUDIO),
        ("input_features", (1, 80, 3000), Role.SPECTRUM),
        ("x", ("N", "frames", 80), Role.SPECTRUM),
        ("encoder_hidden_states", ("N", "T", 128), Role.FEATURES),
        ("x", ("N", 30), Role.FEATURES),
        ("last_hidden_state", ("N", "T", 64), Role.FEATURES),
        ("attention_mask", ("N", "T"), Role.MASK),
    ],
)
def test_roles(name: str, shape: Shape, role: Role) -> None:
    assert parts_of(NOTHING, (Input(name, F32, shape),))[0].role is role


def test_a_state_that_comes_out_again_is_a_state() -> None:
    model = model_of("g (float[2, N, 128] h_in) => (float[2, N, 128] h_out) { h_out = Relu(h_in) }")
    assert parts_of(model, (Input("h_in", F32, (2, "N", 128)),))[0].role is Role.CACHE


@pytest.mark.parametrize(
    ("spread", "wanted"),
    [
        pytest.param(1.0, {"pictures of 0…1", "pictures of −2…2"}, id="small"),
        pytest.param(255.0, {"pictures of 0…255"}, id="bytes"),
    ],
)
def test_biases_tell_the_scale_of_pictures(spread: float, wanted: set[str]) -> None:
    w = tiny.normal(8, 3, 3, 3) / np.float32(spread)
    body = "g (float[1, 3, 16, 16] x) => (y) { y = Conv(x, w, b) }"
    model = model_of(body, {"w": w, "b": tiny.normal(8, seed=1)})
    assert set(pictures.scales_for(model, "x")) == wanted
    unknown = model_of(body.replace("x, w, b", "x, w"), {"w": w})
    assert set(pictures.scales_for(unknown, "x")) == set(pictures.SCALES)


def test_pictures_are_smoother_than_noise_and_not_flat() -> None:
    image = pictures.picture(np.random.default_rng(0), 64, 48, 3)
    assert image.shape == (64, 48, 3) and image.min() >= 0 and image.max() <= 1
    assert image.std() > 0.1
    assert np.abs(np.diff(image, axis=0)).mean() < 0.6 * image.std()  # of noise, 1.13


@pytest.mark.parametrize("sound", sounds.SOUNDS)
def test_sounds(sound: str) -> None:
    x = sounds.waveform(np.random.default_rng(0), sound, (2, 1, 8000), -1)
    assert x.shape == (2, 1, 8000) and np.isfinite(x).all() and 1e-3 < abs(x).max() < 2
    assert (x[0] != x[1]).any()
    for scale, (low, high) in sounds.SPECTRUM_SCALES.items():
        bands = sounds.spectrogram(np.random.default_rng(0), sound, scale, (1, 80, 30), 2)
        assert bands.shape == (1, 80, 30) and bands.min() >= low - 1e-5 and bands.max() <= high + 1e-5
        assert bands.std() > 0.01 * (high - low)
