"""Cases of scores, labels, searches, evidence and the shapes of outputs (`every.py`)."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny
from attack import scenes
from attack.hostile import Hostile
from attack.mutants_options import CONSTANTS, sound_model
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq import cli

CHECK = ("check", "model.onnx", "model.onnx", "--data", "data.npz")
SEARCH = ("quantize", "model.onnx", "--effort", "quick", "-o", "out.onnx")
BY_EVIDENCE = ("quantize", "model.onnx", "-w", "int3", "-t", "onnxq", "--data", "data.npz", "--evidence", "e.npz")


def labelled(labels: NDArray, text: str = "") -> Callable[[Path], None]:
    """Samples with these labels, of a model that decides nothing, or of `text`."""

    def make(folder: Path) -> None:
        sound_model(folder, t=labels)
        tiny.save(tiny.model(text or "g (float[1, 16] x) => (y) { y = MatMul(x, w) }", CONSTANTS), folder)

    return make


def scored(word: str) -> tuple[str, ...]:
    return (*CHECK, "--metric", word, "--labels", "t")


def ending(end: str, opset: int = 17) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        text = f"g (float[1, 16] x) => (float y) {{ c = MatMul(x, w)  {end} }}"
        tiny.save(tiny.model(text, CONSTANTS, opset=opset), folder)

    return make


def trapped(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Samples, and something in the place where a search keeps what it measured."""

    def made(folder: Path) -> None:
        sound_model(folder)
        make(folder / "out.onnx.search")

    return made


def spoilt_evidence(folder: Path) -> None:
    """Numbers that cannot be unpacked: what names and shapes say is right."""
    text = "g (float[1, 256] x) => (y) { y = MatMul(x, w) }"
    tiny.save(tiny.model(text, {"w": tiny.normal(256, 32)}), folder)
    np.savez(folder / "data.npz", x=tiny.normal(12, 1, 256))
    made = CliRunner().invoke(cli.main, [*BY_EVIDENCE, "--no-check", "-o", "out.onnx"])
    assert made.exit_code == 0, made.output
    (folder / "out.onnx").unlink()
    with np.load(folder / "e.npz") as file:
        arrays = {name: file[name] for name in file.files}
    with zipfile.ZipFile(folder / "e.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
        member_info = archive.getinfo("0.gram.npy")
    raw = bytearray((folder / "e.npz").read_bytes())
    # Behind the header of the member and of the array, so that only who reads all of it comes upon it.
    middle = member_info.header_offset + 30 + len("0.gram.npy") + member_info.compress_size // 2
    raw[middle : middle + 40] = bytes([0xFF] * 40)
    (folder / "e.npz").write_bytes(raw)


CONSTANT_IMAGE = "g (float[1, 64] x) => (float[1, 16, 6, 6] y, z) { [a] y = Conv(i, k) z = Identity(x) }"
CONSTANTS_OF_IT = {"i": tiny.normal(1, 3, 8, 8), "k": tiny.normal(16, 3, 3, 3)}


def constant_image(*words: str) -> Callable[[Path], list[str]]:
    """A convolution of what does not depend on any input, and a plan that rounds it all the same."""

    def make(folder: Path) -> list[str]:
        tiny.save(tiny.model(CONSTANT_IMAGE, CONSTANTS_OF_IT), folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 1, 64))
        choice = {"node": "a", "op": "Conv", "method": "static", "format": "int8"}
        plan = {"scheme": "w8a8", "target": "ort-cpu", "choices": [choice]}
        (folder / "plan.json").write_text(json.dumps(plan))
        return ["quantize", "model.onnx", "--data", "data.npz", "-o", "out.onnx", *words]

    return make


#: A search for codes by data, which runs the model in pieces.
BY_EVIDENCE_ONLY = ("quantize", "model.onnx", "-w", "int3", "-t", "onnxq", "--data", "data.npz", "-o", "out.onnx")


def unused_if(folder: Path) -> None:
    """Its bodies read what the layer reads that is looked at."""
    text = (
        "g (float[1, 64] x, bool c) => (float[1, 64] y) { i = If(c) <then_branch = t () => (p) { p = Neg(x) },"
        " else_branch = e () => (q) { q = Abs(x) }>  [a] y = MatMul(x, w) }"
    )
    tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), folder)
    np.savez(folder / "data.npz", x=tiny.normal(12, 1, 64), c=np.ones((12, 1), bool).reshape(12))


def planned(text: str, *choices: tuple[str, str, str | None]) -> Callable[[Path], list[str]]:
    """A plan in which these nodes are static: name, operator and format."""

    def make(folder: Path) -> list[str]:
        tiny.save(tiny.model(text, {"w": tiny.normal(64, 64), "b": tiny.normal(64)}), folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 1, 64))
        rows = [{"node": node, "op": op, "method": "static", "format": format} for node, op, format in choices]
        (folder / "plan.json").write_text(json.dumps({"scheme": "w8a8", "target": "onnx", "choices": rows}))
        return ["quantize", "model.onnx", "-t", "onnx", "--plan", "plan.json", "--data", "data.npz", "-o", "out.onnx"]

    return make


GEMM = "g (float[1, 64] x) => (float[1, 64] y) { [m] h = MatMul(x, w) [a] y = Add(h, b) }"
OF_TWO = "g (float[1, 64] x) => (float[1, 1] y, z) { t = Transpose(x) [m] y = MatMul(x, t) [r] z = Relu(y) }"
RANDOM = "g (float[1, 64] x) => (float[1, 64] y, z) { [m] y = MatMul(x, w) [r] z = RandomNormal<shape = [1, 64]>() }"
LEFT = "g (float[1, 64] x) => (float[64, 1] y) { t = Transpose(x) [m] y = MatMul(w, t) }"
NOTHING_READ = "all that its kernel would read is constant"


def by_no_class(folder: Path) -> list[str]:
    scenes.put(folder, "base")
    (folder / "out").mkdir()
    words = ["lora", "train", "base.onnx", "--data", "base.npz", "--labels", "y", "-o", "out/a.onnx_adapter"]
    return [*words, "--epochs", "1", "--logits", "none"]


#: Which need torch, and only say so without it.
HAS_TORCH = importlib.util.find_spec("torch") is not None
CASES = {
    "If that nobody reads, in pieces": Hostile(unused_if, "", BY_EVIDENCE_ONLY, code=0),
    "plan that rounds a sum that is part of a product": Hostile(
        planned(GEMM, ("m", "MatMul", "int8"), ("a", "Add", None)), "", code=0
    ),
    "plan that rounds a product of activations": Hostile(planned(OF_TWO, ("m", "MatMul", None)), "", code=0),
    "plan that rounds what reads nothing": Hostile(
        planned(RANDOM, ("m", "MatMul", "int8"), ("r", "RandomNormal", None)), NOTHING_READ
    ),
    "plan that rounds a constant on the left": Hostile(planned(LEFT, ("m", "MatMul", None)), NOTHING_READ),
    "convolution of a constant": Hostile(constant_image("-s", "w8a8"), "", code=0),
    "convolution of a constant in a plan": Hostile(constant_image("--plan", "plan.json"), "what it reads is constant"),
    "adapter by labels, where nothing is a class": Hostile(
        by_no_class, "" if HAS_TORCH else "needs torch", code=0 if HAS_TORCH else 1
    ),
    "output without a name": Hostile(lambda folder: None, "is empty, where a path", (*SEARCH, "-o", ""), code=2),
    "labels of letters, where nothing is decided": Hostile(
        labelled(np.full((12, 1, 32), "x")), "labels of type <U1 are no numbers", scored("f1")
    ),
    "labels that are no numbers": Hostile(
        labelled(np.full((12, 1, 32), np.nan)), "labels must be finite numbers", scored("psnr")
    ),
    "labels of no number beside others": Hostile(
        labelled(np.full((12, 1, 32), np.nan)), "labels must be finite numbers", scored("f1")
    ),
    "score of a sequence": Hostile(
        labelled(
            np.zeros((12, 2, 1, 32)),
            "g (float[1, 16] x) => (seq(float[1, 32]) y) { a = MatMul(x, w)  y = SequenceConstruct(a, a) }",
        ),
        "output 'y' is no tensor of numbers",
        scored("psnr"),
    ),
    "softmax along an axis that is none": Hostile(ending("y = Softmax<axis = -9>(c)"), "", CHECK[:3]),
    "softmax along an axis beyond all": Hostile(
        ending("s = Shape(c)  d = Reshape(c, s)  y = LogSoftmax<axis = 1099511627776>(d)", 11), "", CHECK[:3], 0
    ),
    "pipe in the place of a search's progress": Hostile(
        trapped(os.mkfifo), "'out.onnx.search' is not a file", (*SEARCH, "--budget", "bits=9")
    ),
    "something else in the place of a search's progress": Hostile(
        trapped(lambda path: path.write_text("precious")),
        "'out.onnx.search' is where progress is kept, and something else is there",
        (*SEARCH, "--budget", "bits=9"),
    ),
    "link in the place of a search's progress": Hostile(
        trapped(lambda path: path.symlink_to("data.npz")),
        "cannot be the output",
        (*SEARCH, "--budget", "bits=9", "--data", "data.npz"),
    ),
    "path of an option with a NUL": Hostile(
        lambda folder: None, "has a NUL in its name", (*SEARCH, "--profile", "a\0b"), code=2
    ),
    "page with a NUL in its name": Hostile(
        lambda folder: None, "has a NUL in its name", (*SEARCH, "--html", "a\0b"), code=2
    ),
    "evidence that cannot be unpacked": Hostile(
        spoilt_evidence, "'e.npz' cannot be read", (*BY_EVIDENCE, "-o", "out.onnx")
    ),
}
