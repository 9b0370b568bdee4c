"""Models whose outputs are decisions alone: labels, tokens, places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from tiny import normal

import onnxq
from onnxq.cli import main
from onnxq.runtime import native

pytestmark = pytest.mark.usefixtures("quick")

TEXT = """g (float[N,64] x) => (int64[N] label) {
    h = MatMul(x, w1)  r = Relu(h)  z = MatMul(r, w2)  label = ArgMax<axis=1, keepdims=0>(z)
}"""


def saved(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    constants = {"w1": normal(64, 96, seed=seed), "w2": normal(96, 10, seed=seed + 1)}
    return tiny.save(tiny.model(TEXT, constants), folder)


def samples(count: int = 40) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((50, 64)).astype(np.float32)} for _ in range(count)]


def test_another_model_is_not_identical(tmp_path: Path) -> None:
    data = tmp_path / "x.npz"
    np.savez(data, x=np.stack([feed["x"] for feed in samples(12)]))
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", seed=7)
    for more in ([], ["--data", str(data)]):
        done = CliRunner().invoke(main, ["check", str(a), str(b), "--fail-below", "sqnr=10", *more])
        assert done.exit_code == 1, done.output
        assert "identical" not in done.output and "flips" in done.output


def test_finer_formats_are_taken_until_few_decisions_flip(tmp_path: Path) -> None:
    model, data = saved(tmp_path), samples()
    coarse = onnxq.quantize(model, tmp_path / "coarse.onnx", onnxq.Recipe("int2", min_sqnr=-np.inf), data=data)
    fine = onnxq.quantize(model, tmp_path / "fine.onnx", onnxq.Recipe("int2", min_sqnr=20), data=data)
    assert coarse.check is not None and coarse.check.flips > 0.1
    assert fine.check is not None and fine.check.flips <= 0.032 and fine.check.sqnr >= 20


def test_a_near_tie_without_the_library_is_no_other_model(tmp_path: Path) -> None:
    """onnxruntime's kernels and ours round differently: of some of these models one decision of hundreds differs."""
    if native.path() is None:
        pytest.skip("there is no library")
    flipped = 0
    for seed in range(3):
        model, data = saved(tmp_path, seed), samples(8)
        recipe = onnxq.Recipe("nf4", min_sqnr=-np.inf, keep_slow=True)
        result = onnxq.quantize(model, tmp_path / "q.onnx", recipe, target="onnxq", data=data, force=True)
        session = onnxruntime.InferenceSession(result.output, providers=["CPUExecutionProvider"])
        ours = onnxq.session(result.output)
        flipped += sum(bool((session.run(None, feed)[0] != ours.run(None, feed)[0]).any()) for feed in data)
    assert flipped
