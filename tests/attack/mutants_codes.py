"""Spoiled files of codes: regions and what they are made of, evidence, GGUF. Kinds of cases for `mutants.py`."""

from __future__ import annotations

import random
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attack import mutate
from attack.mutants_data import Case, spoil
from attack.mutants_options import sound_model
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq import cli
from onnxq.checkpoints.encode_arrays import encode_arrays

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
import islands

#: Words of a step and numbers that any of them may say.
WORDS = (
    *(
        "x",
        "in",
        "out",
        "weight",
        "weight_scale",
        "bias",
        "scale",
        "zero",
        "table",
        "low",
        "high",
        "group",
        "relu",
        "ceil",
    ),
    *("counts_pads", "transposed", "same", "kernel", "strides", "dilations", "pads", "nonsense", ""),
)
STEPS = (
    *("quantize", "conv", "gemm", "add", "mul", "table", "max_pool", "average_pool", "global_average_pool", "concat"),
    *("flatten", "dequantize", "region", ""),
)
SIZES = (0, 1, 2, 3, 4, 7, 16, 31, 64, 255, 4096, 4097, 1 << 20, 999999999)


def island(r: random.Random) -> islands.Net:
    """A net of every kind of step."""
    net = islands.Net(r.randrange(99), (r.choice([1, 2]), r.choice([3, 16]), 8, r.choice([8, 9])))
    first = net.conv(net.x, 16, (3, 3), "Relu", pads=[1, 1, 1, 1])
    second = net.conv(first, 16, (3, 3), "Clip", pads=[1, 1, 1, 1], group=16)
    third = net.binary(r.choice(["Add", "Mul"]), first, second)
    pooled = net.pool(r.choice(["MaxPool", "AveragePool"]), third, kernel_shape=[2, 2], strides=[2, 2])
    net.shapes[pooled] = (net.x_shape[0], 16, 4, net.x_shape[3] // 2)
    joined = net.concat([pooled, net.conv(pooled, 5, (1, 1))])
    net.outputs.append(joined)
    end = net.pool("GlobalAveragePool", joined)
    net.outputs.append(net.gemm(net.flatten(end), 7, r.randrange(2)))
    return net


def region(case: Case, folder: Path) -> list[str]:
    """A region whose steps, constants, body or neighbours are others."""
    r = case.r
    net = island(r)
    model = islands.with_regions(net.model())
    onnx.save(net.model(), folder / "model.onnx")
    nodes = [node for node in model.graph.node if node.op_type == "Region"]
    for seed in case.seeds:
        _spoil_region(model, r.choice(nodes), random.Random(seed))
    (folder / "r.onnx").write_bytes(model.SerializeToString())
    x = np.random.default_rng(0).normal(0, 3, (3, *net.x_shape)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    commands = (
        ["check", "model.onnx", "r.onnx", "--data", "data.npz"],
        ["check", "model.onnx", "r.onnx"],
        ["inspect", "r.onnx"],
        ["quantize", "r.onnx", "-s", "w8a8-dynamic", "--requantize", "-o", "out.onnx"],
        ["quantize", "r.onnx", "-s", "w8a8", "--data", "data.npz", "-t", "onnxq", "--requantize", "-o", "out.onnx"],
    )
    return commands[case.command % len(commands)] if case.command % 8 else commands[0]


def _spoil_region(model: onnx.ModelProto, node: onnx.NodeProto, r: random.Random) -> None:
    how = r.randrange(9)
    steps = next((a for a in node.attribute if a.name == "steps"), None)
    if steps is None:  # spoiled before
        mutate.spoil_model(model, r)
    elif how < 5:
        steps.s = "\n".join(_spoilt_steps(steps.s.decode(errors="replace").split("\n"), r)).encode()
    elif how == 5:
        steps.s = mutate.spoil_bytes(steps.s, r)
    elif how == 6:
        _spoil_constant(model, r)
    elif how == 7:
        inputs = r.choice([node.input, node.output])
        number = r.randrange(len(inputs))
        inputs[number] = r.choice(["", inputs[0], "x", *(n.output[0] for n in model.graph.node), "new"])
    else:
        mutate.spoil_model(model, r)


def _spoilt_steps(lines: list[str], r: random.Random) -> list[str]:
    at = r.randrange(len(lines))
    words = lines[at].split(" ")
    how = r.randrange(8)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(r.randrange(len(lines) + 1), lines[at])
    elif how == 2:
        words[0] = r.choice(STEPS)
    elif how == 3:
        lines += lines[1:] * r.choice([1, 40])
    elif how == 4 and len(words) > 1:
        del words[r.randrange(1, len(words))]
    elif how == 5:
        words.append(f"{r.choice(WORDS)}={','.join(str(r.choice(SIZES)) for _ in range(r.choice([1, 1, 2, 4, 9])))}")
    elif len(words) > 1:
        number = r.randrange(1, len(words))
        name, _, values = words[number].partition("=")
        given = values.split(",")
        given[r.randrange(len(given))] = str(r.choice([*SIZES[:8], r.randrange(24)]))
        words[number] = f"{name}={','.join(given)}"
    if how in (2, 4, 5, 6, 7):
        lines[at] = " ".join(words)
    return lines


def _spoil_constant(model: onnx.ModelProto, r: random.Random) -> None:
    tensor = r.choice(list(model.graph.initializer))
    x = numpy_helper.to_array(tensor)
    made: list[Callable[[], NDArray]] = [
        lambda: x.reshape(-1),
        lambda: x.reshape(-1)[:-1],
        lambda: x.astype(r.choice([np.int8, np.uint8, np.int32, np.float32, np.float64, np.int64])),
        lambda: np.full_like(x, r.choice([0, 1, 127])),
        lambda: np.zeros((0, *x.shape[1:]), x.dtype),
        lambda: np.resize(
            x, r.choice([(1,), (2, 2), (40, 16, 3, 3), (16, 1, 3, 3), (1, 1, 1, 1), (16, 1, 70, 1), (7, 21)])
        ),
        lambda: (
            x * x.dtype.type(0)
            if x.dtype != np.float32
            else np.full_like(x, r.choice([np.nan, np.inf, -1, 1e-45, 3e38]))
        ),
    ]
    with np.errstate(all="ignore"):
        tensor.CopyFrom(numpy_helper.from_array(r.choice(made)(), tensor.name))


def evidence(case: Case, folder: Path) -> list[str]:
    """What data said of layers."""
    sound_model(folder)
    words = [
        "quantize",
        "model.onnx",
        "-w",
        ("int3", "int4", "q4_k")[case.command % 3],
        "-t",
        "onnxq",
        "--data",
        "data.npz",
    ]
    words += ["--evidence", "e.npz", "--effort", "quick", "--no-check"]
    made = CliRunner().invoke(cli.main, [*words, "-o", "out.onnx"])
    assert made.exit_code == 0, made.output
    (folder / "out.onnx").unlink()
    path = folder / "e.npz"
    if case.command // 3 % 4 == 0:
        spoil(case, path)
        return [*words, "-o", "out.onnx"]
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    for seed in case.seeds:
        _spoil_array(arrays, random.Random(seed))
    deflates = case.command // 3 % 4 == 1
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if deflates else zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    if deflates:
        spoil(case, path)
    return [*words, "-o", "out.onnx"]


def _spoil_array(arrays: dict[str, NDArray], r: random.Random) -> None:
    name = r.choice(list(arrays))
    x = arrays[name].copy()
    how = r.randrange(6)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = x.reshape(-1)
    elif how == 2:
        arrays[name] = np.zeros((0, *x.shape[1:]), x.dtype)
    elif x.dtype == np.float32 and x.size:
        values = (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e38, 3e38, 1e-45, -1e38)
        x[r.choice([np.s_[:], np.s_[..., 0], np.s_[0], np.s_[..., 1:3]])] = r.choice(values)
        arrays[name] = x
    elif how == 3:
        arrays[name] = x.astype(np.float64)
    elif x.dtype == np.uint8:
        arrays[name] = np.frombuffer(mutate.spoil_bytes(x.tobytes(), r), np.uint8)


WEIGHTS = {
    "a": np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512),
    "b": np.ones((3, 256), np.float32),
    "i": np.arange(4),
}
GGUF = ("q4_0", "q8_0", "q5_1", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0")


def gguf(case: Case, folder: Path) -> list[str]:
    """Weights in any block of ggml's, with metadata, some of whose numbers are others."""
    path = folder / "w.gguf"
    encode_arrays(WEIGHTS, path, GGUF[case.command % len(GGUF)], metadata={"general.name": "x", "note": "y" * 40})
    for seed in case.seeds:
        r = random.Random(seed)
        raw = bytearray(path.read_bytes())
        if r.random() < 0.5:  # in the header
            at = r.randrange(4, 300)
            width, form = r.choice([(4, "<I"), (8, "<Q")])
            raw[at : at + width] = struct.pack(form, r.choice(mutate.INTEGERS) % (1 << 8 * width))
            path.write_bytes(raw)
        elif r.random() < 0.5:  # scales among the codes
            at = r.randrange(len(raw) - 2)
            raw[at : at + 2] = r.choice([b"\x00\x7c", b"\x00\xfc", b"\x01\x7e", b"\xff\xff", b"\x01\x00"])
            path.write_bytes(raw)
        else:
            path.write_bytes(mutate.spoil_bytes(bytes(raw), r))
    (folder / "out").mkdir()
    return ["decode", "w.gguf", "-o", f"out/w.{('npz', 'safetensors')[case.command // 11 % 2]}"]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"region": region, "evidence": evidence, "gguf": gguf}
