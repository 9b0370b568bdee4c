"""Sizes that are guessed never take the memory of the machine."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny

import onnxq
from onnxq.errors import BadModel
from onnxq.files import room
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model
from onnxq.runtime.session import Session

#: Attention over all pixels: 10 GB of scores for a picture of 224 × 224, the size that is tried first.
PIXELS = """g (float[B,3,H,W] image) => (float[B,P,16] y) {
  shape = Constant<value_ints = [0, 3, -1]>()  flat = Reshape(image, shape)
  p = Transpose<perm = [0, 2, 1]>(flat)  h = MatMul(p, w)  t = Transpose<perm = [0, 2, 1]>(h)
  scores = MatMul(h, t)  s = Softmax(scores)  v = MatMul(s, h)  y = MatMul(v, u) }"""


@pytest.fixture
def pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(room, "memory", lambda: 1 << 30)
    return tiny.save(tiny.model(PIXELS, {"w": tiny.normal(3, 16), "u": tiny.normal(16, 16, seed=1)}), tmp_path)


def test_a_guess_that_takes_too_much_is_not_made(pixels: Path) -> None:
    model = load_model(pixels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trials = make_up(model, scout(model))
    assert trials.feeds and max(feed["image"].shape[2] for feed in trials.feeds) < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_quantizing_such_a_model(pixels: Path, tmp_path: Path, quick: None) -> None:
    result = onnxq.quantize(pixels, tmp_path / "q.onnx", onnxq.Recipe("w8a8-dynamic", keep_slow=True))
    assert result.check is not None and result.check.sqnr > 20


def test_a_run_within_the_bound_is_the_same(pixels: Path) -> None:
    model = load_model(pixels)
    feed = make_up(model, scout(model)).feeds[0]
    large = {"image": np.zeros((1, 3, 64, 64), np.float32)}
    assert tiny.sqnr(Session(pixels).run(feed)[0], Session(pixels, most_bytes=1 << 28).run(feed)[0]) > 100
    with pytest.raises(BadModel, match=r"Available memory of .* is smaller than requested"):
        Session(pixels, most_bytes=1 << 20).run(large)


def test_the_file_tells_what_runs_and_not_what_was_made_of_it(tmp_path: Path) -> None:
    """Or a preparation that is wrong but for one row of one word would be tried on nothing else."""
    text = "g (int64[batch, seq] ids) => (float[batch, seq, 8] y) { x = Gather(table, ids)  y = Reshape(x, shape) }"
    constants = {"table": tiny.normal(50, 8)}
    path = tiny.save(tiny.model(text, constants | {"shape": np.array([0, 0, 8])}), tmp_path)
    wrong = ir.from_proto(tiny.model(text, constants | {"shape": np.array([1, 1, 8])}))
    shapes = {feed["ids"].shape for feed in make_up(wrong, scout(wrong, path)).feeds}
    assert shapes >= {(1, 128), (1, 12), (1, 1), (2, 12)}
