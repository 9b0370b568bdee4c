"""Options of every command, of any value, together: a kind of cases for `mutants.py`."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from attack import mutate
from attack.mutants_data import Case
from numpy.typing import NDArray

LAYERS = (
    "g (float[1, 16] x) => (float[1, 6] y) "
    "{ [up] a = MatMul(x, w)  b = Relu(a)  [down] c = MatMul(b, v)  [head] y = Gemm(c, h) }"
)
CONSTANTS = {"w": tiny.normal(16, 32), "v": tiny.normal(32, 16, seed=1), "h": tiny.normal(16, 6, seed=2)}
#: Numbers of any option.
NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "1e9",
    "1e400",
    "nan",
    "inf",
    "",
    "x",
    "9" * 400,
    "0x1",
    "１",
    "1_0",
    "\0",
    "0.5",
    "1e-320",
)


def sound_model(folder: Path, **arrays: NDArray) -> None:
    tiny.save(tiny.model(LAYERS, CONSTANTS), folder)
    np.savez(folder / "data.npz", **({"x": tiny.normal(12, 1, 16)} | arrays))  # type: ignore[arg-type]


def traps(folder: Path) -> None:
    (folder / "link").symlink_to(mutate.elsewhere(folder))
    os.mkfifo(folder / "pipe")
    (folder / "out").mkdir()


FILES = ("model.onnx", "data.npz", "pipe", "/dev/zero", ".", "link", "no/such", "", "n" * 5000)
BOUNDS = (
    *(
        "size=25%",
        "size=0",
        "size=1e-9",
        "size=0.0000001%",
        "bits=3.5",
        "bits=0",
        "bits=33",
        "bits=3.5%",
        "latency=0.6",
    ),
    *("latency=0.0000001", "drop=0", "drop=999999", "drop=0.01", "size", "=", "bits=", "size=.", "nan=1", "size=nan"),
    *("size=" + "9" * 400, " bits = 4 ", "bits=4;size=1", "sïze=1", "size=٣%"),
)
FORMATS = (
    "uint4",
    "int8",
    "uint4/64",
    "uint4/0",
    "uint4/" + "9" * 99,
    "/",
    "auto",
    "w8a8",
    "w8a8-dynamic",
    "q4_k",
    "ternary",
)
#: Options by name; those of True are flags.
OPTIONS: dict[str, Any] = {
    "--budget": BOUNDS,
    "--formats": (*FORMATS, "", "nf4_dq", "float16", "uniform4", "uint4/６４"),
    "--metric": ("top1", "top5", "f1", "nll", "kld", "psnr", "", "TOP1", "x"),
    "--labels": ("t", "x", "", "y", "\0", "missing"),
    "--logits": ("y", "none", "", "x", "z", "\x1b[2J"),
    "--max-drop": NUMBERS,
    "--evaluate": (
        "data:f",
        "os:abort",
        "json:loads",
        ":",
        "x",
        "",
        "builtins:len",
        "scores:f",
        "scores:g",
        "scores:h",
    ),
    "--momentum": NUMBERS,
    "--bins": NUMBERS,
    "--percentile": (*NUMBERS, "99.9,99.99", "100,0", ",", "50,50,50", "0,0", "100,100"),
    "--calibration": ("percentile", "entropy", "mse", "minmax", "moving-average", "auto"),
    "--algorithm": ("rtn", "gptq", "gptaq", "x"),
    "--balance": True,
    "--no-balance": True,
    "--reduce-range": True,
    "--requantize": True,
    "--strict": True,
    "--keep-slow": True,
    "--symmetric": True,
    "--affine": True,
    "--json": True,
    "--granularity": ("tensor", "channel", "block"),
    "--block-size": ("16", "32", "0", "-1", "9" * 30),
    "--set": ("*=int3+gptq", "*=int3+", "*=+", "up=w8a8", "down=q4_k", "*=int3+rtn+rtn", "re:u=keep", "=", "up=int4+x"),
    "--scheme": ("w8a8", "w4a16", "w8a8-dynamic", "auto", "bf16", "fp16"),
    "--weights": ("int3", "q4_k", "tq2_0", "nvfp4", "uint2", "int4_dq", "mxfp4", "pow2_int4", "codebook", "levels5"),
    "--target": ("ort-cpu", "onnx", "onnxq"),
    "--prefer": ("balanced", "speed", "accuracy", "size"),
    "--effort": ("quick",),
    "--evidence": (*FILES, "out.ranges"),
    "--ranges": (*FILES, "out.ranges"),
    "--profile": FILES,
    "--save-profile": (*FILES, "out.json"),
    "--like": FILES,
    "--trace": ("out", "model.onnx", "pipe"),
    "--report": ("out.json", "pipe", "."),
    "--tokenizer": FILES,
    "--length": NUMBERS,
    "--limit": ("1", "2", "9" * 30),
    "--seed": ("0", str(2**65)),
    "--max-memory": ("1", "1kB", "9e9", "1GB"),
    "--jobs": ("2",),
    "--min-sqnr": ("500", "-500", "nan", "20"),
    "--threads": ("1", "0", "9" * 9),
    "--no-check": True,
    "--force": True,
    "--data": ("data.npz", "data.npz", "data.npz", "samples:f", ".", "pipe"),
}
#: Of commands besides quantize.
MORE: dict[str, dict[str, Any]] = {
    "search": {
        "--at": BOUNDS,
        "--points": NUMBERS,
        "--latency": True,
        "-o": ("out.json", "data.npz", "pipe", "no/such/p.json", "", "."),
        "--formats": FORMATS,
        "--write-plan": ("out.json",),
    },
    "check": {"--limit": NUMBERS},
    "calibrate": {
        "--shard": ("1/2", "0/2", "3/2", "1/0", "x", "1/" + "9" * 30, "1/1"),
        "-o": ("out.ranges", "pipe", ""),
    },
    "plan": {"-o": ("out.json", "pipe", ""), "--json": True},
    "encode": {
        "-w": FORMATS,
        "-o": ("out/w.gguf", "x.txt", "", "pipe", "out/w.npz"),
        "--granularity": ("block32", "block0", "x", "tensor"),
    },
    "analyze": {"-w": FORMATS, "-g": ("block32", "block0", "block" + "9" * 30, "tensor", "x")},
}
_HEADS = {
    "quantize": ["quantize", "model.onnx", "-o", "out.onnx"],
    "search": ["search", "model.onnx", "--effort", "quick"],
    "check": ["check", "model.onnx", "model.onnx"],
    "calibrate": ["calibrate", "model.onnx", "--data", "data.npz", "-o", "out.ranges"],
    "plan": ["plan", "model.onnx"],
    "encode": ["encode", "data.npz", "-w", "q8_0", "-o", "out/w.safetensors"],
    "analyze": ["analyze", "model.onnx"],
}
_ALLOWED = {
    "search": (
        *("--target", "--formats", "--logits", "--keep", "--set", "--data", "--limit", "--seed", "--max-memory"),
        *("--evidence", "--threads", "--report", "--json", "--force", "--tokenizer", "--length"),
    ),
    "check": ("--metric", "--labels", "--logits", "--data", "--seed", "--threads", "--json"),
    "calibrate": (
        "--scheme",
        "--calibration",
        "--percentile",
        "--momentum",
        "--bins",
        "--jobs",
        "--max-memory",
        "--set",
    ),
    "plan": ("--scheme", "--weights", "--set", "--granularity", "--balance", "--affine", "--algorithm", "--target"),
    "encode": (),
    "analyze": ("--data", "--limit", "--seed"),
}


def options(case: Case, folder: Path) -> list[str]:
    """Options of any command, of any value, together."""
    has_labels = any(random.Random(seed).random() < 0.1 for seed in case.seeds) or case.command // 30 % 4 == 0
    sound_model(folder, **({"t": np.arange(12) % 6} if has_labels else {}))
    traps(folder)
    # Modules are remembered by name: one of each, for all cases.
    (folder / "scores.py").write_text(
        "def f(path): return 1.0\ndef g(session): return float('nan')\ndef h(path): raise SystemExit(3)\n"
    )
    (folder / "samples.py").write_text(
        "import numpy as np\ndef f():\n for i in range(3): yield {'x': np.ones((1, 16))}\n"
    )
    command = (
        "quantize",
        "quantize",
        "quantize",
        "search",
        "search",
        "check",
        "calibrate",
        "plan",
        "encode",
        "analyze",
    )
    name = command[case.command % 10]
    known = OPTIONS if name == "quantize" else {**{k: OPTIONS[k] for k in _ALLOWED[name] if k in OPTIONS}, **MORE[name]}
    words: list[str] = []
    words += ["--labels", "t"] * (has_labels and name in ("quantize", "check"))
    if case.command // 10 % 3 and name in ("quantize", "search", "check"):
        words += ["--data", "data.npz"]
    if case.command // 10 % 2 and name == "quantize":
        words += ["--effort", "quick"]
    for seed in case.seeds:
        r = random.Random(seed)
        option = r.choice(list(known))
        words += [option] if known[option] is True else [option, r.choice(known[option])]
    if name == "quantize" and "--budget" in words and "--effort" not in words:
        words += ["--effort", "quick"]
    return [*_HEADS[name], *words]
