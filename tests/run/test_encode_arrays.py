"""`onnxq encode` and `decode`: arrays without a model, in every format and kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from onnxq import algorithms, formats, layouts
from onnxq.checkpoints.encode_arrays import encode_arrays, open_arrays
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.cli import main
from onnxq.formats import Granularity

W = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
TYPES = [word for word in formats.names() if formats.get(word).gguf]
OTHERS = {"b": np.arange(3, dtype=np.int64), "v": W[0]}


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("word", [*formats.names(), "uniform3"])
def test_every_format_comes_back(word: str, suffix: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=W, **OTHERS)
    done = run("encode", tmp_path / "w.npz", "-w", word, "-o", tmp_path / f"q{suffix}")
    assert done.exit_code == 0, done.output
    done = run("decode", tmp_path / f"q{suffix}", "-o", tmp_path / "back.npz")
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "back.npz") as back:
        assert sorted(back) == ["b", "v", "w"]
        np.testing.assert_array_equal(back["w"], formats.quantize(W, word).dequantize())
        for name, wanted in OTHERS.items():
            np.testing.assert_array_equal(back[name], wanted)


@pytest.mark.parametrize("word", [word for word in TYPES if word != "bfloat16"])
def test_gguf_of_one_array(word: str, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", W)
    done = run("encode", tmp_path / "w.npy", "-w", word, "-o", tmp_path / "w.gguf")
    assert done.exit_code == 0, done.output
    stored = pytest.importorskip("gguf").GGUFReader(tmp_path / "w.gguf").tensors[0]
    assert f"w  8×256  {word}  {8 * stored.n_bytes / W.size:.2f} bits" in done.output and "codes by rtn" in done.output
    assert run("decode", tmp_path / "w.gguf", "-o", tmp_path / "back.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), formats.quantize(W, word).dequantize())


def test_granularities_and_algorithms(tmp_path: Path) -> None:
    for word, how in (("tensor", Granularity()), ("channel", Granularity(0)), ("block16", Granularity(1, 16))):
        for algorithm in ("rtn", "mse"):
            rows = encode_arrays(
                {"w": W}, tmp_path / "q.npz", "int4", granularity=word, algorithm=algorithm, replace=True
            )
            q = formats.quantize(W, "int4", how)
            assert rows[0].bits == q.bits_per_weight
            stored = open_checkpoint(tmp_path / "q.npz")["w.codes"]
            chosen = algorithms.quantize(W, "int4", how, algorithm)
            np.testing.assert_array_equal(stored, layouts.compact(chosen)["codes"])


def test_floats_of_sixteen_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", W)
    run("encode", tmp_path / "w.npy", "-w", "nf4", "-o", tmp_path / "w.npz")
    for word, suffix in (("float16", ".npy"), ("bfloat16", ".safetensors")):
        done = run("decode", tmp_path / "w.npz", "--dtype", word, "-o", tmp_path / f"back{suffix}")
        assert done.exit_code == 0, done.output
        got = open_arrays(tmp_path / f"back{suffix}")
        (array,) = got.values()
        assert array.dtype == word
        np.testing.assert_array_equal(array, formats.quantize(W, "nf4").dequantize().astype(array.dtype))
    refused = run("decode", tmp_path / "w.npz", "--dtype", "bfloat16", "-o", tmp_path / "no.npz")
    assert refused.exit_code == 1 and "only .safetensors holds" in refused.output


def test_what_cannot_be_done_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", W[:, :33])
    np.save(tmp_path / "nan.npy", np.full((2, 32), np.nan, np.float32))
    (tmp_path / "no.npy").write_text("no array")
    np.savez(tmp_path / "plain.npz", w=W)
    before = sorted(tmp_path.iterdir())
    for command, words in {
        ("encode", "w.npy", "-w", "q4_0", "-o", "x.gguf"): "whole blocks of 32",
        ("encode", "w.npy", "-w", "int5", "-o", "x.npz"): "unknown number format 'int5'",
        ("encode", "w.npy", "-w", "int4", "-o", "x.bin"): "none of .gguf, .safetensors, .npz",
        ("encode", "w.npy", "-w", "int4", "-g", "row", "-o", "x.npz"): "unknown granularity 'row'",
        ("encode", "nan.npy", "-w", "int4", "-o", "x.npz"): "weight 'nan' holds nan at [0, 0]",
        ("encode", "no.npy", "-w", "int4", "-o", "x.npz"): "cannot be read as npy",
        ("encode", "w.npy", "-w", "int4", "-o", "plain.npz"): "exists; give --force",
        ("decode", "plain.npz", "-o", "x.npz"): "was not written by 'onnxq encode'",
        ("decode", "w.npy", "-o", "x.npz"): "neither a safetensors nor an npz",
    }.items():
        paths = [tmp_path / word if "." in word and not word.startswith("-") else word for word in command]
        done = run(*paths)
        assert done.exit_code == 1 and words in done.output, done.output
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "spoiled",
    [
        {"shape": [None, 256]},
        {"shape": "8"},
        {"axis": "one"},
        {"block": 1.5},
        {"parts": [3]},
        {"format": 4},
        {"levels": 3},
    ],
    ids=str,
)
def test_a_description_of_other_types_is_refused(spoiled: dict[str, object], tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=W)
    assert run("encode", tmp_path / "w.npz", "-w", "int4", "-o", tmp_path / "q.npz").exit_code == 0
    with np.load(tmp_path / "q.npz") as file:
        arrays = dict(file)
    table = json.loads(arrays["onnxq.json"].tobytes())
    table["w"] |= spoiled
    np.savez(tmp_path / "q.npz", **arrays | {"onnxq.json": np.frombuffer(json.dumps(table).encode(), np.uint8)})
    done = run("decode", tmp_path / "q.npz", "-o", tmp_path / "back.npz")
    assert done.exit_code == 1
    assert "weight 'w' cannot be decoded" in done.output and "NoneType" not in done.output
    assert not (tmp_path / "back.npz").exists()
