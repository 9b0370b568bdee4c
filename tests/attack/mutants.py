"""Spoiled inputs of every command: a case is a kind, a model to begin with, and one seed for each mutation."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import odd
import onnx
import tiny
from attack import (
    mutants_bundles,
    mutants_choices,
    mutants_codes,
    mutants_commands,
    mutants_data,
    mutants_functions,
    mutants_imports,
    mutants_numbers,
    mutants_quantized,
    mutants_regions,
    mutants_settings,
    mutants_stores,
    mutants_trained,
    mutate,
)
from attack.generated import kinds
from click.testing import CliRunner

from onnxq import cli

#: Models to begin with: small ones.
BASES = [name for name in odd.MODELS if name not in ("2000 nodes", "twelve nested Ifs")]
NUMERIC = ["Gemm in all ways", "Conv in groups", "If with weights", "LSTM", "tied embedding", "BatchNormalization"]

_MODEL_COMMANDS = tuple(
    line.split()
    for line in (
        "inspect model.onnx",
        "plan model.onnx -s w4a16",
        "plan model.onnx -s w8a8-dynamic -t onnx",
        "quantize model.onnx -s w4a16 -o out.onnx --no-check",
        "quantize model.onnx -s w8a8-dynamic -o out.onnx",
        "quantize model.onnx -s nf4 -t onnxq -o out.onnx",
        "quantize model.onnx -s fp16 -t onnx -o out.onnx --no-check",
        "quantize model.onnx -s w8a8 --data data.npz -o out.onnx",
        "calibrate model.onnx -s w8a8 --data data.npz -o out.ranges --calibration minmax",
        "check model.onnx model.onnx",
        "check model.onnx model.onnx --by-layer",
        "doctor model.onnx",
        "analyze model.onnx -w int8",
        "quantize model.onnx -s w8a8 --data data.npz -t onnxq --effort quick -o out.onnx",
        "quantize model.onnx -s auto -t onnxq --effort quick -o out.onnx",
        "quantize model.onnx -w int3 -t onnxq --data data.npz --effort quick -o out.onnx",
        "quantize model.onnx --budget size=99% --effort quick -o out.onnx",
        "search model.onnx --effort quick --data data.npz --points 3",
    )
)
_PLAN = ["quantize", "model.onnx", "--plan", "plan.json", "-o", "out.onnx", "--no-check"]
_RANGES = ["quantize", "model.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out.onnx", "--no-check"]


@dataclass(frozen=True)
class Mutant:
    """One case; equal ones are made equal."""

    kind: str
    base: str
    command: int
    seeds: tuple[int, ...]

    def build(self, folder: Path) -> list[str]:
        words = KINDS[self.kind](self, folder)
        print("words:", " ".join(words).encode("ascii", "backslashreplace").decode(), file=sys.stderr)
        return words

    @property
    def r(self) -> random.Random:
        return random.Random(repr(self))


def draw(r: random.Random, among: list[str] | None = None) -> Mutant:
    """A case; most are models."""
    chosen = r.choice(among or [kind for kind in KINDS for _ in range(OFTEN.get(kind, 1))])
    base = r.choice(BASES if chosen in ("model", "bytes", "planned") else NUMERIC)
    count = r.choice([1, 1, 1, 2, 3, 5])
    return Mutant(chosen, base, r.randrange(1 << 16), tuple(r.randrange(1 << 32) for _ in range(count)))


def _write(folder: Path, proto: onnx.ModelProto) -> None:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


def _feeds(mutant: Mutant, folder: Path) -> None:
    (feed,) = odd.MODELS[mutant.base].feeds(1)
    np.savez(folder / "data.npz", **{n: x for n, x in feed.items() if not x.dtype.hasobject})


def _model(mutant: Mutant, folder: Path) -> list[str]:
    proto = odd.MODELS[mutant.base].proto()
    for seed in mutant.seeds:
        mutate.spoil_model(proto, random.Random(seed))
    _write(folder, proto)
    _feeds(mutant, folder)
    (folder / "link").symlink_to(mutate.elsewhere(folder))
    os.mkfifo(folder / "pipe")
    return _MODEL_COMMANDS[mutant.command % len(_MODEL_COMMANDS)]


def _bytes(mutant: Mutant, folder: Path) -> list[str]:
    raw = odd.MODELS[mutant.base].proto().SerializeToString()
    for seed in mutant.seeds:
        raw = mutate.spoil_bytes(raw, random.Random(seed))
    _feeds(mutant, folder)
    (folder / "model.onnx").write_bytes(raw)
    return _MODEL_COMMANDS[mutant.command % len(_MODEL_COMMANDS)]


def _text(mutant: Mutant, folder: Path) -> list[str]:
    """Models as JSON or as text."""
    proto = odd.MODELS[mutant.base].proto()
    suffix = ("json", "onnxtxt", "textproto")[mutant.command % 3]
    onnx.save(proto, folder / f"model.{suffix}")
    return [*_spoil_file(mutant, folder / f"model.{suffix}", ["inspect", f"model.{suffix}"])]


def _spoil_file(mutant: Mutant, path: Path, words: list[str]) -> list[str]:
    raw = path.read_bytes()
    for seed in mutant.seeds:
        raw = mutate.spoil_bytes(raw, random.Random(seed))
    path.write_bytes(raw)
    return words


def _spoil_json(mutant: Mutant, path: Path, words: list[str]) -> list[str]:
    value: Any = json.loads(path.read_text())
    for seed in mutant.seeds:
        value = mutate.spoil_json(value, random.Random(seed))
    path.write_text(json.dumps(value))
    return words


def _prepare(mutant: Mutant, folder: Path, *words: str) -> None:
    """A sound model with data, and what the command makes of them."""
    _write(folder, odd.MODELS[mutant.base].proto())
    _feeds(mutant, folder)
    result = CliRunner().invoke(cli.main, list(words))
    assert result.exit_code == 0 or "needs no ranges" in result.output, result.output


def _plan(mutant: Mutant, folder: Path) -> list[str]:
    _prepare(mutant, folder, "plan", "model.onnx", "-s", "w8a8-dynamic", "-o", "plan.json")
    spoil = _spoil_json if mutant.command % 4 else _spoil_file
    return spoil(mutant, folder / "plan.json", _PLAN)


def _ranges(mutant: Mutant, folder: Path) -> list[str]:
    data = ["-s", "w8a8", "--data", "data.npz", "--calibration", "minmax" if mutant.command % 2 else "entropy"]
    _prepare(mutant, folder, "calibrate", "model.onnx", "-o", "model.ranges", *data)
    if not (folder / "model.ranges").exists():  # a model that needs none
        (folder / "model.ranges").write_text('{"values": {}}')
    words = [*_RANGES, "--calibration", data[-1], "--ranges", "model.ranges"]
    spoil = _spoil_json if mutant.command % 4 else _spoil_file
    return spoil(mutant, folder / "model.ranges", words)


def _shards(mutant: Mutant, folder: Path) -> list[str]:
    """What machines found of their parts of the data."""
    data = ["calibrate", "model.onnx", "-s", "w8a8", "--data", "data.npz", "--shard"]
    _write(folder, odd.MODELS[mutant.base].proto())
    (feed,) = odd.MODELS[mutant.base].feeds(1)
    np.savez(folder / "data.npz", **{name: np.stack([x, x]) for name, x in feed.items()})
    for each in (1, 2):
        CliRunner().invoke(cli.main, [*data, f"{each}/2", "-o", f"{each}.ranges"])
        if not (folder / f"{each}.ranges").exists():
            (folder / f"{each}.ranges").write_text("{}")
    spoil = _spoil_json if mutant.command % 4 else _spoil_file
    words = ["calibrate", "--merge", "1.ranges", "2.ranges", "-o", "out.ranges"]
    return spoil(mutant, folder / "1.ranges", words)


def _progress(mutant: Mutant, folder: Path) -> list[str]:
    """Progress of a calibration that was interrupted by its data."""
    _write(folder, odd.MODELS[mutant.base].proto())
    (feed,) = odd.MODELS[mutant.base].feeds(1)
    np.savez(folder / "good.npz", **feed)
    module = f"samples_{abs(hash(mutant)):x}"
    (folder / f"{module}.py").write_text(
        "import numpy as np, os\n"
        "def f():\n"
        " feed = dict(np.load('good.npz'))\n"
        " for i in range(12):\n"
        "  if i == 7 and os.path.exists('out.ranges.partial'): raise ValueError('stop')\n"
        "  yield feed\n"
    )
    words = ["calibrate", "model.onnx", "-s", "w8a8", "--data", f"{module}:f", "-o", "out.ranges"]
    words += ["--calibration", "minmax", "--checkpoint-every", "2"]
    CliRunner().invoke(cli.main, words)
    if not (folder / "out.ranges.partial").exists():
        (folder / "out.ranges.partial").write_text("{}")
    (folder / "good.npz").rename(folder / "hidden.npz")
    (folder / f"{module}.py").write_text(
        "import numpy as np\ndef f():\n for _ in range(12): yield dict(np.load('hidden.npz'))\n"
    )
    return _spoil_json(mutant, folder / "out.ranges.partial", words)


TOML = """scheme = "w8a16"
min_sqnr = 25
block_size = 32
[[rule]]
nodes = "re:^layer[0-9]+(a|b)*$"
ops = ["MatMul", "Gemm"]
set = "w4a16"
[[rule]]
nodes = "*"
set = "keep"
"""


def _recipe(mutant: Mutant, folder: Path) -> list[str]:
    _write(folder, odd.MODELS[mutant.base].proto())
    (folder / "recipe.toml").write_text(TOML)
    words = ["plan", "model.onnx", "--recipe", "recipe.toml"]
    return _spoil_file(mutant, folder / "recipe.toml", words)


def _data(mutant: Mutant, folder: Path) -> list[str]:
    _write(folder, odd.MODELS[mutant.base].proto())
    _feeds(mutant, folder)
    words = ["calibrate", "model.onnx", "-s", "w8a8", "-o", "out.ranges", "--calibration", "minmax", "--data"]
    if mutant.command % 2:
        return _spoil_file(mutant, folder / "data.npz", [*words, "data.npz"])
    name, x = next(iter(np.load(folder / "data.npz").items()))
    np.save(folder / f"{name}.npy", x)
    return _spoil_file(mutant, folder / f"{name}.npy", [*words, f"{name}.npy"])


def _image(mutant: Mutant, folder: Path) -> list[str]:
    from PIL import Image

    proto = tiny.model("g (float[1,3,8,8] x) => (y) { y = Conv(x, w) }", {"w": tiny.normal(16, 3, 3, 3)})
    _write(folder, proto)
    (folder / "images").mkdir()
    kind = ("png", "jpg", "bmp", "gif", "webp", "tiff")[mutant.command % 6]
    Image.new("RGB", (12, 9), (200, 30, 4)).save(folder / "images" / f"a.{kind}")
    words = "calibrate model.onnx -s w8a8 -o out.ranges --data images --preprocess size=8x8 --calibration minmax"
    return _spoil_file(mutant, folder / "images" / f"a.{kind}", words.split())


def _weights(mutant: Mutant, folder: Path) -> list[str]:
    """A checkpoint of 4-bit weights."""
    proto = tiny.model(
        "g (float[1,64] x) => (y) { y = MatMul(x, up.weight) }".replace("up.weight", '"up.weight"'),
        {"up.weight": tiny.normal(64, 48)},
    )
    _write(folder, proto)
    rng = np.random.default_rng(0)
    tensors = {
        "up.weight_4bit": rng.integers(0, 256, (48, 32)).astype(np.uint8),
        "up.scales_4bit": np.full((48, 2), 0.01, np.float16),
    }
    words = ["import-weights", "model.onnx"]
    after = ["-o", "out.onnx", "--no-check"]
    if mutant.command % 3 == 0:
        np.savez(folder / "w.npz", **tensors)
        return _spoil_file(mutant, folder / "w.npz", [*words, "w.npz", *after])
    header: Any = {}
    raw = b""
    for name, x in tensors.items():
        kind = "U8" if x.dtype == np.uint8 else "F16"
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(raw), len(raw) + x.nbytes]}
        raw += x.tobytes()
    for seed in mutant.seeds if mutant.command % 3 == 1 else ():
        header = mutate.spoil_json(header, random.Random(seed))
    text = json.dumps(header).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)
    every = [*words, "w.safetensors", *after]
    return every if mutant.command % 3 == 1 else _spoil_file(mutant, folder / "w.safetensors", every)


OPTIONS = {
    "--keep": ["re:(a*)*$", "re:(", "[", "*", "", "re:\\", "re:(?=a)", "*" * 2000],
    "--set": ["*=nf4", "=", "a=", "*=auto", "*=int5", "re:(x+x+)+y=int4", "*=keep"],
    "--scheme": ["w4a16", "w8a8", "int4", ""],
    "--weights": ["int4", "uniform999", "uniform", "int", "", "nf4_dq", "float8_e4m3", "int2", "ternary"],
    "--target": ["ort-cpu", "onnx", "onnxq", "../x"],
    "--block-size": ["0", "-1", "16", "1e3", "99999999999999999999"],
    "--limit": ["0", "1", "9999999999999999999999"],
    "--seed": ["0", "-1", str(2**65)],
    "--calibration": ["auto", "mse", "entropy", "x"],
    "--jobs": ["0", "2", "-1"],
    "--max-memory": ["1", "0", "-1", "9e9", "1QB", "9" * 400, "1GB", "nan"],
    "--checkpoint-every": ["1", "0", "0s", "1e9s", "9" * 400, "nan"],
    "--min-sqnr": ["nan", "inf", "-inf", "1e400", "x", "500"],
    "--accuracy-level": ["5", "-1", "0"],
    "--data": [
        "data.npz",
        ".",
        "",
        "pipe",
        "/dev/zero",
        "x:y:z",
        ":",
        "json:loads",
        "\0",
        "n" * 5000,
        "/",
    ],
    "--preprocess": [
        "size=0x0",
        "size=99999x99999",
        "mean=nan",
        "std=0",
        "scale=inf",
        "a",
        "size=1e9",
        "mean=" + "1," * 99,
    ],
    "--recipe": ["model.onnx", "pipe", "/dev/zero", ".", "", "n" * 5000, "link"],
    "--plan": ["model.onnx", "pipe", "/dev/zero", ".", "link", "data.npz"],
    "--ranges": ["model.onnx", "pipe", "/dev/zero", ".", "link", "data.npz", "new.ranges", "no/such/folder"],
    "--report": ["out.json", ".", "no/such", "/dev/full", "n" * 5000],
    "--trace": ["model.onnx", "/dev/full"],
    "--output": ["out.json", "out", ".", "", "n" * 5000, "no/such/out.onnx", "pipe", "a\nb.onnx", "\udcff.onnx"],
    "--threads": ["0", "-1", "1"],
}


def _options(mutant: Mutant, folder: Path) -> list[str]:
    _write(folder, odd.MODELS[mutant.base].proto())
    _feeds(mutant, folder)
    (folder / "link").symlink_to(mutate.elsewhere(folder))
    os.mkfifo(folder / "pipe")
    command = "quantize"
    words = {"--output": "out.onnx"}
    for seed in mutant.seeds:
        r = random.Random(seed)
        option = r.choice(list(OPTIONS))
        words[option] = r.choice(OPTIONS[option])
    made = [w for w in words.values() if w in ("new.ranges", "out.json")]
    if words["--output"] == "a\nb.onnx" or made:
        words["--ranges"] = words.get("--ranges", "out.ranges") if "new.ranges" not in made else "out.ranges"
    if "\n" in words["--output"]:
        words["--output"] = "no/a\nb.onnx"
    if words["--output"].startswith("\udcff"):
        words["--output"] = "no/\udcff.onnx"
    return [command, "model.onnx", "--no-check", *(word for pair in words.items() for word in pair)]


KINDS: dict[str, Callable[[Mutant, Path], list[str]]] = {
    "model": _model,
    "bytes": _bytes,
    "text": _text,
    "plan": _plan,
    "ranges": _ranges,
    "progress": _progress,
    "shards": _shards,
    "recipe": _recipe,
    "data": _data,
    "image": _image,
    "weights": _weights,
    "options": _options,
    **mutants_data.KINDS,
    **mutants_quantized.KINDS,
    **mutants_settings.KINDS,
    **mutants_choices.KINDS,
    **mutants_codes.KINDS,
    **mutants_regions.KINDS,
    **mutants_commands.KINDS,
    **mutants_bundles.KINDS,
    **mutants_trained.KINDS,
    **mutants_imports.KINDS,
    **mutants_stores.KINDS,
    **mutants_functions.KINDS,
    **mutants_numbers.KINDS,
    **kinds.KINDS,
}
#: How often kinds are drawn beside the others.
OFTEN = {"model": 12, "command": 9, "bytes": 3, **dict.fromkeys(kinds.KINDS, 4)}
