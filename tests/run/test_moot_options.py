"""Options that have no effect where they stand: each is told, once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from onnxq.cli import main

NO_DATA = "no --data is given"
PLANNED = "the plan says what becomes of each node"
CASES = {
    "quantize model.onnx -s w4a16 -o a.onnx --no-check --seed 3 --limit 2 --jobs 2 --max-memory 1MB": (
        NO_DATA,
        ["--limit", "--seed", "--jobs", "--max-memory"],
    ),
    "check model.onnx model.onnx --labels t --limit 2": (NO_DATA, ["--limit", "--labels"]),
    "quantize model.onnx --plan p.json -w nf4 --keep a --block-size 64 --prefer size -o b.onnx --no-check": (
        PLANNED,
        ["--weights", "--keep", "--block-size", "--prefer"],
    ),
    "quantize model.onnx --plan p.json -s w4a16 -o c.onnx --no-check": (PLANNED, []),
    "calibrate --merge r1.ranges r2.ranges -o r.ranges --data none.npz --keep a": (
        "merged as they are",
        ["--keep", "--data"],
    ),
    "export model.onnx -o e --no-check --data d.npz --limit 1": ("nothing is run", ["--data", "--limit"]),
    "convert p.onnx --to gguf -o p.gguf --threads 7 --accuracy-level 2": (
        "without the graph",
        ["--accuracy-level", "--threads"],
    ),
    "export model.onnx -o t --no-check --threads 900": ("wait for each other", ["900"]),
    "benchmark d.npz -w int4 --limit 3 --length 4 --seed 1": (NO_DATA, ["--limit"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moot")
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { [a] y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), path)
    np.savez(path / "d.npz", x=tiny.normal(8, 1, 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for words in (
            "plan model.onnx -s w4a16 -o p.json",
            "quantize model.onnx -s w4a16 -o p.onnx --no-check",
            "calibrate model.onnx --data d.npz -s w8a8 -o r1.ranges --shard 1/2",
            "calibrate model.onnx --data d.npz -s w8a8 -o r2.ranges --shard 2/2",
        ):
            assert CliRunner().invoke(main, words.split()).exit_code == 0, words
    return path


@pytest.mark.parametrize("words", CASES)
def test_what_has_no_effect_is_told(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why, options = CASES[words]
    monkeypatch.chdir(folder)
    with pytest.warns(RuntimeWarning) if options else pytest.MonkeyPatch.context() as caught:
        done = CliRunner().invoke(main, [*words.split(), *(["-f"] if words.startswith("quantize") else [])])
    assert done.exit_code == 0, done.output
    found = [str(each.message) for each in caught if why in str(each.message)] if options else []
    assert [each.split()[0] for each in found] == options
