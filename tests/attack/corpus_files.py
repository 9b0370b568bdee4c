"""The corpus's cases of files that go with a model: arrays, plans, ranges, recipes, checkpoints."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny
from attack import scenes
from attack.hostile import CALIBRATE, MATMUL, QUANTIZE, Hostile, W, changed, file, pipe, save


def raw_npy(shape: str, length: int = 64) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + b"\0" * length


def bomb() -> bytes:
    """An archive of 60 kB that unpacks to 64 MB, with a header that says so many."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", raw_npy("(99999999999, 64)", 1 << 26))
    return made.getvalue()


def image(width: int, height: int, preprocess: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        from PIL import Image

        save(tiny.model("g (float[1,3,8,8] x) => (y) { y = Conv(x, w) }", {"w": tiny.normal(16, 3, 3, 3)}), folder)
        (folder / "images").mkdir()
        Image.new("RGB", (width, height)).save(folder / "images" / "a.png")
        return [*CALIBRATE, "images", "--preprocess", preprocess]

    return make


def function(text: str, *words: str) -> Callable[[Path], list[str]]:
    """A data function."""
    head = "import numpy as np, os, sys\nX = {'x': np.ones((1, 64), np.float32)}\n"
    name = f"samples_{abs(hash(text)):x}"

    def make(folder: Path) -> list[str]:
        file(f"{name}.py", head + text)(folder)
        return [*(words or CALIBRATE), f"{name}:f"]

    return make


def safetensors(header: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header.encode() + b"\0" * 64


def adapter(module: str) -> Callable[[Path], None]:
    """One of PEFT whose module has this name."""

    def make(folder: Path) -> None:
        scenes.put(folder, "base")
        names = {f"base_model.model.{module}.lora_{word}.weight": 64 * i for i, word in enumerate("AB")}
        table = {name: {"dtype": "F32", "shape": [4, 4], "data_offsets": [at, at + 64]} for name, at in names.items()}
        (folder / "peft" / "adapter_model.safetensors").write_bytes(safetensors(json.dumps(table)) + b"\0" * 64)

    return make


def first_words(folder: Path) -> None:
    """Names of a model and of a checkpoint that are the same but for their first words, which all differ."""
    count = 30000
    names = [f"a{i}.x.weight" for i in range(2000)]
    inputs = ", ".join(f'"{name}"' for name in names)
    text = MATMUL.replace("}", f" s = Sum({inputs}) }}").replace("y) {", "y, float[1] s) {")
    save(tiny.model(text, W | {name: np.ones(1, np.float32) * i for i, name in enumerate(names)}), folder)
    made = {f"b{i}.x.weight": 4 * i for i in range(count)}
    table = {name: {"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]} for name, at in made.items()}
    (folder / "w.safetensors").write_bytes(safetensors(json.dumps(table)) + b"\0" * 4 * count)


IMPORT = ["import-weights", "model.onnx", "w.safetensors", "-o", "out.onnx"]
ENCODE = ["encode", "w.safetensors", "-w", "int4", "-o", "out.safetensors"]
_TENSOR = '{"NAME": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}'
PLAN = [*QUANTIZE, "--plan", "plan.json"]
RANGES = ["quantize", "model.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out.onnx", "--ranges", "r"]
_CHOICE = {"node": "product", "op": "MatMul", "method": "dynamic", "format": "int8"}


def plan(**change: object) -> Callable[[Path], list[str]]:
    table = {"scheme": "w8a8-dynamic", "target": "ort-cpu", "choices": [_CHOICE | change]}
    return file("plan.json", json.dumps(table), *PLAN)


#: Options that name a file to read, of which one is the kernel's: it says that it holds nothing, and may wait for ever.
KERNELS = "/proc/self/environ"
READING: dict[str, tuple[str, ...]] = {
    "a model": ("inspect", KERNELS),
    "a recipe": (*QUANTIZE, "--recipe", KERNELS),
    "a plan": (*QUANTIZE, "--plan", KERNELS),
    "ranges": (*RANGES[:-1], KERNELS),
    "a profile": (*QUANTIZE, "--profile", KERNELS),
    "a checkpoint": ("import-weights", "model.onnx", KERNELS, "-o", "out.onnx"),
    "arrays": ("encode", KERNELS, "-w", "int4", "-o", "out.safetensors"),
}
CASES: dict[str, Hostile] = {
    **{
        f"file of the kernel for {what}": Hostile(pipe(*words), "is not a file: the kernel makes up what is in it")
        for what, words in READING.items()
        if Path(KERNELS).exists()
    },
    # Data
    "archive that unpacks to much": Hostile(file("d.npz", bomb(), *CALIBRATE, "d.npz"), "cannot be read"),
    "header longer than the file": Hostile(
        file("d.npy", raw_npy("(999999999999, 64)"), *CALIBRATE, "d.npy"), "header declares"
    ),
    "negative header": Hostile(file("d.npy", raw_npy("(-1, 64)"), *CALIBRATE, "d.npy"), "its shape is"),
    "header in brackets": Hostile(
        file("d.npy", raw_npy("(" * 60), *CALIBRATE, "d.npy"), "does not begin with the header"
    ),
    "pipe in a folder": Hostile(pipe(*CALIBRATE, "folder"), "folder"),
    "thin image": Hostile(image(1, 60000, "size=2000x2000 crop"), "pixels"),
    "huge size": Hostile(image(4, 4, "size=99999x99999"), "pixels"),
    "function that exits": Hostile(function("def f():\n yield X\n sys.exit(3)\n"), "failed with SystemExit"),
    "module that exits": Hostile(function("sys.exit(3)\n"), "failed with SystemExit"),
    "function that gives less later": Hostile(
        function(
            "n = [9]\ndef f():\n n[0] -= 4\n for i in range(max(n[0], 1) + 4): yield X\n",
            "quantize",
            "model.onnx",
            "-s",
            "w8a8",
            "-o",
            "out.onnx",
            "--data",
        ),
        "it must always give the same",
    ),
    "endless function": Hostile(
        function(
            "def f():\n while True: yield X\n", *CALIBRATE[:-1], "--limit", "9", "--calibration", "minmax", "--data"
        ),
        "",
        code=0,
    ),
    # Files that go with a command
    "deep plan": Hostile(file("plan.json", "[" * 99999, *PLAN), "nested too deeply"),
    "long number in a plan": Hostile(file("plan.json", '{"scheme": ' + "9" * 9999 + "}", *PLAN), "is not a plan"),
    "plan of a wrong type": Hostile(plan(elements="many"), "choices[0].elements"),
    "plan with a reason that is none": Hostile(plan(reason=None), "choices[0].reason"),
    "plan with a key too many": Hostile(plan(colour="red"), "unknown field colour"),
    **{
        f"plan without a kernel: {word}": Hostile(plan(method="packed", format=word, block=32), says)
        for word, says in {
            "int3": "no operator reads codes of 3 bits",
            "q5_1": "no operator adds the minimum",
            "float8_e4m3": "cannot be packed in float8_e4m3: no kernel reads it packed",
            "int16": "cannot be packed in int16: no kernel reads it packed",
        }.items()
    },
    "plan that packs what is no product": Hostile(plan(op="Relu", node="nothing"), "does not have"),
    "plan that is a pipe": Hostile(pipe(*QUANTIZE, "--plan", "pipe"), "is not a file"),
    "deep ranges": Hostile(file("r", "[" * 99999, *RANGES), "is not a file of ranges"),
    "ranges of a wrong type": Hostile(file("r", '{"values": [], "model": 1}', *RANGES), "is not a file of ranges"),
    "ranges that are a pipe": Hostile(pipe(*RANGES[:-1], "pipe"), "is not a file"),
    "deep recipe": Hostile(file("r", "a = " + "[" * 9999, *QUANTIZE, "--recipe", "r"), "is nested too deeply"),
    "long number in a recipe": Hostile(
        file("r", "min_sqnr = " + "9" * 9999, *QUANTIZE, "--recipe", "r"),
        "is not TOML: a number has thousands of digits",
    ),
    "expression of exponential time": Hostile(
        lambda f: (
            changed(lambda p: setattr(p.graph.node[0], "name", "a" * 64 + "b"))(f)
            or [*QUANTIZE, "--keep", "re:^(a+)+$"]
        ),
        "",
        code=0,
    ),
    "expression that looks ahead": Hostile(pipe(*QUANTIZE, "--keep", "re:(?=a)"), "is not a regular expression"),
    "memory of four hundred digits": Hostile(pipe(*CALIBRATE, "data.npz", "--max-memory", "9" * 400), "--max-memory"),
    "safetensors of a wrong type": Hostile(
        file("w.safetensors", safetensors('{"a": {"dtype": [], "shape": 1e999, "data_offsets": [0]}}'), *IMPORT),
        "does not describe",
    ),
    "deep safetensors": Hostile(file("w.safetensors", safetensors("[" * 99999), *IMPORT), "does not describe"),
    "index of half a character": Hostile(
        file("m.index.json", '{"weight_map": {"w": "\\ud800"}}', *IMPORT[:2], "m.index.json", *IMPORT[3:]),
        "a text in it holds half a character",
    ),
    "safetensors of half a character": Hostile(
        file("w.safetensors", safetensors(_TENSOR.replace("NAME", "\\ud800")), *ENCODE), "does not describe"
    ),
    "safetensors that say something twice": Hostile(
        file("w.safetensors", safetensors(_TENSOR.replace("}", ', "shape": [2, 2]}', 1)), *ENCODE), "does not describe"
    ),
    "safetensors of a long name": Hostile(
        file("w.safetensors", safetensors(_TENSOR.replace("NAME", "0." * 50000 + "a")), *IMPORT),
        "has 100001 characters",
    ),
    "adapter of a long name": Hostile(
        adapter("0." * 50000 + "x"), "has 100032 characters", ("lora", "convert", "base.onnx", "peft", "-o", "out")
    ),
    "first words of many names": Hostile(first_words, "has nothing for 'model.onnx'", tuple(IMPORT)),
    "long safetensors": Hostile(file("w.safetensors", safetensors("{}", 2**63), *IMPORT), "is cut short"),
}
