"""What preferences and efforts mean, in numbers; and what is done where a measurement decides nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxq.plan import Plan
from onnxq.preference import CLEAR, PREFERENCES, SEARCHES
from onnxq.quality import Quality
from onnxq.recipe import Recipe
from onnxq.runtime.profile import PlanTime
from onnxq.tuning.harm import harm
from onnxq.tuning.tune import Terms, _is_worthwhile


def bench(**known: Any) -> Any:
    usual = {"is_recurrent": False, "is_detector": False, "is_for_another": False, "cost": 0.1}
    return SimpleNamespace(floor=None, **(usual | known))


def terms(prefer: str, **known: Any) -> Terms:
    return Terms.of(bench(**known), Recipe("w8a8-dynamic", prefer=prefer), None)  # type: ignore[arg-type]


def price(prefer: str, contrast: float, **known: Any) -> float:
    return terms(prefer, **known).noise_price(seen(made_up=contrast))


def seen(**labels: float) -> Quality:
    """What was seen, by its contrast on samples of each label."""
    quality = Quality()
    x = np.sin(np.arange(1000.0))
    for label, contrast in labels.items():
        quality.add(["y"], [x], [x + np.std(x) * 10 ** (-contrast / 20)], label)
    return quality


@pytest.mark.parametrize("kind", [{}, {"is_recurrent": True}, {"is_detector": True}], ids=str)
@pytest.mark.parametrize("contrast", [10.0, 18.0, 25.0, 33.0, 45.0, 55.0])
def test_accuracy_pays_most_for_a_decibel_and_speed_least(contrast: float, kind: dict[str, bool]) -> None:
    speed, balanced, accuracy = (price(word, contrast, **kind) for word in ("speed", "balanced", "accuracy"))
    assert speed < balanced < accuracy or (kind and speed < balanced == accuracy)
    assert all(price(word, CLEAR, **kind) == 0 or kind for word in PREFERENCES)


def test_a_named_scheme_twice_as_fast_at_a_cosine_of_993_is_a_bargain_unless_accuracy_is_preferred() -> None:
    """18.5 dB are a cosine of 0.993; 32 dB, one of 0.9997."""
    fast, exact = 0.45, 0.95
    for word in ("speed", "balanced", "size"):
        assert fast + price(word, 18.5) < exact + price(word, 32.0)
    assert fast + price("accuracy", 18.5) > exact + price("accuracy", 32.0)


def test_no_preference_but_speed_and_size_lowers_the_bar_of_detectors() -> None:
    assert {terms(word, is_detector=True).bar for word in ("balanced", "accuracy")} == {56.0}
    assert terms("speed", is_detector=True).bar == terms("size", is_detector=True).bar == 50.0
    assert terms("balanced", is_recurrent=True).bar == 42.0


@pytest.mark.parametrize("kind", ["is_recurrent", "is_detector"])
def test_what_is_not_the_users_is_held_to_the_bar_of_other_models(kind: str) -> None:
    made = terms("balanced", **{kind: True})
    assert made.noise_price(seen(data=50.0, other=38.0)) == pytest.approx(made.noise_price(seen(data=50.0)), rel=1e-6)
    assert made.noise_price(seen(data=50.0, other=20.0)) > 1.2 * made.noise_price(seen(data=50.0))
    assert made.noise_price(seen(made_up=38.0)) > made.noise_price(seen(made_up=50.0))
    usual = terms("balanced")
    assert usual.noise_price(seen(data=50.0, other=38.0)) > usual.noise_price(seen(data=50.0))


@pytest.mark.parametrize(
    ("ratio", "spread", "size", "kept"),
    [
        (0.8, 0.05, 1.5, True),
        (1.2, 0.05, 0.5, False),
        (0.97, 0.1, 0.9, True),
        (0.97, 0.1, 1.0, True),
        (0.97, 0.1, 1.1, False),
        (1.3, 0.5, 0.9, True),
    ],
)
def test_what_cannot_be_decided_is_decided_for_the_smaller_file(
    ratio: float, spread: float, size: float, kept: bool
) -> None:
    sizes, speed = {"best": size, "float": 1.0}, PlanTime(ratio, spread)
    assert _is_worthwhile(bench(size=sizes.get), "best", "float", speed) is kept  # type: ignore[arg-type]


def test_efforts_are_bounded_counts_that_follow_from_the_cost_of_a_plan() -> None:
    counts = {word: [search.measurements(cost) for cost in (1e-3, 0.5, 1000)] for word, search in SEARCHES.items()}
    for quick, normal, thorough in zip(*(counts[word] for word in ("quick", "normal", "thorough")), strict=True):
        assert 0 < quick < normal < thorough
    for word, (many, some, few) in counts.items():
        assert (many, few) == (SEARCHES[word].most, SEARCHES[word].least) and many >= some >= few


def test_a_plan_without_integer_kernels_does_no_harm_by_them() -> None:
    assert harm(bench(), Plan("auto", "ort-cpu"), [], 8) == {}
