"""Every importer, by the command: what is missing, misfits, is cut short or no number is one sentence, and no file."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints.encode_arrays import encode_arrays, write_arrays
from onnxq.checkpoints.gguf_file import write_gguf
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.cli import main

pytestmark = pytest.mark.usefixtures("quick")
with np.load(Path(__file__).parents[2] / "models" / "foreign_checkpoints.npz") as file:
    FILES = dict(file)
#: One of each scheme and layout, of weights [32, 64].
CASES = (
    "gptq4", "gptq3_ordered", "awq", "compressed_pack4_affine", "compressed_int8", "compressed_fp8", "compressed_nvfp4",
    "compressed_mxfp4", "bitsandbytes_nf4", "bitsandbytes_nf4_nested", "bitsandbytes_int8", "hqq4", "mlx4",
    "torchao_int4", "torchao_int8", "torchao_fp8",
)  # fmt: skip
TEXT = 'g (float[M,64] x) => (float[M,32] y) { ["layer/MatMul"] y = MatMul (x, "layer.w") }'
W = tiny.normal(64, 32)


def run(folder: Path, checkpoint: str, *more: str) -> Any:
    """The command, which has failed with a sentence and left everything as it was; or has written the model."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = ["import-weights", str(folder / "model.onnx"), str(folder / checkpoint), "-o", str(folder / "q.onnx")]
    done = CliRunner().invoke(main, [*words, "--no-check", *more])
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if done.exit_code == 0:
        assert (folder / "q.onnx").is_file()
        (folder / "q.onnx").unlink()
    else:
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
        said = [line for line in done.stderr.splitlines() if line.strip()]
        assert len(said) == 1 and said[0].startswith("onnxq: ") and "bug" not in said[0], done.stderr
        assert after == before
    return done


def refused(folder: Path, checkpoint: str) -> str:
    done = run(folder, checkpoint)
    assert done.exit_code == 1, done.output
    return str(done.stderr)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the float model."""
    tiny.save(tiny.model(TEXT, {"layer.w": W}), tmp_path)
    return tmp_path


def written(folder: Path, case: str) -> Path:
    path = folder / "theirs"
    path.mkdir()
    (path / "model.safetensors").write_bytes(FILES[f"{case}.safetensors"].tobytes())
    (path / "config.json").write_bytes(FILES[f"{case}.config"].tobytes())
    return path


def spoiled(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Of another size, of none, of another type, and no numbers."""
    yield np.concatenate([x.reshape(-1), x.reshape(-1)])
    yield x.reshape(-1)[:0]
    yield x.reshape(-1).astype(np.float32)[: max(1, x.size // 2)]
    if x.dtype.kind == "f" or x.dtype.name.startswith(("bfloat", "float8")):
        yield np.full_like(x, np.nan)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_checkpoints_of_others(case: str, home: Path) -> None:
    path = written(home, case)
    assert run(home, "theirs", "--match", "unchecked").exit_code == 0  # as it is, it fits
    file, config = path / "model.safetensors", path / "config.json"
    whole = file.read_bytes()
    for length in (0, 3, 8, 40, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert "model.safetensors" in refused(home, "theirs")
    file.write_bytes(whole)
    for damaged in (b"{", b"[1]", b"\xff\xfe"):
        said, _ = config.read_bytes(), config.write_bytes(damaged)
        assert "config.json" in refused(home, "theirs")
        config.write_bytes(said)
    opened = open_checkpoint(file)
    parts, metadata = {name: np.array(x) for name, x in opened.items()}, getattr(opened, "metadata", {})
    sentences = 0
    for name, x in parts.items():
        for changed in (None, *spoiled(x)):
            left = {n: y for n, y in parts.items() if n != name} | ({} if changed is None else {name: changed})
            save(file, left, metadata)
            sentences += run(home, "theirs", "--match", "unchecked").exit_code == 1
    assert sentences >= 3


def save(path: Path, tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    path.unlink(missing_ok=True)
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8 : 8 + length]) | {"__metadata__": metadata}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_another_model(case: str, home: Path) -> None:
    """Its layer has other sizes than the product that it is called like."""
    tiny.save(tiny.model(TEXT.replace("64", "96"), {"layer.w": tiny.normal(96, 32)}), home)
    written(home, case)
    assert "layer" in refused(home, "theirs")


@pytest.mark.parametrize("suffix", [".gguf", ".npz", ".safetensors"])
def test_files_cut_short(suffix: str, home: Path) -> None:
    path = home / f"w{suffix}"
    if suffix == ".gguf":
        write_gguf(path, [("layer.weight", lambda: formats.quantize(np.ascontiguousarray(W.T), "q8_0"))])
    else:
        encode_arrays({"layer.weight": np.ascontiguousarray(W.T)}, path, "int4")
    assert run(home, path.name).exit_code == 0
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 12):
        path.write_bytes(whole[:length])
        assert path.name in refused(home, path.name)
    path.unlink()
    assert path.name in refused(home, path.name)


def test_a_header_without_metadata_is_no_damage(home: Path) -> None:
    """MLX writes null there."""
    file = written(home, "mlx4") / "model.safetensors"
    save(file, {name: np.array(x) for name, x in open_checkpoint(file).items()}, None)  # type: ignore[arg-type]
    assert run(home, "theirs", "--match", "unchecked").exit_code == 0
    save(file, {name: np.array(x) for name, x in open_checkpoint(file).items()}, [])  # type: ignore[arg-type]
    assert "does not describe tensors" in refused(home, "theirs")


@pytest.mark.parametrize("case", ["compressed_nvfp4", "compressed_mxfp4", "compressed_pack4_affine"])
def test_a_scale_by_another_name_is_none(case: str, home: Path) -> None:
    """Of fine-grained float8 alone it is `weight_scale_inv`."""
    file = written(home, case) / "model.safetensors"
    opened = open_checkpoint(file)
    parts = {name.replace("weight_scale", "weight_scale_inv"): np.array(x) for name, x in opened.items()}
    save(file, parts, getattr(opened, "metadata", {}))
    assert "weight_scale" in refused(home, "theirs")


@pytest.mark.parametrize(
    ("case", "part", "number"),
    [
        pytest.param("compressed_nvfp4", "weight_global_scale", 1e-39, id="a divisor without a reciprocal"),
        pytest.param("compressed_nvfp4", "weight_global_scale", 1e-38, id="a factor too large for its scales"),
        pytest.param("compressed_fp8", "weight_scale", 3e38, id="scales too large for their codes"),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(case: str, part: str, number: float, home: Path) -> None:
    file = written(home, case) / "model.safetensors"
    opened = open_checkpoint(file)
    parts, metadata = {name: np.array(x) for name, x in opened.items()}, getattr(opened, "metadata", {})
    name = next(name for name in parts if name.endswith(f".{part}"))
    save(file, parts | {name: np.full(parts[name].shape, number, np.float32)}, metadata)
    for how in ((), ("--match", "unchecked")):
        done = run(home, "theirs", *how)
        assert done.exit_code == 1 and name.rpartition(".")[0] in done.stderr
        assert "holds weights that are not finite" in done.stderr or "none that float32 holds" in done.stderr


@pytest.mark.parametrize(
    "parts",
    [("weight", "weight_scale_inv"), ("weight_packed", "weight_scale"), ("qweight", "scales", "qzeros")],
    ids="+".join,
)
def test_blocks_of_gguf_by_the_names_of_other_schemes_are_none_of_them(parts: tuple[str, ...], home: Path) -> None:
    blocks = formats.quantize(np.ascontiguousarray(W.T), "q8_0")
    write_gguf(home / "c.gguf", [(f"layer.{part}", lambda: blocks) for part in parts])
    if "weight" in parts:
        assert run(home, "c.gguf").exit_code == 0
    else:
        assert "it holds no tensors of a kind that onnxq reads" in refused(home, "c.gguf")
    (home / "c.gguf").rename(home / "c.safetensors")
    index = {"weight_map": {f"layer.{part}": "c.safetensors" for part in parts}}
    (home / "c.index.json").write_text(json.dumps(index))
    assert "is a GGUF file, which is no part of a checkpoint of several" in refused(home, "c.index.json")


@pytest.mark.parametrize("suffix", [".gguf", ".npz", ".safetensors"])
def test_a_name_that_is_too_long_is_told(suffix: str, home: Path) -> None:
    """Of a name of many words all ends would be many times as long as the file."""
    name, x = "0." * 9000 + "a", np.ones((32, 64), np.float32)
    path = home / f"w{suffix}"
    if suffix == ".gguf":
        write_gguf(path, [(name, lambda: x)])
    elif suffix == ".npz":
        np.savez(path, **{name: x})
    else:
        entry = {"dtype": "F32", "shape": [32, 64], "data_offsets": [0, x.nbytes]}
        header = json.dumps({name: entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + x.tobytes())
    said = refused(home, path.name)
    assert f"the name '{name[:40]}…' has 18001 characters" in said


def test_what_names_end_with_is_looked_at_word_by_word_for_few_words(home: Path) -> None:
    """Each of these is as long as a name may be."""
    tensors = {f"{i}." * (1 << 12) + "a": np.ones(4, np.float32) for i in range(100, 400)}
    tensors = {name[-(1 << 14) :]: x for name, x in tensors.items()} | {"layer.weight": np.ascontiguousarray(W.T)}
    save(home / "w.safetensors", tensors, {})
    tracemalloc.start()
    try:
        assert run(home, "w.safetensors").exit_code == 0
        assert tracemalloc.get_traced_memory()[1] < 1 << 29
    finally:
        tracemalloc.stop()
