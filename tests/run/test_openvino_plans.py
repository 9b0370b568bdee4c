"""What target openvino rounds, and plans that follow the times of another runtime: with one that stands in for it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from tiny import normal

from onnxq import Recipe, pipeline
from onnxq.checking import elsewhere
from onnxq.errors import BadModel, BadRecipe
from onnxq.pipeline import Result
from onnxq.plan import Method, Plan
from onnxq.recipe import Rule
from onnxq.runtime.consumers import open_in
from onnxq.runtime.consumers import openvino as consumer
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.profile import MachineProfile, PlanTime, new_profile
from onnxq.runtime.session import Session
from onnxq.runtime.timing import Race
from onnxq.tuning.there import There

pytestmark = pytest.mark.usefixtures("quick")
KERNELS = {word: normal(8, 8, 3, 3, seed=seed) for seed, word in enumerate("klmo")}
CHAIN = """[a] u = Conv <pads = [1, 1, 1, 1]> (x, k)  [b] v = Conv <pads = [1, 1, 1, 1], strides = [1, 1]> (u, l)
    [c] y = Conv <pads = [1, 1, 1, 1], dilations = [1, 1]> (v, m)"""


class StandIn(Session):
    """onnxruntime, as another runtime would look."""

    def __init__(self, model: Path, threads: int) -> None:
        super().__init__(model, threads=threads)

    def precisions(self) -> Counter[str]:
        return Counter()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "Session", StandIn)
    monkeypatch.setattr(consumer, "version", lambda: "")
    monkeypatch.setattr(elsewhere, "race", lambda *_, **__: Race((1.0, 0.9), (0.0, 0.01)))


@pytest.fixture
def by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)


def quantized(
    folder: Path,
    body: str,
    *words: str,
    keep_slow: bool = False,
    keep: str = "",
    profile: MachineProfile | None = None,
) -> tuple[Path, Result]:
    text = f"g (float[n, 8, 12, 12] x) => (float[n, c, h, w] y) {{ {body} }}"
    model = tiny.save(tiny.model(text, {word: KERNELS[word] for word in words}), folder)
    x = np.random.default_rng(0).standard_normal((8, 1, 8, 12, 12)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    rules = (Rule("keep", keep),) if keep else ()
    recipe = Recipe("w8a8", rules, min_sqnr=-np.inf, keep_slow=keep_slow)
    data = folder / "data.npz"
    return model, pipeline.quantize(model, folder / "q.onnx", recipe, target="openvino", data=data, profile=profile)


def makers(file: Path) -> dict[str, list[str]]:
    """By operator, the operators that make what it reads, node by node."""
    nodes = list(onnx.load(file).graph.node)
    made = {name: node.op_type for node in nodes for name in node.output}
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.op_type, []).extend(made.get(name, "") for name in node.input[:2])
    return found


def test_what_only_floats_read_is_not_rounded(tmp_path: Path, by_rules: None) -> None:
    """Nor what the graph returns, nor for those in float beside a convolution that reads codes."""
    body = CHAIN.replace("y =", "t =") + "  s = Tanh (v)  y = Add (t, s)"
    found = makers(quantized(tmp_path, body, *"klm")[1].output)
    assert found["Tanh"] == ["Conv"] and found["Add"] == ["Conv", "Tanh"]
    assert found["Conv"] == ["DequantizeLinear"] * 6 and found["QuantizeLinear"].count("Conv") == 2


NORM = """s = Constant <value = float[8] {1, 1, 1, 1, 1, 1, 1, 1}> ()  a = Conv <pads = [1, 1, 1, 1]> (x, k)"""


@pytest.mark.parametrize(
    ("makes", "reader"),
    [
        ("b = InstanceNormalization (a, s, s)  c = Relu (b)", "DequantizeLinear"),
        ("b = Tanh (a)  c = Add (b, x)", "DequantizeLinear"),
        ("b = Tanh (a)  [alone] c = Add (b, x)", "Add"),  # which the user keeps in float
        ("b = InstanceNormalization (a, s, s)  c = Elu (b)", "Elu"),
        ("c = Identity (a)", "Conv"),
    ],
)
def test_everybody_reads_codes_that_their_maker_rounds_itself(
    tmp_path: Path, by_rules: None, makes: str, reader: str
) -> None:
    """As it does only if nobody reads what was not rounded."""
    body = f"{NORM}  {makes}  d = Conv <pads = [1, 1, 1, 1]> (c, l)  e = Softsign (c)  y = Add (d, e)"
    found = makers(quantized(tmp_path, body, *"kl", keep="alone" if "alone" in makes else "")[1].output)
    assert found["Softsign"] == [reader]


def test_activation_functions_that_kernels_compute_in_floats_are_not_rounded_for(
    tmp_path: Path, by_rules: None
) -> None:
    body = """a = Conv (x, k)  b = Sigmoid (a)  c = Mul (a, b)  d = Conv (c, l)  e = LeakyRelu (d)  f = Conv (e, m)
        p = MaxPool <kernel_shape = [2, 2]> (f)  y = Conv (p, o)"""
    found = makers(quantized(tmp_path, body, *"klmo")[1].output)
    assert found["Sigmoid"] == ["Conv"] and found["Mul"] == ["Conv", "Sigmoid"] and found["LeakyRelu"] == ["Conv"]
    assert found["MaxPool"] == ["DequantizeLinear"] and found["Conv"] == ["DequantizeLinear"] * 8


def test_transposed_convolutions_read_codes_around_0(tmp_path: Path) -> None:
    body = """a = Conv (x, k)  b = ConvTranspose <strides = [2, 2]> (a, l)  c = Conv (b, m)  d = Relu (c)
        y = ConvTranspose <strides = [2, 2]> (d, o)"""
    model, done = quantized(tmp_path, body, *"klmo", keep_slow=True)
    graph = onnx.load(done.output).graph
    types = {node.output[0]: node.input[2] for node in graph.node if node.op_type == "DequantizeLinear"}
    zeros = {value.name: onnx.numpy_helper.to_array(value) for value in graph.initializer}
    read = {
        op: [zeros[types[node.input[0]]] for node in graph.node if node.op_type == op]
        for op in ("Conv", "ConvTranspose")
    }
    signed, least = read["ConvTranspose"]
    assert signed.dtype == np.int8 and signed == 0
    assert least.dtype == np.uint8 and least == 0  # no number is negative there
    assert all(zero.dtype == np.uint8 and zero > 0 for zero in read["Conv"])
    opened = open_in("openvino", done.output, 1)
    if opened is None:
        pytest.skip("no openvino to see what it makes of them")
    assert opened.precisions().keys() <= {"i8", "u8"} and opened.precisions().total() == 4
    feed = {"x": np.random.default_rng(9).standard_normal((1, 8, 12, 12)).astype(np.float32)}
    assert tiny.sqnr(Session(model).run(feed)[0], opened.run(feed)[0]) > 20


def times(monkeypatch: pytest.MonkeyPatch, of: Callable[[Plan], float], spread: float = 0.01) -> None:
    def ratios(self: There, plans: list[Plan], feed: object) -> list[PlanTime]:
        return [PlanTime(of(plan), spread) for plan in plans]

    monkeypatch.setattr(There, "ratios", ratios)


def in_int8(plan: Plan) -> str:
    return "".join(choice.node for choice in plan.those(Method.STATIC))


def test_nodes_that_are_slower_there_in_int8_stay_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None
) -> None:
    """Whatever onnxruntime takes for them."""

    def kernels(self: There, plan: Plan, feed: object) -> list[Kernel]:
        slow = {"a": 0.5, "b": 0.1, "c": 3.0}
        return [Kernel("Convolution", c.node, slow[c.node] if c.method is Method.STATIC else 1.0, 1) for c in plan]

    monkeypatch.setattr(There, "kernels", kernels)
    times(monkeypatch, lambda plan: {"abc": 1.2, "ab": 0.55, "": 1.0}[in_int8(plan)])
    _, done = quantized(tmp_path, CHAIN, *"klm")
    assert in_int8(done.plan) == "ab"
    assert "float is faster" in done.plan.choices["c"].reason


@pytest.mark.parametrize("keep_slow", [False, True])
def test_a_model_that_gets_slower_whatever_is_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None, keep_slow: bool
) -> None:
    monkeypatch.setattr(
        There, "kernels", lambda self, plan, feed: [Kernel("Convolution", c.node, 1.0, 1) for c in plan]
    )
    times(monkeypatch, lambda plan: 1.5 if in_int8(plan) else 1.2)
    model, done = quantized(tmp_path, CHAIN, *"klm", keep_slow=keep_slow)
    if keep_slow:
        assert in_int8(done.plan) == "abc"
    else:
        assert "float is faster in openvino" in done.copied and done.output.read_bytes() == model.read_bytes()


def test_what_may_be_noise_is_no_reason_to_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None
) -> None:
    monkeypatch.setattr(
        There, "kernels", lambda self, plan, feed: [Kernel("Convolution", c.node, 1.0, 1) for c in plan]
    )
    times(monkeypatch, lambda plan: 1.2, spread=0.3)
    _, done = quantized(tmp_path, CHAIN, *"klm")
    assert {choice.label for choice in done.plan} == {"int8 stored"}
    assert {choice.reason for choice in done.plan} == {"float is faster in openvino"}


def test_a_plan_in_int8_has_to_be_faster_than_float_however_little_noise_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None
) -> None:
    """Where plans in float miss what was asked for: nothing is written, and not what is slower."""
    monkeypatch.setattr(
        There, "kernels", lambda self, plan, feed: [Kernel("Convolution", c.node, 1.0, 1) for c in plan]
    )
    times(monkeypatch, lambda plan: 1.5 if in_int8(plan) else 0.99)
    _, done = quantized(tmp_path, CHAIN, *"klm")
    assert in_int8(done.plan) == ""


def test_a_file_that_turns_out_slower_there_is_written_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None
) -> None:
    """It is the time of that runtime that counts, not that of onnxruntime."""

    def kernels(self: There, plan: Plan, feed: object) -> list[Kernel]:
        return [Kernel("Convolution", c.node, 0.5 if c.method is Method.STATIC else 1.0, 1) for c in plan]

    monkeypatch.setattr(There, "kernels", kernels)
    times(monkeypatch, lambda plan: 0.5 if in_int8(plan) else 1.0)
    for seconds, wanted in ((0.5, "abc"), (2.0, "")):
        monkeypatch.setattr(elsewhere, "race", lambda *_, **__: Race((1.0, seconds), (0.0, 0.01)))  # noqa: B023
        _, done = quantized(tmp_path, CHAIN, *"klm")
        (tmp_path / "q.onnx").unlink()
        assert in_int8(done.plan) == wanted
    assert {choice.reason for choice in done.plan} == {"the saved file was slower than float"}


@pytest.mark.parametrize("lacks", ["", "of value", "in openvino"])
def test_a_profile_that_knows_that_runtime_decides_the_same_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None, lacks: str
) -> None:
    """One that lacks what it has to know says so."""
    slow = {"a": 0.5, "b": 0.1, "c": 3.0}

    def kernels(self: There, plan: Plan, feed: object) -> list[Kernel]:
        return [Kernel("Convolution", c.node, slow[c.node] if c.method is Method.STATIC else 1.0, 1) for c in plan]

    monkeypatch.setattr(There, "kernels", kernels)
    times(monkeypatch, lambda plan: {"abc": 1.2, "ab": 0.55, "": 1.0}[in_int8(plan)])
    profile = new_profile(1)
    _, done = quantized(tmp_path, CHAIN, *"klm", profile=profile)
    assert in_int8(done.plan) == "ab" and any("in openvino" in key for key in profile.kernels)
    kept = {key: seconds for key, seconds in profile.kernels.items() if not lacks or lacks not in key}
    closed = dataclasses.replace(profile, kernels=kept, is_closed=True)
    monkeypatch.setattr(There, "kernels", lambda self, plan, feed: pytest.fail("it was timed"))
    (tmp_path / "q.onnx").unlink()
    if lacks:
        with pytest.raises(BadRecipe, match=r"lacks \d of this model's kernels"):
            quantized(tmp_path, CHAIN, *"klm", profile=closed)
    else:
        assert in_int8(quantized(tmp_path, CHAIN, *"klm", profile=closed)[1].plan) == "ab"


def test_a_node_that_the_runtime_does_not_read_in_integers_stays_in_float_and_the_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None
) -> None:
    class Particular(StandIn):
        def __init__(self, model: Path, threads: int) -> None:
            super().__init__(model, threads=threads)
            nodes = onnx.load(model).graph.node
            decoded = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
            if any(node.name == "b" and node.input[0] in decoded for node in nodes):
                raise BadModel("it refuses the model: no codes for b")

    monkeypatch.setattr(consumer, "Session", Particular)
    _, done = quantized(tmp_path, CHAIN, *"klm", keep_slow=True)
    assert in_int8(done.plan) == "ac"
    assert done.plan.choices["b"].reason == "else it refuses the model: no codes for b"
    assert done.check is not None and done.check.elsewhere is not None and done.check.elsewhere.was_run
