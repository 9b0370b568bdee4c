"""Decibels against the definition, and what counts as broken."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike, DTypeLike, NDArray

from onnxq.checking import models
from onnxq.errors import CheckFailed
from onnxq.quality import MAX_DB, UNEQUAL_DB, Quality, compare_outputs, unrepeatable
from onnxq.quality.blank import blank_notes
from onnxq.quality.decisions import Classes, scores_beside


def of(wanted: ArrayLike, got: ArrayLike, dtype: DTypeLike = np.float32) -> Quality:
    quality = Quality()
    quality.add(["y"], [np.asarray(wanted, dtype)], [np.asarray(got, dtype)])
    return quality


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("noise", [1e-1, 1.0, 10.0])
def test_the_definitions(noise: float, dtype: DTypeLike) -> None:
    x, y = ((normal(40, 5) + 3).astype(dtype), (normal(40, 5) + 3 + noise * normal(40, 5, seed=1)).astype(dtype))
    a, b = x.astype(np.float64), y.astype(np.float64)
    quality = of(x, y, dtype)
    assert quality.sqnr == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()), abs=1e-9)
    assert quality.contrast == pytest.approx(10 * np.log10(a.var() * a.size / ((a - b) ** 2).sum()), abs=1e-6)
    assert quality.noise_ratio() == pytest.approx(((a - b) ** 2).sum() / (a.var() * a.size), rel=1e-6)


def test_an_offset_counts_for_sqnr_only() -> None:
    x = normal(100)
    quality = of(x + 300, x + 300 + 0.5)
    assert quality.sqnr > 50
    assert quality.contrast == pytest.approx(10 * np.log10(x.var() / 0.25), abs=0.01)


def test_samples_add_up_whatever_their_shapes() -> None:
    x, y = normal(6, 4), normal(6, 4, seed=1)
    parts = compare_outputs(["y"], [[x[:1]], [x[1:3]], [x[3:].reshape(-1)]], [[y[:1]], [y[1:3]], [y[3:].reshape(-1)]])
    whole = of(x, y, np.float64)
    assert parts.sqnr == pytest.approx(whole.sqnr)
    assert parts.contrast == pytest.approx(whole.contrast)


def test_samples_must_be_as_many() -> None:
    with pytest.raises(ValueError):
        compare_outputs(["y"], [[normal(1)]], [])


def test_the_worst_output_counts() -> None:
    x = normal(10)
    quality = Quality()
    quality.add(["good", "bad"], [x, x], [x, -x])
    assert quality.by_output() == {"good": MAX_DB, "bad": pytest.approx(10 * np.log10(1 / 4))}
    assert quality.sqnr == pytest.approx(10 * np.log10(1 / 4))


def test_equal_outputs_are_as_good_as_it_gets() -> None:
    assert of(normal(5), normal(5)).sqnr == MAX_DB
    assert of(np.zeros(5), np.zeros(5)).contrast == MAX_DB
    assert of(normal(5), normal(5)).noise_ratio() == 0
    assert Quality().sqnr == Quality().contrast == MAX_DB


def test_tiny_noise_and_huge_noise_stay_within_the_scale() -> None:
    assert of([1.0, 2.0], [1.0 + 1e-9, 2.0], np.float64).sqnr == UNEQUAL_DB < MAX_DB
    assert of([1e-9, 0.0], [1e9, 0.0]).sqnr == -MAX_DB


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        pytest.param([1.0, 2.0], [1.0, np.nan], id="nan"),
        pytest.param([1.0, 2.0], [1.0, -np.inf], id="infinite"),
        pytest.param([1.0, 2.0], [[1.0, 2.0]], id="shape"),
        pytest.param([0.0, 0.0], [0.0, 1e-3], id="noise-on-nothing"),
    ],
)
def test_broken_outputs(wanted: ArrayLike, got: ArrayLike) -> None:
    quality = of(wanted, got)
    assert quality.sqnr == quality.contrast == -MAX_DB
    assert quality.noise_ratio() >= 1


def test_one_broken_sample_breaks_the_output() -> None:
    x = normal(4)
    quality = compare_outputs(["y"], [[x], [x]], [[np.full(4, np.nan)], [x]])
    assert quality.sqnr == -MAX_DB
    assert compare_outputs(["y"], [[x], [x]], [[x[:2]], [x]]).sqnr == -MAX_DB


def test_what_float_itself_does_not_know_is_not_compared_but_never_equal_to_something_else() -> None:
    wanted = [np.nan, np.inf, 1.0]
    same = of(wanted, wanted)
    assert same.sqnr == MAX_DB and not same.appearing and not blank_notes(same)
    for got in ([5.0, np.inf, 1.0], [np.nan, 5.0, 1.0], [np.inf, np.inf, 1.0], [np.nan, -np.inf, 1.0]):
        quality = of(wanted, got)
        assert 100 < quality.sqnr < MAX_DB and quality.worst_alike() < MAX_DB and quality.agreement == quality.sqnr
        assert "NaN or infinity in places of 'y' where something else comes out" in blank_notes(quality)[0]
        assert unrepeatable(["y"], [np.array(wanted)], [np.array(got)]) == {"y"}
    assert of([np.nan], [1.0]).outputs == set()


def test_a_constant_output_has_no_contrast() -> None:
    quality = of(np.full(8, 2.0), np.full(8, 2.001))
    assert quality.sqnr > 60
    assert quality.contrast < 0


def test_a_single_number_is_its_own_variation() -> None:
    quality = of([2.0], [1.0])
    assert quality.sqnr == quality.contrast == pytest.approx(10 * np.log10(4))


def test_the_worst_label_counts() -> None:
    x = normal(50)
    quality = Quality()
    quality.add(["y"], [x], [x + 0.01], "noise")
    quality.add(["y"], [x], [x + 1.0], "voice")
    labels = quality.by_label()
    assert labels["noise"] > 30 and labels["voice"] == pytest.approx(of(x, x + 1.0, np.float64).sqnr)
    assert quality.sqnr == labels["voice"] == quality.by_output()["y"]
    assert quality.contrast == quality.contrasts()["voice"]


def test_made_up_samples_may_have_less_contrast_than_those_of_the_user() -> None:
    x = normal(50)
    quality = Quality()
    quality.add(["y"], [x], [x + 0.1], "made up")
    assert quality.contrast_for("data", 12.0) == quality.contrast  # nobody knows better
    quality.add(["y"], [x], [x + 0.05], "data")
    found = quality.contrasts()
    assert found["made up"] < found["data"] < found["made up"] + 12.0
    assert quality.contrast_for("data", 12.0) == found["data"]
    assert quality.contrast_for("data", 3.0) == found["made up"] + 3.0
    assert quality.contrast_for("data", 0.0) == quality.contrast


def test_samples_one_by_one_are_as_all_together() -> None:
    names, rng = ["y", "classes", "lost"], np.random.default_rng(0)
    wanted = [[normal(6), rng.normal(size=(4, 3)), np.full(2, np.nan)] for _ in range(5)]
    got = [[x + 0.1 * rng.normal(size=x.shape) for x in each] for each in wanted]
    got[3][0] = got[3][0][:2]
    labels, classes = ["a", "b", "a", "c", "b"], {"classes": Classes(1)}
    together = compare_outputs(names, wanted, got, labels=labels, classes=classes)
    merged = Quality(classes=classes)
    for x, y, label in zip(wanted, got, labels, strict=True):
        merged.merge(compare_outputs(names, [x], [y], labels=[label], classes=classes))
    assert merged == together and merged.blank == ["lost"] and merged.by_label()["c"] == -MAX_DB


def test_numbers_whose_squares_are_infinite_are_compared() -> None:
    """Their sums would be as large as those of the noise, or infinitely larger."""
    x = np.array([[1.0, 2.0]])
    for large in (1e120, 2e153, 2.5e153, 1e200, 8e307):
        found = compare_outputs(["y"], [[x * large]], [[x[:, ::-1] * large]])
        assert found.sqnr == pytest.approx(10 * np.log10(2.5)) and not found.blank
        assert compare_outputs(["y"], [[x * large]], [[-x * large]]).sqnr == pytest.approx(-10 * np.log10(4))
        assert compare_outputs(["y"], [[x]], [[x * large]]).sqnr == -MAX_DB
        assert compare_outputs(["y"], [[x * large]], [[x * large]]).sqnr == MAX_DB
        assert np.isfinite(compare_outputs(["y"], [[x]], [[x * large]]).noise_ratio())
    beside = np.array([1.0, 1.0, 1.0, 1e150])
    found = of(beside, beside * [1, 1, 1, -7], np.float64)
    assert found.sqnr == pytest.approx(-20 * np.log10(8)) and found.contrast < 0
    many = np.outer(np.ones(64), beside)
    with warnings.catch_warnings(action="error"):
        assert of(many, many * 1.5, np.float64).sqnr == pytest.approx(20 * np.log10(2))


def test_usual_numbers_are_not_drowned_by_huge_ones() -> None:
    wanted, got = np.array([1e150, 1.0, 1, 1]), np.array([1e150, -7.0, 1, 2])
    quality = of(wanted, got, np.float64)
    assert quality.sqnr == pytest.approx(10 * np.log10(3 / 65)) and quality.by_output() == {"y": quality.sqnr}
    samples = [[x] for x in wanted[:, None]], [[x] for x in got[:, None]]
    assert compare_outputs(["y"], *samples).sqnr == quality.sqnr
    assert compare_outputs(["y"], *samples, labels=["a", "a", "b", "b"]).sqnr < 0
    assert quality.noise_ratio() == 1 and of(wanted, wanted, np.float64).noise_ratio() == 0
    assert compare_outputs(["y"], [[np.full(2, np.nan)], [np.full(2, 1e150)]], [[np.ones(2)]] * 2).blank == []


def test_tiny_numbers_are_compared_and_are_silence_beside_others() -> None:
    tiny, least = np.array([1e-170, 2e-170]), np.array([5e-324, 0.0])
    for scale in (1e-100, 1.0, 1e100):
        assert of(tiny * scale, -3 * tiny * scale, np.float64).sqnr == pytest.approx(-20 * np.log10(4))
    assert of(tiny, tiny, np.float64).sqnr == MAX_DB
    assert of(least, -least, np.float64).sqnr == pytest.approx(-20 * np.log10(2))
    assert of([*tiny, 0.0], [*-tiny, 0.0], np.float64).sqnr < 0
    for other in (1.0, 1e150):
        quality = of([*tiny, other], [*-tiny, other], np.float64)
        assert quality.sqnr == quality.contrast == UNEQUAL_DB and quality.noise_ratio() == 0
    apart = compare_outputs(["y"], [[tiny], [np.ones(2)]], [[-tiny], [np.ones(2)]], labels=["a", "b"])
    assert apart.by_label() == {"a": UNEQUAL_DB, "b": MAX_DB} and apart.worst_alike() == UNEQUAL_DB


def test_something_else_in_place_of_no_number_is_not_equal_beside_an_output_that_is() -> None:
    x, nan = np.ones(3), np.full(3, np.nan)
    quality = compare_outputs(["y", "z"], [[nan, x]], [[x, x]])
    assert quality.blank == ["y"] and quality.by_output() == {"z": MAX_DB}
    assert quality.sqnr == quality.contrast == quality.agreement == quality.worst_alike() == UNEQUAL_DB
    assert any("in places of 'y'" in note for note in blank_notes(quality))


def test_errors_on_near_silence_are_measured_by_what_is_usual() -> None:
    """An output of almost nothing need not be exact to its last bit; one that is broken still is."""
    quality, x = Quality(), normal(1000)
    for label in ("a", "b"):
        quality.add(["y"], [x], [x], label)
    quality.add(["y"], [1e-6 * x], [2e-6 * x], "silence")
    assert quality.by_label()["silence"] > 100 and quality.contrasts()["silence"] > 100
    (own, below), *_ = quality.faint().values()
    assert [*quality.faint()] == ["silence"] and own == pytest.approx(0, abs=0.01) and below == UNEQUAL_DB
    assert quality.is_of_faint
    quality.add(["y"], [1e-6 * x], [x], "broken")
    assert quality.by_label()["broken"] < 0 and quality.contrasts()["broken"] < 0
    alone = Quality()
    alone.add(["y"], [1e-6 * x], [2e-6 * x], "silence")
    assert not alone.is_of_faint
    assert alone.sqnr == pytest.approx(0, abs=0.01)


def _boxes(axis: int, places: int = 200) -> np.ndarray:
    """Four numbers of a box in pixels and scores of three classes at each place, few of them near 1."""
    made = np.random.default_rng(3)
    scores = made.uniform(0, 0.1, (1, places, 3))
    scores[0, ::50, 1] = 0.9
    found = np.concatenate([made.uniform(0, 320, (1, places, 4)), scores], axis=-1).astype(np.float32)
    return np.ascontiguousarray(np.moveaxis(found, -1, axis))


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_boxes_are_an_output_of_their_own(axis: int) -> None:
    """All in one, their noise is nothing beside the power of pixels, and there is no detection left that is right."""
    wanted = _boxes(axis)
    at, kept = scores_beside(wanted) or (0, np.zeros(0))
    assert (at, list(kept)) == (axis, [False] * 4 + [True] * 3)
    noise = np.moveaxis(np.zeros_like(wanted), axis, -1)
    noise[..., 4:] = 0.1 * normal(*noise[..., 4:].shape)
    got = wanted + np.moveaxis(noise, -1, axis)
    quality = of(wanted, got)
    scores = np.moveaxis(wanted, axis, -1)[..., 4:].astype(np.float64)
    alone = 10 * np.log10((scores**2).sum() / (noise[..., 4:].astype(np.float64) ** 2).sum())
    assert quality.by_output() == {"y": MAX_DB, "y (scores)": pytest.approx(alone, abs=0.01)}
    assert quality.sqnr == pytest.approx(alone, abs=0.01)
    assert alone < 10


@pytest.mark.parametrize(
    "x",
    [
        _boxes(2)[:, :8],
        _boxes(2)[..., 4:],
        _boxes(2)[..., :4],
        _boxes(2) / 320,
        np.maximum(normal(1, 200, 30), 0),
        _boxes(2)[..., [0, 4, 1, 5]],
        normal(1, 200, 7) * 100,
        np.where(normal(1, 200, 7) > 0, np.nan, _boxes(2)),
        _boxes(2).astype(np.int64),
        normal(500),
    ],
    ids=[
        "few",
        "scores alone",
        "boxes alone",
        "boxes of 0…1",
        "relu",
        "in turns",
        "signed",
        "nan",
        "integers",
        "a row",
    ],
)
def test_other_outputs_stay_whole(x: np.ndarray) -> None:
    assert scores_beside(x) is None
    assert set(of(x, x, x.dtype).by_output()) <= {"y"}


def test_random_decisions_beside_numbers_prove_nothing() -> None:
    x, drawn = np.array([1.0, 2.0]), np.array([3, 4])
    assert unrepeatable(["x", "r"], [x, drawn], [x, drawn[::-1]]) == {"r"}
    assert unrepeatable(["x", "r"], [x, drawn], [x, drawn]) == set()


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3, 1.0])
def test_flips_count_as_the_noise_that_makes_them(noise: float) -> None:
    """Of two classes of which one is likelier by a normally distributed number."""
    wanted = normal(400_000)
    got = wanted + noise * normal(400_000, seed=1)
    by_numbers = of(wanted, got, np.float64).sqnr
    assert of(wanted > 0, got > 0, bool).sqnr == pytest.approx(by_numbers, abs=0.5)


def test_few_decisions_of_several_labels_are_told_together() -> None:
    """One that flips is not all of them, where another kind of sample has as few; with many each kind has its own."""
    quality = Quality()
    for label, count, flipped in (("long", 3, 0), ("short", 1, 1), ("many", 100, 5)):
        wanted = np.zeros(count, np.int64)
        got = wanted.copy()
        got[:flipped] = 1
        quality.add(["y"], [wanted], [got], label)
    assert quality.flips == 0.25
    assert [each.flips for each in (found["y"] for found in quality.decisions.values())] == [0, 1, 5]


def test_more_flips_than_nothing_would_leave_are_no_endless_noise() -> None:
    assert of(np.zeros(9), np.ones(9), np.int64).sqnr == of(np.zeros(9), np.eye(9)[0] == 0, np.int64).sqnr > -MAX_DB


@pytest.mark.parametrize(
    ("count", "flips", "near"),
    [(64, 1, True), (32, 6, True), (32, 8, False), (1000, 100, False), (4, 1, True), (4, 2, False), (1, 1, False)],
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside numbers"])
def test_near_ties_are_few(count: int, flips: int, near: bool, beside: bool) -> None:
    wanted = np.zeros(count, np.int64)
    got = wanted.copy()
    got[:flips] = 1
    more = [np.ones(9, np.float32)] * beside
    found = compare_outputs(["y", "z"][: 1 + beside], [[wanted, *more]], [[got, *more]])
    assert found.is_another(100) is not near and found.decides_alike is near
    assert found.only_decides is not beside
    assert found.agreement is not None and found.agreement < MAX_DB
    assert not any(found.flips_beyond(found)) and any(found.flips_beyond(Quality())) is not near


def test_what_differs_is_named_numbers_or_decisions() -> None:
    """Of a file that gives other indices without the library, not the decibels of outputs that agree."""
    places, others = np.zeros(1000, np.int64), np.ones(1000, np.int64)
    noisy = normal(9) + 0.05
    on = compare_outputs(["y", "at"], [[normal(9), places]], [[noisy, places]])
    alone = compare_outputs(["y", "at"], [[normal(9), places]], [[noisy, others]])
    check = models.Check("", on.sqnr, on.contrast, on.sqnr, bare_ms=1.0)
    flipped = r"\(1000 of 1000 decisions of 'at' flip\) than with it \(0 flip\)"
    with pytest.raises(CheckFailed, match=f"without onnxq's library the saved model computes something else {flipped}"):
        models._noted(check, on, on, alone)
    assert "than with it off (0 flip)" in models._noted(check, alone, on, on).notes[0]
    broken = compare_outputs(["y", "at"], [[normal(9), places]], [[normal(9, seed=1), others]])
    with pytest.raises(CheckFailed, match=r"something else \(.* dB\) than with it \(.* dB\)"):
        models._noted(check, on, on, broken)
    assert check.difference.endswith("dB")
    assert "decisions flip" in models.Check("", 50.0, 50.0, 50.0, decides_alike=False).difference


def test_files_that_are_to_be_the_same() -> None:
    assert Quality().agreement is None and not Quality().is_another(0.0)
    numbers = of([1.0, 2.0], [1.1, 2.0])
    assert numbers.agreement == numbers.sqnr and numbers.is_another(40) and not numbers.is_another(20)


@pytest.mark.parametrize("other", [np.array(["a", "1"]), np.array(["1", "2"], object)])
@pytest.mark.parametrize("numbers", [np.float32([1, 2]), np.array([1, 2]), np.array([True, False])])
def test_texts_are_no_numbers(numbers: NDArray, other: NDArray) -> None:
    for x, y in ((numbers, other), (other, numbers)):
        quality = Quality(classes={"y": Classes(-1)})
        quality.add(["y"], [x], [y])
        assert quality.sqnr == -MAX_DB and quality.is_another(-100)


def test_samples_of_one_kind_are_faint_beside_their_mean() -> None:
    """Where most are silent, their median is 0."""
    silent, loud = np.zeros(4, np.float32), np.ones(4, np.float32)
    wanted, got = [[silent], [silent], [silent], [loud]], [[silent + 1e-7], [silent], [silent], [loud]]
    found = compare_outputs(["y"], wanted, got, labels=map(str, range(4)))
    assert found.sqnr == -MAX_DB and found.worst_alike() > 100
    assert found.below(found.worst_alike()) == 1
