"""Spoiled steps of regions of every kind: codes, float32 and bfloat16; images, lines and rows. For `mutants.py`."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attack import mutate
from attack.mutants_data import Case
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
import islands
import numbers_net
import row_nets

#: Lines that any list of steps may get; N stands for a step before, C for a constant.
LINES = (
    "conv_transpose x=N weight=C weight_scale=C scale=1 zero=2 strides=2,2 output_padding=1,1",
    "conv_transpose x=N weight=C strides=3,2 pads=1,0,1,0 dilations=2,1",
    "resize_linear x=N scale=1 zero=2 sizes=C coordinates=2",
    "resize_linear x=N ratios=C",
    "resize x=N sizes=C nearest=3 coordinates=1",
    "pad x=N before=0,0,1,1 behind=0,0,1,1 mode=1",
    "pad x=N before=1,0,1,0 behind=0,0,0,0",
    "slice x=N starts=0,0,0,1 stops=9,9,9,9 steps=1,1,1,2",
    "slice x=N starts=0,0,1,0 stops=99,99,1,99 steps=1,1,1,1",
    "arrange x=N split=0,-1,2 perm=0,2,1 shape=0,-1",
    "depth_to_space x=N block=2 mode=1",
    "space_to_depth x=N block=2 to_depth=1",
    "concat x=N,N scale=1 zero=2 axis=0",
    "concat x=N,N scale=1 zero=2 axis=2",
    "concat x=N,N",
    "constant codes=C scale=1 zero=2",
    "table x=N table=C scale=1 zero=2",
    "product x=N weight=C weight_scale=C scale=1 zero=2",
    "max_pool x=N kernel=1,1 pads=1,0,1,0",
    "average_pool x=N kernel=2,2 scale=1 zero=2 same=2 counts_pads=1",
    "global_average_pool x=N keeps=0",
    "flatten x=N",
    "affine x=N weight=C bias=C act=2",
    "affine x=N weight=C bias=C scale=1 zero=2 relu=1 high=C",
    "affine x=N weight=C bias=C knee=C scale=1 zero=2",
    "conv x=N,N weight=C bias=C act=5 low=C high=C",
)
#: Of float32 that is read, or has been written; O stands for an output of its own.
ROW_LINES = (
    "read in=0 stack=1",
    "write x=N out=O",
    "write x=N out=O",
    "slice x=N starts=0,0,0,1 stops=16777216,16777216,16777216,16777216 steps=1,1,1,1",
    "slice x=N starts=0,0,0,-1 stops=99,99,99,-16777216 steps=1,1,1,-2",
    "pad x=N before=0,0,0,0 behind=0,0,0,20000",
    "pad x=N before=0,2,0,1 behind=0,-2,0,0 mode=2",
    "flatten x=N",
    "arrange x=N perm=0,2,1 stack=1",
    "arrange x=N shape=-1,32",
    "arrange x=N split=0,-1,1,32 stack=1",
    "plus x=N,N",
    "softmax x=N",
    "layer_norm x=N epsilon=C",
    "rotary x=N,N,N",
    "encode x=N scale=C zero=C",
    "decode x=N",
    "matmul x=N,N transposed=1",
    "sums x=N,N weight=C weight_scale=C",
)
NUMBERS = (0, 1, 2, 3, 4, 7, 16, 64, 255, 4096, 4097, 1 << 20, 1 << 24, 999999999, -1, -9)


def decoder(r: random.Random) -> onnx.ModelProto:
    """Codes of images: made smaller and larger, moved, joined."""
    net = islands.Net(r.randrange(99), (r.choice([1, 2]), r.choice([3, 8]), 8, r.choice([6, 8])))
    a = net.conv(net.x, 8, (3, 3), "Relu", pads=[1, 1, 1, 1], strides=[2, 2])
    b = net.conv_transpose(a, r.choice([8, 5]), (3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    c = net.between(b, (12, 16), coordinate_transformation_mode=r.choice(["half_pixel", "asymmetric"]))
    net.outputs += [net.conv(net.concat([c, c], r.choice([1, 2, 3])), 5, (1, 1)), net.function(b, "by channel")]
    return islands.with_regions(net.model())


def lines(r: random.Random) -> onnx.ModelProto:
    """Codes of rank 3."""
    net = islands.Net(r.randrange(99), (2, 6, r.choice([9, 12])))
    a = net.conv(net.x, 6, (3,), "Clip", pads=[1, 1])
    b = net.conv_transpose(a, 4, (4,), strides=[2], pads=[1, 1])
    net.outputs += [b, net.pool("MaxPool", a, kernel_shape=[3], pads=[1, 1])]
    return islands.with_regions(net.model())


def rows(r: random.Random) -> onnx.ModelProto:
    """Codes of rank 2."""
    net = islands.Net(r.randrange(99), (r.choice([1, 7]), 24))
    a = net.gemm(net.x, 16, 1)
    net.shapes[a] = (net.x_shape[0], 16)
    net.outputs.append(net.gemm(net.activated(a, "Relu", 0.5), 5, 0))
    return islands.with_regions(net.model())


def stacks(r: random.Random) -> onnx.ModelProto:
    """Float32 between codes, of rank 3: what is read and written as it is, and a layer of a transformer."""
    net = row_nets.Rows(r.randrange(99), (r.choice([1, 2]), r.choice([3, 9]), 32))
    a = net.plus(net.matmul(net.codes(net.norm("x")), 32), "x")
    net.outputs += [a, row_nets.block(net, net.codes(a), 4)]
    return islands.with_regions(net.model())


def numbers(r: random.Random) -> onnx.ModelProto:
    """Of bfloat16, of rank 3 or 4."""
    sizes = r.choice([(8, 6), (10,)])
    net = numbers_net.Net(r.randrange(99), (2, 4, *sizes))
    ones = [1] * len(sizes)
    a = net.node("Relu", [net.conv("x", (8, 4, *ones))])
    b = net.conv_transpose(a, (8, 6, *(2 for _ in sizes)), strides=[2 for _ in sizes])
    pooled = net.node("MaxPool", [a], kernel_shape=[3 for _ in sizes], pads=[1 for _ in (*sizes, *sizes)])
    net.outputs += [b, net.node("Concat", [a, pooled], axis=1), net.conv(a, (8, 1, *ones), group=8)]
    return numbers_net.with_regions(net.model())


Made = Callable[[random.Random], onnx.ModelProto]
MADE: tuple[Made, ...] = (decoder, lines, rows, numbers, stacks)


def steps(case: Case, folder: Path) -> list[str]:
    """A region whose list of steps, or constants, are others; what `region` asks for of older steps."""
    model = MADE[case.command % len(MADE)](case.r)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    np.savez(folder / "data.npz", x=np.random.default_rng(0).normal(0, 3, (3, *shape)).astype(np.float32))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    node = next(node for node in model.graph.node if node.op_type in ("Region", "Bf16Region"))
    outputs = len(node.output)
    for seed in case.seeds:
        spoil(model, node, random.Random(seed))
    # Without its body, which shapes are inferred of, and which makes no outputs but its own.
    if case.command // len(MADE) % 4 == 0 or len(node.output) > outputs:
        del model.functions[:]
    (folder / "r.onnx").write_bytes(model.SerializeToString())
    command = ["check", "model.onnx", "r.onnx", "--data", "data.npz"]
    return ["inspect", "r.onnx"] if case.command % 16 == 15 else command


def spoil(model: onnx.ModelProto, node: onnx.NodeProto, r: random.Random) -> None:
    """One change of a region's steps, constants or inputs."""
    (said,) = (each for each in node.attribute if each.name == "steps")
    text = said.s.decode(errors="replace").split("\n")
    how = r.randrange(7)
    if how == 0:
        tensor = r.choice(list(model.graph.initializer))
        array = numpy_helper.to_array(tensor)
        shape = r.choice(
            [array.shape[::-1], (array.size,), (1, *array.shape), (0, *array.shape), (1 << 29, 1 << 29, 0)]
        )
        given = np.resize(array, shape) if 0 not in shape else np.zeros(0, array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(given, tensor.name))
        tensor.dims[:] = shape
    elif how == 1:
        values = r.choice([[1, 4, 16, 16], [1 << 30] * 4, [0] * 4, [-1] * 4, [(1 << 24) + 1] * 3, []])
        kind = r.choice([np.int64, np.float32])
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, kind), f"more{len(node.input)}"))
        node.input.append(f"more{len(node.input)}")
        text[-1:-1] = [_line(r.choice(LINES), len(text) - 1, len(node.input), r)]
    elif how == 2:
        _add_row(text, node, r)
    elif how < 5:
        at = r.randrange(1, len(text) + 1)
        text.insert(at, _line(r.choice(LINES), at - 1, len(node.input), r))
        if r.random() < 0.7:  # and what follows reads it
            text[at + 1 :] = [re.sub(rf"\bx={at - 2}\b", f"x={at - 1}", line) for line in text[at + 1 :]]
    elif how == 5 and len(text) > 1:  # an earlier change may have left the first line alone
        at = r.randrange(1, len(text))
        found = [*re.finditer(r"(?<=[=,])-?\d+", text[at])]
        if found:
            number = r.choice(found)
            text[at] = text[at][: number.start()] + str(r.choice(NUMBERS)) + text[at][number.end() :]
    else:
        said.s = mutate.spoil_bytes(said.s, r)
        return
    said.s = "\n".join(text).encode()


def _add_row(text: list[str], node: onnx.NodeProto, r: random.Random) -> None:
    """A line of rows more, most often behind a `read` or before a `write`, whose tensor it changes.

    Steps behind it are read by the numbers that they now have.
    """
    edges = [i + said.startswith("read") for i, said in enumerate(text) if i and said.startswith(("read", "write"))]
    at, line = r.choice([*edges, *edges, r.randrange(1, len(text) + 1)]), r.choice(ROW_LINES)
    number, replaces = at - 1, not line.startswith("write") and r.random() < 0.7
    if "O" in line:
        node.output.append(f"y{len(node.output)}_more")
    # What the line most often reads: what the next one writes, or the step before that makes something.
    written = re.match(r"write x=(\d{1,4}) ", text[at]) if at < len(text) else None
    made = [i for i, said in enumerate(text[1:at]) if not said.startswith(("write", "dequantize", "gemm"))]
    before = int(written[1]) if written else max(made, default=0)
    if r.random() < 0.7:
        line = re.sub(r"\bN\b", str(before), line)

    def moved(found: re.Match[str]) -> str:
        step = int(found.group())
        return str(number if replaces and step == before else step + (step >= number))

    sources = re.compile(r"(?<= x=)[\d,]+")
    text[at:] = [sources.sub(lambda found: re.sub(r"\d{1,9}", moved, found.group()), each) for each in text[at:]]
    line = re.sub(r"\bO\b", str(len(node.output) - 1), line)
    text.insert(at, _line(line, number, len(node.input), r))


def _line(line: str, step: int, inputs: int, r: random.Random) -> str:
    """With numbers of steps before and of inputs."""
    line = re.sub(r"\bN\b", lambda _: str(r.choice([step - 1, r.randrange(max(1, step))])), line)
    return re.sub(r"\bC\b", lambda _: str(r.choice([inputs - 1, r.randrange(inputs)])), line)


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"steps": steps}
