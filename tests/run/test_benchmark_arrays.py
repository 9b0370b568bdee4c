"""Benchmarks of arrays, of folders of them, and of weights made up in any way: as table, JSON, CSV and picture."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from onnxq import analysis, formats
from onnxq.analysis import synthetic
from onnxq.analysis.benchmarks.plot import save_plot
from onnxq.cli import main
from onnxq.errors import BadOutput, BadRecipe, MissingRuntime, NothingToDo
from onnxq.formats import Granularity

W = np.random.default_rng(0).standard_normal((24, 96)).astype(np.float32)
V = np.random.default_rng(1).standard_normal((8, 3, 64))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(*words: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, ["benchmark", *[str(word) for word in words]])
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.stderr


def test_an_array_is_a_linear_layer() -> None:
    """SQNR of the weights and of Wx, and the share of equal decisions, transcribed."""
    found = analysis.benchmark_arrays(V, ["int4"], ["block32"], inputs=500, seed=3)
    ((row,),) = found.tables.values()
    got = formats.quantize(V, "int4", Granularity(2, 32)).dequantize()
    x = np.random.default_rng(4).standard_normal((500, 64), dtype=np.float32)
    y, z = x @ V.astype(np.float32).reshape(24, 64).T, x @ got.reshape(24, 64).T
    assert row.stats is not None
    assert row.stats.mse == pytest.approx(np.mean((got - V.astype(np.float32)) ** 2), rel=1e-5)
    assert row.output_sqnr == pytest.approx(10 * np.log10(np.sum(y**2) / np.sum((y - z) ** 2)), rel=1e-4)
    assert row.retention == pytest.approx(100 * np.mean(y.argmax(1) == z.argmax(1)))


def test_several_arrays_and_all_of_them() -> None:
    found = analysis.benchmark_arrays({"w": W, "v": V, "row": W[0], "one": 3.0}, ["int8", "nf4"])
    assert list(found.tables) == ["w", "v", "row", "one", "all arrays"]
    numbers = [W, V, W[0], np.array(3.0)]
    for row in found.tables["all arrays"]:
        assert row.stats is not None
        assert row.stats.count == sum(x.size for x in numbers)
        rows = [next(r for r in found.tables[name] if r.form == row.form) for name in ("w", "v", "row", "one")]
        total = sum(r.stats.mse * x.size for r, x in zip(rows, numbers, strict=True) if r.stats)
        assert row.stats.mse == pytest.approx(total / row.stats.count, rel=1e-9)
    (row_int8,) = (r for r in found.tables["row"] if r.form.format == "int8")
    assert row_int8.stats is not None and row_int8.stats.sqnr < 60  # a vector is no channel for each number
    assert row_int8.retention is None and row_int8.output_sqnr is None


def test_what_a_format_cannot_hold_is_said() -> None:
    found = analysis.benchmark_arrays({"good": W, "bad": [[1.0, np.nan]]}, ["int8", "float16"])
    assert all("holds nan at [0, 1]" in row.problem for row in found.tables["bad"])
    assert found.tables["all arrays"] == ()
    large = analysis.benchmark_arrays(np.full((4, 64), 3e38, np.float32), ["int8"])
    assert large.tables["array"][0].output_sqnr is None and large.tables["array"][0].stats is not None
    with pytest.raises(ValueError, match="array 'x' is an array of"):
        analysis.benchmark_arrays({"x": ["a"]})
    with pytest.raises(NothingToDo):
        analysis.benchmark_arrays({})


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", W)
    np.savez(tmp_path / "b.npz", v=V, ids=np.arange(9))
    (tmp_path / "notes.txt").write_text("not an array")
    tables = json.loads(run(tmp_path, "-w", "int4", "-g", "channel", "--json"))["tables"]
    assert list(tables) == ["a.npy", "b.npz/v", "all arrays"]
    for name, x in (("a.npy", W), ("b.npz/v", V)):
        wanted = analysis.tensor_error(x, "int4", Granularity(0))
        assert tables[name][0]["sqnr"] == pytest.approx(wanted.sqnr)
    text = run(tmp_path / "a.npy", "-w", "int4", "-w", "nf4")
    assert "a weights" in text and "int4 block32" in text
    assert "all arrays\n" in run(tmp_path, "-w", "int4", "-g", "tensor")
    assert "leave out --data" in run(tmp_path, "--data", "x.npz", exit_code=1)
    np.save(tmp_path / "c.npy", np.arange(5))
    assert "holds no arrays of floating-point numbers" in run(tmp_path / "c.npy")  # nothing to do is no failure


def test_made_up_weights_of_any_size_and_seed() -> None:
    found = analysis.benchmark_made(
        ["outliers rate=0.1 size=5", synthetic.Made("low_rank", {"rank": 2})],
        ["int4"],
        ["tensor"],
        sizes=[(8, 64), (16, 32)],
        seeds=(1, 2),
        inputs=100,
    )
    assert len(found.tables) == 8
    (row,) = found.tables["outliers rate=0.1 size=5 16×32 seed 2"]
    w = synthetic.outliers((16, 32), 2, rate=0.1, size=5)
    assert row.stats is not None
    assert row.stats.mse == pytest.approx(analysis.tensor_error(w, "int4").mse)
    assert list(analysis.benchmark_made(["gaussian"], ["int4"], ["tensor"], inputs=9).tables) == ["gaussian"]


def test_makers_do_as_their_parameters_say() -> None:
    shape = (64, 4096)
    w = synthetic.gaussian(shape, 1, mean=3, deviation=0.5)
    assert (w.mean(), w.std()) == (pytest.approx(3, abs=0.01), pytest.approx(0.5, rel=0.01))
    u = synthetic.uniform(shape, 1, low=2, high=5)
    assert 2 <= u.min() < 2.01 and 4.99 < u.max() <= 5
    spreads = np.sort(synthetic.channels(shape, decades=4).std(axis=1))
    assert spreads[-1] / spreads[0] == pytest.approx(1e4, rel=0.1)
    assert (np.abs(synthetic.outliers(shape, rate=0.25, size=9)) == 9).mean() == 0.25
    assert np.linalg.matrix_rank(synthetic.low_rank(shape, rank=5).astype(np.float64), tol=1e-2) == 5
    assert synthetic.low_rank(shape, rank=5).var() == pytest.approx(1, rel=0.2)
    noisy = np.linalg.svd(synthetic.low_rank(shape, rank=5, noise=0.1), compute_uv=False)
    assert noisy[5] == pytest.approx(0.1 * (np.sqrt(64) + np.sqrt(4096)), rel=0.1)
    for correlation in (-0.5, 0.0, 0.9):
        c = synthetic.correlated(shape, 2, correlation=correlation)
        assert c.std() == pytest.approx(1, abs=0.02)
        assert np.mean(c[:, 1:] * c[:, :-1]) == pytest.approx(correlation, abs=0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cauchy", "unknown maker of weights 'cauchy'; choose one of gaussian"),
        ("", "unknown maker"),
        ("gaussian rate=1", "gaussian weights have no 'rate'; they have mean, deviation"),
        ("gaussian mean", "'mean' is no parameter of gaussian weights"),
        ("gaussian mean=x", "no parameter"),
        ("outliers rate=2", "cannot have rate 2: 0 to 1"),
        ("outliers rate=nan", "cannot have rate nan"),
        ("correlated correlation=1.5", "-1 to 1"),
        ("low_rank rank=1.5", "cannot have rank 1.5"),
        ("low_rank rank=0", "cannot have rank 0"),
    ],
)
def test_makers_refuse_what_they_do_not_know(text: str, words: str) -> None:
    with pytest.raises(BadRecipe, match=words):
        synthetic.parse(text)


def test_sizes_have_limits() -> None:
    for size in ((0, 5), (1 << 21, 1), (1 << 14, 1 << 14)):
        with pytest.raises(BadRecipe, match="are not made"):
            analysis.benchmark_made(["gaussian"], ["int4"], ["tensor"], sizes=[size])
    assert "invalid size '5'" in run("--size", "5", exit_code=1)
    assert "leave out the model, arrays and data" in run("w.npy", "--make", "gaussian", exit_code=1)


def test_csv_and_json_hold_the_same(tmp_path: Path) -> None:
    words = (
        "--make",
        "gaussian mean=1",
        "--size",
        "16x64",
        "--seeds",
        "2",
        "--seed",
        "5",
        "-w",
        "int4",
        "-w",
        "float16",
    )
    rows = list(csv.DictReader(io.StringIO(run(*words, "--csv"))))
    tables = json.loads(run(*words, "--json"))["tables"]
    assert list(tables) == ["gaussian mean=1 seed 5", "gaussian mean=1 seed 6"]
    flat = [{"weights": name} | row for name, found in tables.items() for row in found]
    assert len(rows) == len(flat) == 4
    for row, wanted in zip(rows, flat, strict=True):
        assert row == {key: "" if x is None else str(x) for key, x in wanted.items()}


@pytest.mark.sweep
def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = analysis.benchmark_made(["gaussian", "uniform"], ["int4", "nf4", "int8"], inputs=0, sizes=[(8, 64)])
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        save_plot(found, tmp_path / f"p{suffix}")
        assert (tmp_path / f"p{suffix}").read_bytes().startswith(start)
    text = (tmp_path / "p.svg").read_text()
    for label in ("int4 block32", "nf4 block64", "int8 channel", "gaussian", "bits a weight"):
        assert f"<!-- {label} -->" in text
    with pytest.raises(BadOutput):
        save_plot(found, tmp_path / "p.png")
    save_plot(found, tmp_path / "p.png", replace=True)
    run("--make", "gaussian", "--size", "8x64", "-w", "int4", "--plot", tmp_path / "q.png")
    assert "exists" in run("--make", "gaussian", "-w", "int4", "--plot", tmp_path / "q.png", exit_code=1)


@pytest.mark.sweep
def test_names_in_a_plot_are_names(tmp_path: Path) -> None:
    """Neither TeX, nor what matplotlib leaves out of legends, nor longer than there is room for."""
    pytest.importorskip("matplotlib")
    names = ["_hidden", "a$\\nosuch$", "cost$1", "x" * 5000 + "\n", "seen"]
    arrays = {name: np.random.default_rng(i).standard_normal((8, 64)) for i, name in enumerate(names)}
    np.savez(tmp_path / "a.npz", **{name.replace("/", "_"): x for name, x in arrays.items()})
    run(tmp_path / "a.npz", "-w", "int4", "--plot", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    for name in (" _hidden", "a$\\nosuch$", "cost$1", "x" * 39 + "…", "seen"):
        assert f"<!-- {name} -->" in text, name


def test_a_plot_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = analysis.benchmark_made(["gaussian"], ["int4"], ["tensor"], inputs=0, sizes=[(8, 64)])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingRuntime, match=r"needs matplotlib: pip install 'onnxq\[plot\]'"):
        save_plot(found, tmp_path / "p.png")
    with pytest.raises(BadOutput, match=r"ends in \.png, \.svg, \.pdf"):
        save_plot(found, tmp_path / "p.gif")
    with pytest.raises(NothingToDo, match="1 to 10 kinds"):
        save_plot(analysis.Benchmark({}), tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []
