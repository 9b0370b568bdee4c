"""Inputs made up for a few hundred bytes of model take neither gigabytes nor minutes."""

from __future__ import annotations

import numpy as np
import pytest
from graph.test_made_up import F32, I64, Shape, feeds

from onnxq.made_up import pictures, sounds
from onnxq.runtime.session import Input


@pytest.mark.parametrize(
    "name",
    [
        "mod(x, x - x)",
        "floordiv(x, 0)",
        "ceildiv(8, x - x)",
        "*".join(["x"] * 17) + "-x",
        "(" * 24 + "x" + ")**3" * 24,
        f"{'9' * 4000}*x",
        "9**3**3**3",
    ],
    ids=["mod by 0", "floordiv by 0", "ceildiv by 0", "a product", "powers of powers", "a long number", "a tower"],
)
def test_dimensions_beyond_memory_are_not_drawn(name: str) -> None:
    """They are one where the symbol is one, and beyond all bounds at the next length."""
    made = feeds(Input("x", F32, (name, "x", 64)), accepts=lambda feed: feed["x"].shape[1] in (1, 12))
    assert all(feed["x"].nbytes < 1 << 25 for feed in made)


@pytest.mark.parametrize("name", ["position_ids", "segment_ids", "mel"])
@pytest.mark.parametrize("shape", [(0, 1, 1 << 50), ("n-n", "n", "n+1125899906842624")], ids=["fixed", "chosen"])
def test_beside_a_dimension_of_0_nothing_is_drawn(name: str, shape: Shape) -> None:
    made = feeds(Input(name, F32 if name == "mel" else I64, shape))
    assert made and all(feed[name].shape[0] == 0 < feed[name].shape[2] for feed in made)


def test_of_a_large_batch_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(pictures, "picture", lambda rng, *size: np.full(size, drawn.append(1) or len(drawn)))
    made = feeds(Input("x", F32, (10_000, 3, 8, 8)))
    assert all(feed["x"].shape == (10_000, 3, 8, 8) for feed in made) and len(drawn) < 1000
    assert np.ptp(made[0]["x"][:64], axis=0).min() > 0


def test_long_spectrograms_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "STEPS", 20)
    made = sounds.spectrogram(np.random.default_rng(0), "noise", "in decades", (4, 8, 50), 2)
    assert made.shape == (4, 8, 50) and np.array_equal(made[0], made[3])
    assert np.array_equal(made[..., :20], made[..., 20:40]) and not np.array_equal(made[..., :10], made[..., 10:20])


def test_long_waveforms_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = sounds.waveform(np.random.default_rng(0), "noise", (200, 30), 1)
    assert len(np.unique(batch, axis=0)) == 64
    monkeypatch.setattr(sounds, "SAMPLES", 40)
    monkeypatch.setitem(sounds.SOUNDS, "counted", lambda rng, n: np.arange(n) if n <= 20 else pytest.fail(str(n)))
    made = sounds.waveform(np.random.default_rng(0), "counted", (2, 50), 1)
    assert made.dtype == np.float32 and np.array_equal(made, np.tile(np.arange(50) % 20, (2, 1)))
    assert sounds.waveform(np.random.default_rng(0), "counted", (50, 2), 0).shape == (50, 2)


def test_large_pictures_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "SIDE", 10)
    monkeypatch.setattr(pictures, "PIXELS", 300)
    made = feeds(Input("x", F32, (5, 3, 8, 25)))[0]["x"]
    assert made.shape == (5, 3, 8, 25) and np.array_equal(made[..., :10], made[..., 10:20])
    assert np.array_equal(made[0], made[3]) and not np.array_equal(made[0], made[1])
    assert len(np.unique(made[0, 0, :, :10])) > 10


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (37, 1), (31, 64), (90, 90)], ids=str)
def test_leaves_are_looked_for_only_where_they_are(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [pictures.picture(np.random.default_rng(seed), *size, 3) for seed in range(20)]
    monkeypatch.setattr(pictures, "reached", lambda centre, radius, size: np.arange(size))
    for seed, image in enumerate(quick):
        assert image.tobytes() == pictures.picture(np.random.default_rng(seed), *size, 3).tobytes()
