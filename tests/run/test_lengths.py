"""Ranges found at one length do not fit a length of one: it is said, checked and mended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.checking import judging
from onnxq.planning.counts.growth import REASON
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
WIDTH, WORDS = 32, 60


def transformer(folder: Path, more: str = "") -> Path:
    """Scores minus their mean over the text, times a large number: at a length of one they are what a longer text
    never shows, because nothing is taken from the last word but a share that falls with the length."""
    body = """
    g (int64[batch, seq] ids) => (float[batch, seq, 16] y) {
        x = Gather(table, ids)
        q = MatMul(x, wq)
        mean = ReduceMean<axes = [1], keepdims = 1>(q)
        strong = Mul(mean, eight)
        mixed = Add(q, strong)
        m = MatMul(mixed, w1)
        h = Relu(m)
        n = MatMul(h, w2)
        y = MatMul(n, w3)
        MORE
    }""".replace("MORE", more)
    shapes = {"table": (WORDS, WIDTH), "wq": (WIDTH, 64), "w1": (64, 96), "w2": (96, 64), "w3": (64, 16)}
    constants = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    constants["table"] = np.random.default_rng(9).standard_normal(shapes["table"]).astype(np.float32)
    return tiny.save(tiny.model(body, constants | {"eight": np.array([8.0], np.float32)}), folder)


def texts(length: int, count: int = 24) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(length)
    return [{"ids": rng.integers(0, WORDS, (1, length))} for _ in range(count)]


def decibels(path: Path, output: Path, length: int) -> float:
    a, b = Session(path), Session(output)
    found = [(a.run(feed)[0], b.run(feed)[0]) for feed in texts(length, 30)]
    return tiny.sqnr(*(np.concatenate(each) for each in zip(*found, strict=True)))


def test_ranges_of_one_length_fit_a_length_of_one(tmp_path: Path) -> None:
    path = transformer(tmp_path)
    recipe = onnxq.Recipe("w8a8", keep_slow=True, min_sqnr=28)
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=texts(24))
    check = result.check
    assert check is not None and check.proves
    (note,) = (note for note in check.notes if "'ids'" in note)
    assert "axis 1 ('seq') of input 'ids' is 24 in all of the data" in note
    assert note.endswith("checked at other sizes too; if the model will see such, give samples of these as well")
    assert {"data", "the data at seq = 1", "the data at seq = 12", "the data at seq = 48"} == set(check.kinds)
    assert result.plan.changes_anything
    assert check.sqnr == min(check.kinds.values()) >= 28
    assert decibels(path, tmp_path / "q.onnx", 24) > 25
    assert decibels(path, tmp_path / "q.onnx", 1) > 25


def test_of_two_dimensions_that_both_may_be_the_batch_each_is_also_one_alone(tmp_path: Path) -> None:
    """So that a length of one is seen with all rows of the data."""
    rows = lambda seed, length: np.random.default_rng(seed).standard_normal((2, length, WIDTH), np.float32)  # noqa: E731
    body = "g (float[s77, s27, 32] x) => (float[s77, s27, 16] y) { m = MatMul(x, w1) h = Relu(m) y = MatMul(h, w2) }"
    path = tiny.save(tiny.model(body, {"w1": tiny.normal(WIDTH, 96), "w2": tiny.normal(96, 16, seed=1)}), tmp_path)
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=[{"x": rows(i, 24)} for i in range(24)])
    assert result.check is not None
    sizes = ("s77 = 1, s27 = 1", "s77 = 1", "s27 = 1", "s77 = 1, s27 = 12", "s77 = 4, s27 = 48")
    assert set(result.check.kinds) == {"data", *(f"the data at {each}" for each in sizes)}


def test_places_that_grow_with_a_size_are_right_at_larger_ones(tmp_path: Path) -> None:
    """They are put beside channels, 8 times as large as the data show."""
    path = tiny.save(
        tiny.model(
            """g (float[1, 3, H, W] x) => (float[1, 16, H, W] y) {
                c = Conv<pads = [1, 1, 1, 1]>(x, w1)  h = Relu(c)
                w = Shape<start = 3, end = 4>(x)  k = Squeeze(w)  r = Range(nought, k, one)  p = Cast<to = 1>(r)
                n = Shape<start = 2, end = 3>(x)  s = Concat<axis = 0>(ones, n, w)  e = Expand(p, s)
                z = Concat<axis = 1>(h, e)  d = Conv<pads = [1, 1, 1, 1]>(z, w2)  y = Relu(d) }""",
            {
                "w1": tiny.normal(16, 3, 3, 3),
                "w2": tiny.normal(16, 17, 3, 3, seed=1),
                "nought": np.int64(0),
                "one": np.int64(1),
                "ones": np.array([1, 1]),
            },
        ),
        tmp_path,
    )
    images = lambda width: np.random.default_rng(width).standard_normal((1, 3, 16, width), np.float32)  # noqa: E731
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=[{"x": images(32)} for _ in range(8)])
    feed = {"x": images(256)}
    assert tiny.sqnr(Session(path).run(feed)[0], Session(tmp_path / "q.onnx").run(feed)[0]) > 40


@pytest.mark.parametrize("summed", ["s = ReduceSum<keepdims = 1>(a, first)", "s = CumSum(a, one)"])
def test_sums_over_an_open_size_are_right_at_larger_ones(summed: str, tmp_path: Path) -> None:
    """Data of several lengths say nothing of the sums at any other."""
    body = f"""g (float[N, S, 32] x) => (float[N, R, 16] y) {{
        l = MatMul(x, w1)  a = Relu(l)  {summed}  b = MatMul(s, w2)  c = Relu(b)  y = MatMul(c, w3) }}"""
    kernels = {"w1": tiny.normal(32, 64), "w2": tiny.normal(64, 96, seed=1), "w3": tiny.normal(96, 16, seed=2)}
    path = tiny.save(tiny.model(body, kernels | {"first": np.array([1]), "one": np.int64(1)}), tmp_path)
    feed = lambda i, length: {"x": np.random.default_rng(i).standard_normal((1, length, 32), np.float32)}  # noqa: E731
    data, recipe = [feed(i, (8, 12, 16)[i % 3]) for i in range(24)], onnxq.Recipe("w8a8", keep_slow=True)
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data, target="ort-cpu")
    assert {choice.node for choice in result.plan if choice.reason.startswith(REASON)} == {"b", "y"}
    longer = feed(99, 256)
    assert tiny.sqnr(Session(path).run(longer)[0], Session(tmp_path / "q.onnx").run(longer)[0]) > 30


PLACES = """n = Shape<start = 1, end = 2>(x) k = Squeeze(n) r = Range(nought, k, one) p = Cast<to = 1>(r)
    c = Unsqueeze(p, last) """


@pytest.mark.parametrize(
    "grown",
    [
        "v, z = TopK<axis = 1>(h, first) b = Cast<to = 1>(z) e = ReduceMax<axes = [2], keepdims = 1>(b)",
        "a = Shape<start = 0, end = 2>(x) z = ReduceProd(a) b = Cast<to = 1>(z) e = Reshape(b, ones)",
        PLACES + "l = Cast<to = 1>(k) e = Mod<fmod = 1>(c, l)",
        PLACES + "a = ReduceSumSquare(p) b = Sqrt(a) e = Reshape(b, ones)",
        "b = ReduceL1<axes = [1], keepdims = 1>(f) e = Unsqueeze(b, last)",
        "b = ReduceL2<axes = [1], keepdims = 1>(f) e = Unsqueeze(b, last)",
        PLACES + "a = GreaterOrEqual(p, c) t = Cast<to = 1>(a) b = MatMul(f, t) e = Unsqueeze(b, last)",
        "n = Shape<start = 1, end = 2>(x) s = Concat<axis = 0>(n, n) a = ConstantOfShape<value = float[1] {1}>(s) "
        "t = Trilu<upper = 1>(a) b = MatMul(f, t) e = Unsqueeze(b, last)",
    ],
    ids=["best", "sizes", "rest", "squares", "distances", "distance", "triangle", "cut-square"],
)
def test_what_is_counted_along_a_text_is_right_in_longer_ones(tmp_path: Path, grown: str) -> None:
    """It is put beside activations, 32 times as large as the data show."""
    body = f"""g (float[N, S, 32] x, bool[N, S] m) => (float[N, S, 64] y) {{
        d = MatMul(x, w1)  h = Relu(d)  f = Cast<to = 1>(m)  {grown}
        j = Mul(e, part)  o = Shape<start = 0, end = 2>(x)  i = Concat<axis = 0>(o, first)  q = Expand(j, i)
        g = Concat<axis = 2>(h, q)  w = MatMul(g, w2)  u = Relu(w)  y = MatMul(u, w3) }}"""
    kernels = {"w1": tiny.normal(32, 64), "w2": tiny.normal(65, 64, seed=1), "w3": tiny.normal(64, 64, seed=2)}
    numbers = {"nought": np.int64(0), "one": np.int64(1), "last": np.array([-1]), "first": np.array([1])}
    more = {"part": np.float32(1 / 4), "ones": np.array([1, 1, 1])}
    path = tiny.save(tiny.model(body, kernels | numbers | more), tmp_path)
    rng = np.random.default_rng(0)
    feed = lambda length: {  # noqa: E731
        "x": rng.standard_normal((1, length, 32), np.float32),
        "m": np.ones((1, length), np.bool_),
    }
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=[feed(16) for _ in range(8)], target="ort-cpu")
    longer = feed(512)
    assert tiny.sqnr(Session(path).run(longer)[0], Session(tmp_path / "q.onnx").run(longer)[0]) > 40


def test_data_of_several_lengths_are_left_alone(tmp_path: Path) -> None:
    path = transformer(tmp_path)
    data = [feed for length in (1, 7, 24) for feed in texts(length, 8)]
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=data)
    assert result.check is not None
    assert not any("'ids'" in note for note in result.check.notes) and not result.check.kinds


def test_without_the_other_lengths_the_ranges_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first test is worth."""
    monkeypatch.setattr(judging, "with_other_lengths", lambda model, session, trials, seen: trials)
    path = transformer(tmp_path)
    onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=texts(24))
    assert decibels(path, tmp_path / "q.onnx", 1) < decibels(path, tmp_path / "q.onnx", 24) - 10


def test_a_length_that_only_the_prepared_model_takes_is_left_out(tmp_path: Path) -> None:
    """Nodes whose results nobody reads are not in it, but are run in the user's file."""
    shape = "fours = Constant<value_ints = [4, -1]>() dead = Reshape(ids, fours)"
    path = transformer(tmp_path, shape)
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=texts(24))
    assert result.check is not None
    assert set(result.check.kinds) == {"data", "the data at seq = 12", "the data at seq = 48"}
    without = onnxq.quantize(path, tmp_path / "r.onnx", onnxq.Recipe("w8a16", keep_slow=True))
    assert without.check is not None and without.check.is_known


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is tried where processes cannot be forked")
def test_a_length_at_which_onnxruntime_crashes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, here = Session.run, os.getpid()

    def crashing(self: Session, feed: Mapping[str, NDArray], *rest: Any) -> list[NDArray]:
        if feed["ids"].shape[1] == 12:
            assert os.getpid() != here
            os.kill(os.getpid(), signal.SIGFPE)
        return run(self, feed, *rest)

    monkeypatch.setattr(Session, "run", crashing)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # whatever other tests have left
    path = transformer(tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=texts(24))
    assert result.check is not None
    assert set(result.check.kinds) == {"data", "the data at seq = 1", "the data at seq = 48"}


def test_a_length_at_which_one_output_takes_no_short_format_is_named_and_others_keep_theirs(tmp_path: Path) -> None:
    """Over one row the deviation is nearly none, by which numbers are divided before they turn."""
    body = """
    g (float[batch, seq, 64] x) => (float[batch, seq, 32] y, float[batch, seq, 16] z) {
        [good] a = MatMul(x, w0)  b = Relu(a)  y = MatMul(b, w1)
        [bad] c = MatMul(x, w2)
        mean = ReduceMean<axes = [1], keepdims = 1>(c)  d = Sub(c, mean)  e = Mul(d, d)
        f = ReduceMean<axes = [1], keepdims = 1>(e)  h = Add(f, tiny)  deviation = Sqrt(h)
        i = Div(c, deviation)  j = Sin(i)  [behind] z = MatMul(j, w3)
    }"""
    shapes = {"w0": (64, 96), "w1": (96, 32), "w2": (64, 64), "w3": (64, 16)}
    constants: dict[str, NDArray] = {
        name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())
    }
    path = tiny.save(tiny.model(body, {**constants, "tiny": np.array(1e-6, np.float32)}), tmp_path)
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((2, 12, 64), np.float32)} for _ in range(16)]
    output = tmp_path / "q.onnx"
    result = onnxq.quantize(path, output, onnxq.Recipe("bf16", keep_slow=True), data=data, target="onnxq")
    formats = {choice.node: choice.format for choice in result.plan}
    assert formats["bad"] is None and formats["good"] == formats["behind"] == "bfloat16"
    reason = "a shorter format costs too much accuracy here: 'z' of the data at seq = 1"
    assert result.plan.choices["bad"].reason == reason
    a, b = Session(path), Session(output)
    for length in (1, 5, 40):
        feed = {"x": rng.standard_normal((3, length, 64), np.float32)}
        assert min(tiny.sqnr(x, y) for x, y in zip(a.run(feed), b.run(feed), strict=True)) > 35


def test_lengths_at_which_no_number_comes_out_are_no_obstacle(tmp_path: Path) -> None:
    """From 100 words on everything is the root of a negative number, also of the longest text that is made up."""
    text = """g (int64[B, S] ids) => (float[B, S, 64] y) {
      e = Gather(table, ids)  n = Shape<start = 1, end = 2>(ids)  f = Cast<to = 1>(n)  r = Sub(most, f)  q = Sqrt(r)
      h = MatMul(e, w)  y = Mul(h, q) }"""
    constants = {"table": tiny.normal(512, 64), "w": tiny.normal(64, 64, seed=1) / 8, "most": np.float32(100)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    check = onnxq.quantize(path, tmp_path / "q.onnx", "fp16", target="onnx").check
    assert check is not None and "a length of 12" in check.kinds and "a length of 128" not in check.kinds
