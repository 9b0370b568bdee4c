"""Spoiled files of settings and of arrays, value by value where they are tables: kinds of cases for `mutants.py`."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import odd
import onnx
import tiny
from attack import mutate
from attack.mutants_data import Case, spoil
from click.testing import CliRunner

from onnxq import cli
from onnxq.checkpoints.encode_arrays import encode_arrays
from onnxq.runtime.profile import MachineProfile, PlanTime, new_profile

MATMUL = "g (float[1, 64] x) => (float[1, 64] y) { [product] y = MatMul(x, w) }"
CHECK_FREE = ["-o", "out.onnx", "--no-check"]


def _sound_model(folder: Path) -> None:
    tiny.save(tiny.model(MATMUL, {"w": tiny.normal(64, 64)}), folder)
    np.savez(folder / "data.npz", x=tiny.normal(8, 64))


def _spoiled(case: Case, value: Any) -> Any:
    for seed in case.seeds:
        value = mutate.spoil_json(value, random.Random(seed))
    return value


RECIPE = {
    "scheme": "w8a16",
    "min_sqnr": 25,
    "block_size": 32,
    "prefer": "accuracy",
    "calibration": "minmax",
    "rule": [{"nodes": "re:^prod+uct$", "ops": ["MatMul", "Gemm"], "set": "w4a16"}, {"nodes": "*", "set": "keep"}],
}


def _toml(value: Any) -> str:
    """A value as TOML spells it inline; what it cannot hold, as somebody might try."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return "nan" if isinstance(value, float) and value != value else json.dumps(value)


def recipe(case: Case, folder: Path) -> list[str]:
    """A recipe, some of whose values are others."""
    _sound_model(folder)
    value = _spoiled(case, RECIPE)
    lines = [f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()] if isinstance(value, dict) else [_toml(value)]
    (folder / "recipe.toml").write_text("\n".join(lines), errors="replace")
    command = [["plan", "model.onnx"], ["quantize", "model.onnx", *CHECK_FREE], ["analyze", "model.onnx", "-w", "int8"]]
    chosen = command[case.command % 3]
    return chosen if chosen[0] == "analyze" else [*chosen, "--recipe", "recipe.toml"]


WORDS = (
    *("size=8x8", "size=8", "mean=0.5,0.5,0.5", "std=0.2", "scale=255", "channels=bgr", "layout=nhwc", "crop"),
    *("short=8", "cut=8x8", "resample=lanczos", "rate=16000", "mel=8", "window=64", "hop=32", "fft=64", "style=kaldi"),
    *("low=20", "high=7600", "seconds=1", "frames=10", "normalize", "mean=0", "std=1"),
)
NUMBERS = (
    "0",
    "-1",
    "1e9",
    "1e400",
    "nan",
    "inf",
    "",
    "x",
    "9" * 400,
    "1,2",
    "8x",
    "x8",
    "0x0",
    "１",
    "1_0",
    "٣",
    "\0",
)


def words(case: Case, folder: Path) -> list[str]:
    """Words of `--preprocess`, for an image or for a sound."""
    import soundfile
    from PIL import Image

    is_sound = case.command % 2
    text = (
        "g (float[1, 8, n] x) => (y) { y = Conv(x, w) }"
        if is_sound
        else "g (float[1, 3, 8, 8] x) => (y) { y = Conv(x, w) }"
    )
    tiny.save(tiny.model(text, {"w": tiny.normal(4, 8, 1) if is_sound else tiny.normal(4, 3, 3, 3)}), folder)
    (folder / "in").mkdir()
    if is_sound:
        soundfile.write(folder / "in" / "a.wav", np.zeros(3000, np.float32) + 0.1, 16000)
    else:
        Image.new("RGB", (12, 9), (200, 30, 4)).save(folder / "in" / "a.png")
    said = ["rate=16000", "mel=8", "window=64", "hop=32"] if is_sound else ["size=8x8"]
    for seed in case.seeds:
        r = random.Random(seed)
        key = r.choice(WORDS).partition("=")[0]
        said.append(r.choice([r.choice(WORDS), f"{key}={r.choice(NUMBERS)}", r.choice(mutate.TEXTS)]))
    text = r.choice([" ", ";", "  "]).join(said)
    return ["calibrate", "model.onnx", "-s", "w8a8", "--data", "in", "-o", "out.ranges", "--preprocess", text]


def _profile() -> MachineProfile:
    made = new_profile()
    made.kernels.update({"MatMul float32 1x64 64x64": 1e-5})
    made.models.update({"a": 1e-3})
    made.plans.update({"b": PlanTime(0.9, 0.01)})
    return made


def profile(case: Case, folder: Path) -> list[str]:
    """Times of a machine."""
    _sound_model(folder)
    (folder / "p.json").write_text(json.dumps(_spoiled(case, json.loads(_profile().to_json()))))
    data = [["-s", "w8a8", "--data", "data.npz"], ["-s", "auto"]][case.command % 2]
    words = CHECK_FREE if case.command % 3 else CHECK_FREE[:2]  # plans are tuned by its times where files are checked
    return ["quantize", "model.onnx", *data, "--profile", "p.json", *words]


def like(case: Case, folder: Path) -> list[str]:
    """What a quantized model says of how it was made."""
    _sound_model(folder)
    scheme = [["-s", "w4a16"], ["-s", "w8a8", "--data", "data.npz"]][case.command // 2 % 2]
    made = CliRunner().invoke(cli.main, ["quantize", "model.onnx", *scheme, "--no-check", "-o", "old.onnx"])
    assert made.exit_code == 0, made.output
    proto = onnx.load(folder / "old.onnx")
    for entry in proto.metadata_props:
        if entry.key == ("onnxq", "onnxq.plan")[case.command % 2]:
            entry.value = json.dumps(_spoiled(case, json.loads(entry.value)))
    (folder / "old.onnx").write_bytes(proto.SerializeToString())
    if case.command % 5 == 0:
        return ["inspect", "old.onnx"]
    return ["quantize", "model.onnx", "--like", "old.onnx", "-o", "out.onnx", *scheme[2:]]


ARRAYS = {"w": tiny.normal(8, 64), "v": tiny.normal(64), "i": np.arange(6)}
#: Lengths of axes: of shapes that hold nothing too.
LENGTHS = (0, 1, 2, 8, 64, 512, 1 << 31, 1 << 62, (1 << 64) - 1)


def _npz() -> bytes:
    made = io.BytesIO()
    np.savez(made, allow_pickle=False, **ARRAYS)  # type: ignore[arg-type]
    return made.getvalue()


def _safetensors(case: Case) -> bytes:
    header: Any = {"__metadata__": {"a": "b"}}
    raw = b""
    for name, x in ARRAYS.items():
        kind = {"f": "F32", "i": "I64"}[x.dtype.kind]
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(raw), len(raw) + x.nbytes]}
        raw += x.tobytes()
    if case.command % 2:
        header = _spoiled(case, header)
        r = random.Random(case.seeds[0])
        if isinstance(header, dict) and isinstance(header.get("w"), dict) and r.random() < 0.5:
            header["w"] |= {"shape": [r.choice(LENGTHS), 0, r.choice(LENGTHS)], "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw


def encode(case: Case, folder: Path) -> list[str]:
    """Arrays without a model."""
    kind = ("npy", "npz", "safetensors", "safetensors")[case.command % 4]
    path = folder / f"w.{kind}"
    if kind == "npy":
        np.save(path, ARRAYS["w"])
    else:
        path.write_bytes(_npz() if kind == "npz" else _safetensors(case))
    if kind != "safetensors" or not case.command % 2:
        spoil(case, path)
    word = ("int8", "q4_0", "nf4")[case.command // 4 % 3]
    # Outputs of the cage's names: what they end in tells what they become.
    suffix = ("gguf", "npz", "safetensors")[case.command // 12 % 3]
    (folder / "out").mkdir()
    return ["encode", path.name, "-w", word, "-o", f"out/w.{suffix}"]


def decode(case: Case, folder: Path) -> list[str]:
    """What `encode` made."""
    suffix = ("gguf", "npz", "safetensors")[case.command % 3]
    path = folder / f"w.{suffix}"
    encode_arrays(ARRAYS, path, ("q4_0", "q8_0", "q5_1")[case.command // 3 % 3])
    raw = path.read_bytes()
    if suffix == "safetensors" and case.command // 9 % 2:
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        if case.command // 18 % 2 and "onnxq" in header.get("__metadata__", {}):
            header["__metadata__"]["onnxq"] = json.dumps(_spoiled(case, json.loads(header["__metadata__"]["onnxq"])))
        else:
            header = _spoiled(case, header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    else:
        spoil(case, path)
    (folder / "out").mkdir()
    return ["decode", path.name, "-o", "out/w.npz"]


def ranges(case: Case, folder: Path) -> list[str]:
    """Ranges of activations, some of which are others or of other values."""
    (folder / "model.onnx").write_bytes(odd.MODELS["Gemm in all ways"].proto().SerializeToString())
    (feed,) = odd.MODELS["Gemm in all ways"].feeds(1)
    np.savez(folder / "data.npz", **feed)
    words = ["-s", "w8a8", "--data", "data.npz"]
    CliRunner().invoke(cli.main, ["calibrate", "model.onnx", *words, "-o", "model.ranges", "--calibration", "minmax"])
    value = json.loads((folder / "model.ranges").read_text())
    for seed in case.seeds:
        r = random.Random(seed)
        if isinstance(value.get("values"), dict) and value["values"]:
            name = r.choice(list(value["values"]))
            odd_pairs = [[1, -1], [0, 0], [-1e308, 1e308], [1e-45, 1e-45], [3, 4], ["a", 1], [1], None, [0, 1e39]]
            value["values"][r.choice([name, *mutate.TEXTS])] = r.choice(odd_pairs)
        value = mutate.spoil_json(value, r) if r.random() < 0.3 else value
        if not isinstance(value, dict):
            break
    (folder / "model.ranges").write_text(json.dumps(value))
    return ["quantize", "model.onnx", *words, "--calibration", "minmax", "--ranges", "model.ranges", *CHECK_FREE]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {
    "recipe values": recipe,
    "words": words,
    "profile": profile,
    "like": like,
    "encode": encode,
    "decode": decode,
    "range values": ranges,
}
