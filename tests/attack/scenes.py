"""Sound files of every kind that a command reads, made once in each process: spoiled by the kinds of cases that ask."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import adapters
import numpy as np
import tiny
from attack.mutants_options import sound_model
from click.testing import CliRunner

import onnxq
from onnxq import cli
from onnxq.checkpoints.encode_arrays import encode_arrays
from onnxq.runtime.own_files.adapter_file import write_adapter_file

Files = dict[str, bytes]
FOREIGN = Path(__file__).resolve().parents[2] / "models" / "foreign_checkpoints.npz"


def put(folder: Path, *names: str) -> None:
    """Leave the files of these scenes in `folder`."""
    for name in names:
        for path, content in _made(name).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


@functools.cache
def _made(name: str) -> Files:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        SCENES[name](folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _run(*words: str | Path) -> None:
    result = CliRunner().invoke(cli.main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code in (0, 3), result.output


def _quantized(folder: Path) -> None:
    sound_model(folder)
    recipe = onnxq.Recipe("w4a16", min_sqnr=-np.inf, keep_slow=True)
    onnxq.quantize(folder / "model.onnx", folder / "q.onnx", recipe, target="onnx", check=False)
    for name in ("model.onnx", "data.npz"):
        (folder / name).unlink()


def _bundle(folder: Path) -> None:
    sound_model(folder)
    _run("export", folder / "model.onnx", "-o", folder / "bundle", "--data", folder / "data.npz")
    for name in ("model.onnx", "data.npz"):
        (folder / name).unlink()


def _base(folder: Path) -> None:
    """A quantized network that takes adapters, samples of it, and one adapter of each kind."""
    adapters.quantized(folder, "int4", "ort-cpu").rename(folder / "base.onnx")
    _run("lora", "base", folder / "base.onnx", "-o", folder / "taking.onnx")
    (folder / "taking.onnx").unlink()
    x = tiny.normal(12, 1, adapters.WIDTH)
    np.savez(folder / "base.npz", x=x, y=tiny.normal(12, 1, adapters.WIDTH, seed=1))  # type: ignore[arg-type]
    pairs = adapters.adapter().factors.items()
    arrays = {f"{name}.lora_{word}": x for name, pair in pairs for word, x in zip("AB", pair, strict=True)}
    write_adapter_file(folder / "a.onnx_adapter", arrays)
    _run("lora", "convert", folder / "base.onnx", folder / "a.onnx_adapter", "-o", folder / "peft")


def _report(folder: Path) -> None:
    _quantized(folder)
    _run("report", folder / "q.onnx", "--json", folder / "report.json")
    (folder / "q.onnx").unlink()


def _plan(folder: Path) -> None:
    sound_model(folder)
    _run("plan", folder / "model.onnx", "-s", "w4a16", "-o", folder / "plan.json")
    for name in ("model.onnx", "data.npz"):
        (folder / name).unlink()


def _encoded(folder: Path) -> None:
    for suffix in ("gguf", "safetensors", "npz"):
        encode_arrays({"w": tiny.normal(8, 64)}, folder / f"w.{suffix}", "q4_0")


def _foreign(folder: Path) -> None:
    (folder / "theirs").mkdir()
    for name, content in foreign()["gptq4"].items():
        (folder / "theirs" / name).write_bytes(content)


SCENES: dict[str, Callable[[Path], None]] = {
    "model": sound_model,
    "quantized": _quantized,
    "bundle": _bundle,
    "base": _base,
    "report": _report,
    "plan": _plan,
    "encoded": _encoded,
    "foreign": _foreign,
}


@functools.cache
def foreign() -> dict[str, Files]:
    """Checkpoints that other projects' code made, by case: each is a folder."""
    found: dict[str, Files] = {}
    with np.load(FOREIGN) as file:
        for name in file.files:
            case, _, word = name.rpartition(".")
            if word in ("safetensors", "config"):
                place = {"safetensors": "model.safetensors", "config": "config.json"}[word]
                found.setdefault(case, {})[place] = file[name].tobytes()
    return found
