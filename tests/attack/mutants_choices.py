"""Spoiled scores, labels and samples, and what searches leave: kinds of cases for `mutants.py`."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import odd
import tiny
from attack import mutate
from attack.mutants_data import Case
from attack.mutants_options import CONSTANTS, options, sound_model
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq import cli
from onnxq.errors import OnnxqError
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare


def labels(case: Case, folder: Path) -> list[str]:
    """Labels of any length, type and content."""
    r = case.r
    count = 12
    made: list[Callable[[], NDArray]] = [
        lambda: np.arange(count) % 6,
        lambda: np.arange(count - 1),
        lambda: np.array([np.nan] * count),
        lambda: np.array([1e300] * count),
        lambda: np.array(["cat"] * count),
        lambda: np.array([b"cat"] * count),
        lambda: np.zeros((count, 1, 6)),
        lambda: np.zeros((count, 6), np.complex64),
        lambda: np.zeros((count, 0)),
        lambda: np.zeros(0),
        lambda: np.array(3),
        lambda: np.full((count, 1), -1),
        lambda: np.zeros(count, "datetime64[s]"),
        lambda: np.zeros(count, [("a", "f4")]),
        lambda: np.full((count, 1, 6), np.inf),
        lambda: np.full((count, 1, 6), True),
        lambda: np.full(count, np.iinfo(np.uint64).max, np.uint64),
        lambda: np.full((count, 1, 6), np.finfo(np.float64).max),
    ]
    sound_model(folder, t=r.choice(made)())
    if case.command % 4 == 3:
        odd_outputs(folder, r)
    if case.command // 4 % 4 == 0:
        path = folder / "data.npz"
        for seed in case.seeds:
            path.write_bytes(mutate.spoil_bytes(path.read_bytes(), random.Random(seed)))
    word = r.choice(["top1", "top5", "f1", "nll", "kld", "psnr"])
    words = ["--data", "data.npz", "--metric", word, *r.choice([["--labels", "t"]] * 5 + [[]])]
    words += r.choice([[], [], ["--logits", "y"], ["--logits", "none"]])
    head = [
        ["quantize", "model.onnx", "-s", "w8a8", "-o", "out.onnx", "--effort", "quick"],
        ["check", "model.onnx", "model.onnx"],
    ]
    chosen = head[case.command // 16 % 2]
    return [*chosen, *words, *(["--max-drop", "0.1"] if chosen[0] == "quantize" and r.random() < 0.3 else [])]


def odd_outputs(folder: Path, r: random.Random) -> None:
    """The first output is none that metrics know."""
    ends = (
        "(seq(float[1, 16]) y) { a = MatMul(x, w)  c = MatMul(a, v)  y = SequenceConstruct(c, c) }",
        "(int64[n] y) { a = MatMul(x, w)  y = Shape(a) }",
        "(float[0, 6] y) { a = MatMul(x, w)  s = Constant<value_ints = [0, 6]>()  e = Constant<value_floats = [0.0]>() "
        " z = Expand(e, s)  y = Identity(z) }",
        "(float y) { a = MatMul(x, w)  y = ReduceSum<keepdims = 0>(a) }",
        "(float[1, 32] y) { a = MatMul(x, w)  y = Softmax<axis = -1>(a) }",
        "(bool[1, 32] y) { a = MatMul(x, w)  y = Greater(a, a) }",
        "(float[1, 1, 1, 32] y) { a = MatMul(x, w)  s = Constant<value_ints = [1, 1, 1, 32]>()  y = Reshape(a, s) }",
    )
    tiny.save(tiny.model(f"g (float[1, 16] x) => {r.choice(ends)}", CONSTANTS), folder)


def odd_data(case: Case, folder: Path) -> list[str]:
    """Samples of numbers that nobody expects, few or one, for what chooses by data."""
    r = case.r
    x = tiny.normal(r.choice([1, 2, 3, 12]), 1, 16).copy()
    for seed in case.seeds:
        part = random.Random(seed)
        value = part.choice([np.nan, np.inf, -np.inf, 0.0, 1e38, 3e38, 1e-45, 1.0, -1e30])
        where = part.choice([np.s_[:], np.s_[..., 3], np.s_[0], np.s_[-1], np.s_[..., ::2]])
        x[where] = value
    sound_model(folder, x=x)
    commands = (
        ["-s", "w8a8"],
        ["-w", "int3", "-t", "onnxq"],
        ["-w", "int4", "-t", "onnx", "--algorithm", "gptq"],
        ["-w", "q4_k", "-t", "onnxq"],
        ["-s", "w4a16"],
        ["-s", "w8a8", "-t", "onnxq"],
        ["-s", "w8a8", "--calibration", r.choice(["entropy", "mse", "percentile", "moving-average", "minmax"])],
        ["--budget", r.choice(["bits=9", "size=90%", "drop=0.1"]), "--effort", "quick"],
        ["-s", "auto"],
    )
    chosen = commands[case.command % len(commands)]
    checks = r.choice([[], ["--no-check"]]) if "--budget" not in chosen else []
    effort = [] if "--effort" in chosen else ["--effort", "quick"]
    return ["quantize", "model.onnx", "--data", "data.npz", "-o", "out.onnx", *chosen, *effort, *checks]


def searched(case: Case, folder: Path) -> list[str]:
    """What a search left before it was stopped, or the plan that it wrote."""
    sound_model(folder)
    target, sets = ("ort-cpu", "onnxq", "onnx")[case.command // 2 % 3], ["--set", "up=uint4", "--set", "down=int8"]
    if case.command % 2:
        made = CliRunner().invoke(
            cli.main, ["plan", "model.onnx", "-w", "int4", "-t", target, *sets, "-o", "plan.json"]
        )
        assert made.exit_code == 0, made.output
        value = json.loads((folder / "plan.json").read_text()) | {"scheme": "search"}
        for seed in case.seeds:
            value = mutate.spoil_json(value, random.Random(seed))
        (folder / "plan.json").write_text(json.dumps(value))
        return ["quantize", "model.onnx", "-t", target, "--plan", "plan.json", "-o", "out.onnx"]
    words = [
        "quantize",
        "model.onnx",
        "--budget",
        "bits=9",
        "--effort",
        "quick",
        "--formats",
        "uint4/32",
        "--formats",
        "int8",
    ]
    text = _progress(folder, [*words, "-o", "out.onnx"])
    value = json.loads(text)
    for seed in case.seeds:
        r = random.Random(seed)
        plans = value.get("plans") if isinstance(value, dict) else None
        if isinstance(plans, dict) and plans and r.random() < 0.7:
            name = r.choice(list(plans))
            plans[name] = mutate.spoil_json(plans[name], r)
            numbers = (0, -1, 1e308, 1e-320, -1e308, 10**40)
            if isinstance(plans[name], dict):
                plans[name]["harm"] = r.choice(numbers)
        else:
            value = mutate.spoil_json(value, r)
    raw = json.dumps(value).encode()
    (folder / "out.onnx.search").write_bytes(mutate.spoil_bytes(raw, case.r) if case.command // 2 % 5 == 0 else raw)
    return [*words, "-o", "out.onnx"]


def _progress(folder: Path, words: list[str]) -> str:
    """What a search leaves that is not finished."""
    from onnxq import pipeline

    removed, pipeline.remove = pipeline.remove, lambda path: None  # type: ignore[attr-defined, assignment]
    try:
        made = CliRunner().invoke(cli.main, words)
    finally:
        pipeline.remove = removed  # type: ignore[attr-defined]
    assert made.exit_code in (0, 3), made.output
    (folder / "out.onnx").unlink()
    return (folder / "out.onnx.search").read_text()


def logits(case: Case, folder: Path) -> list[str]:
    """Models whose ends look like scores of classes, and are odd."""
    ends = (
        "y = Softmax<axis = {}>(c)",
        "y = LogSoftmax<axis = {}>(c)",
        "s = Softmax<axis = {}>(c)  y = Identity(s)",
        "g1 = Gemm<transB = {}>(c, h)  y = Add(g1, k)",
        "g1 = MatMul(c, h)  g2 = Div(g1, k)  y = Cast<to = 1>(g2)",
    )
    r = case.r
    axis = r.choice([-9, -3, -2, -1, 0, 1, 2, 7, 2**40, -(2**40)])
    text = (
        f"g (float[{r.choice(['1, 16', 'n, 16', '16', '1, 1, 16', 'n, m, k'])}] x) "
        f"=> (float{r.choice(['', '[1, 6]', '[n]'])} y) "
        f"{{ [up] a = MatMul(x, w)  [down] c = MatMul(a, v)  {r.choice(ends).format(axis)} }}"
    )
    proto = tiny.model(text, {**CONSTANTS, "k": tiny.normal(6)}, opset=r.choice([11, 13, 17, 21]))
    for seed in case.seeds[1:]:
        mutate.spoil_model(proto, random.Random(seed))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "data.npz", x=tiny.normal(3, 1, 16))
    how = [["--logits", "y"], [], ["--logits", "none"]][case.command % 3]
    data = [["--data", "data.npz"], []][case.command // 3 % 2]
    if case.command // 6 % 2:
        return ["quantize", "model.onnx", "-s", "w4a16", "-o", "out.onnx", *how, *data]
    return ["check", "model.onnx", "model.onnx", *how, *data]


#: What a plan may say of a node; most say what most can be.
METHODS = ("static", "static", "static", "dynamic", "packed", "stored", "half", "keep", "fused")
NUMBER_FORMATS = (None, None, "int8", "int8", "int4", "uint4", "nf4", "float16", "bfloat16", "int3", "q4_k")


def planned(case: Case, folder: Path) -> list[str]:
    """A plan of right words, for nodes that may be of no such kind."""
    proto, r = odd.MODELS[case.base].proto(), case.r
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    (feed,) = odd.MODELS[case.base].feeds(1)
    np.savez(folder / "data.npz", **{n: x for n, x in feed.items() if not x.dtype.hasobject})  # type: ignore[arg-type]
    nodes: list[Any] = []
    with contextlib.suppress(OnnxqError):  # of maps
        model = load_model(folder / "model.onnx")
        prepare(model)
        nodes = list(graph.nodes(model))
    rows = [
        {
            "node": node.name,
            "op": node.op_type,
            "method": r.choice(METHODS),
            "format": r.choice(NUMBER_FORMATS),
            "block": r.choice([None, None, 32, 16]),
        }
        for node in nodes
        if r.random() < 0.6
    ]
    target = r.choice(["ort-cpu", "onnxq", "onnx"])
    plan = {"scheme": r.choice(["w8a8", "w8a8", "w4a16"]), "target": target, "choices": rows}
    (folder / "plan.json").write_text(json.dumps(plan))
    words = ["quantize", "model.onnx", "--plan", "plan.json", "-t", target, "--data", "data.npz", "-o", "out.onnx"]
    return [*words, "--no-check", "--calibration", "minmax"]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {
    "planned": planned,
    "any options": options,
    "labels": labels,
    "odd data": odd_data,
    "searched": searched,
    "logits": logits,
}
