"""What the tuner makes of the same measurements by each preference, and how often it measures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny

import onnxq
from onnxq.encoding import lazy
from onnxq.encoding.lazy import Encoding
from onnxq.encoding.memo import forget, remembering
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.job import open_job
from onnxq.plan import COMPUTING, Method, Plan
from onnxq.preference import PREFERENCES, SEARCHES
from onnxq.recipe import Recipe
from onnxq.runtime.kernel_times import Kernel
from onnxq.samples.trials import Trials
from onnxq.tuning import plan_bench
from onnxq.tuning.plan_bench import PlanBench

pytestmark = pytest.mark.usefixtures("quick")
LAYERS = 12


def encoder(folder: Path, *, head: int = 64) -> Path:
    """Residual layers with activations that a few channels rule, of which one layer suffers more than the others; and a
    product with another number of outputs behind them."""
    rng = np.random.default_rng(0)
    body, constants = "t = Gather<axis=0>(table, ids)  x0 = Mul(t, gain0)  ", {"table": tiny.normal(500, 64)}
    for i in range(LAYERS):
        body += f"[m{i}] h{i} = MatMul(x{i}, w{i})  r{i} = Tanh(h{i})  s{i} = Add(t, r{i})  "
        body += f"x{i + 1} = Mul(s{i}, gain{i + 1})  "
        gain = np.ones(64, np.float32)
        gain[rng.choice(64, 2)] = 4 * (1 + i % 3)
        weight = tiny.normal(64, 64, seed=i)
        weight[gain > 1] /= gain[gain > 1].max()
        constants |= {f"w{i}": weight, f"gain{i}": gain}
    constants[f"gain{LAYERS}"] = np.ones(64, np.float32)
    last = f"y = Identity(x{LAYERS})"
    if head != 64:
        last, constants["v"] = f"[head] y = MatMul(x{LAYERS}, v)", tiny.normal(64, head)
    text = f"g (int64[N, T] ids) => (float[N, T, {head}] y) {{ {body} {last} }}"
    return tiny.save(tiny.model(text, constants), folder)


def converted(result: onnxq.Result) -> int:
    return len(result.plan.those(Method.DYNAMIC))


@pytest.mark.sweep
def test_preferences_trade_speed_for_accuracy(tmp_path: Path, twice_as_fast: None) -> None:
    model, found = encoder(tmp_path), {}
    for word in PREFERENCES:
        recipe = Recipe("w8a8-dynamic", prefer=word)
        found[word] = onnxq.quantize(model, tmp_path / f"{word}.onnx", recipe)
    assert converted(found["speed"]) >= converted(found["balanced"]) > converted(found["accuracy"])
    checks = {word: result.check.sqnr for word, result in found.items() if result.check}
    assert 20 <= checks["speed"] < checks["balanced"] + 1 < checks["accuracy"]
    assert converted(found["balanced"]) >= LAYERS / 2
    assert found["size"].bytes_after <= min(result.bytes_after for result in found.values()) * 1.01


def test_nodes_are_in_float_for_their_time_or_for_their_noise(
    tmp_path: Path, twice_as_fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = PlanBench.kernels, "head"

    def kernels(bench: PlanBench, plan: Plan | None, *, timed: bool = True) -> list[Kernel]:
        is_int8 = plan is not None and plan.method(slow) in COMPUTING
        found = fast(bench, plan, timed=timed)
        return [dataclasses.replace(k, seconds=2.0) if is_int8 and k.name == slow else k for k in found]

    monkeypatch.setattr(PlanBench, "kernels", kernels)
    recipe = Recipe("w8a8-dynamic", prefer="accuracy")
    plan = onnxq.quantize(encoder(tmp_path, head=96), tmp_path / "q.onnx", recipe).plan
    back = {c.node: c.reason for c in plan if c.op == "MatMul" and c.method not in COMPUTING}
    assert back.pop(slow) == "computing in float is faster here"
    assert back and set(back.values()) == {"costs more accuracy than it gives speed"}


@pytest.mark.parametrize("word", ["balanced", "accuracy"])
def test_tables_stay_small_where_the_noise_comes_from_int8_kernels(
    tmp_path: Path, twice_as_fast: None, word: str
) -> None:
    """Nothing is gained by a longer format for weights that do not make the noise."""
    result = onnxq.quantize(encoder(tmp_path), tmp_path / "q.onnx", Recipe("w8a8-dynamic", prefer=word, keep_slow=True))
    (table,) = (choice for choice in result.plan if choice.op == "Gather")
    assert converted(result) > 0
    assert (table.method, table.format) == (Method.STORED, "int8")


@pytest.mark.sweep
@pytest.mark.parametrize("effort", SEARCHES)
def test_measurements_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: str) -> None:
    """Each search for harmful nodes measures as many plans as its progress announced, at most."""
    announced: list[int] = []
    done: Counter[int] = Counter()

    class Heard:
        def start(self, what: str, total: int | None = None, unit: str = "") -> None:
            announced.append(total if total is not None and "harm" in what else 0)

        def advance(self, count: int) -> None:
            done[len(announced) - 1] += count

    onnxq.quantize(
        encoder(tmp_path),
        tmp_path / "q.onnx",
        Recipe("w4a16", min_sqnr=35, effort=effort),
        progress=Heard(),
    )
    searches = {index: total for index, total in enumerate(announced) if total}
    assert searches
    for index, total in searches.items():
        assert SEARCHES[effort].least <= total <= SEARCHES[effort].most
        assert 0 < done[index] <= total


def test_no_weight_is_encoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: Counter[object] = Counter()
    encode = lazy._encode

    def counted(wanted: Encoding) -> QuantizedTensor:
        encoded[lazy.key_of(wanted)] += 1
        return encode(wanted)

    monkeypatch.setattr(lazy, "_encode", counted)
    onnxq.quantize(encoder(tmp_path), tmp_path / "q.onnx", Recipe("w4a16", min_sqnr=35))
    assert max(encoded.values()) == 1 and len(encoded) > LAYERS


def some_encoding(seed: int = 0, **how: object) -> Encoding:
    tensor = ir.tensor(tiny.normal(64, 32, seed=seed), name=f"w{seed}")
    return Encoding(tensor, onnxq.formats.get("int8"), Granularity(1), **how)  # type: ignore[arg-type]


def test_memory_knows_what_differs_and_is_bounded() -> None:
    one = some_encoding()
    with remembering() as memory:
        again = Encoding(one.tensor, one.format, one.granularity)
        assert one.result() is again.result() and memory.made == 1
        least = Encoding(one.tensor, one.format, one.granularity, least_scales=lambda: np.full(32, 0.5, np.float32))
        stretched = Encoding(one.tensor, one.format, one.granularity, stretch=2.0)
        assert np.all(least.result().scales == 0.5) and memory.made == 2
        assert np.allclose(stretched.result().scales, 2 * one.result().scales) and memory.made == 3
    limit = 3 * 64 * 32
    with remembering(limit, disk=0) as memory:
        many = [some_encoding(seed) for seed in range(6)]
        for each in many:
            each.result()
            assert memory.nbytes <= limit
        forget()
        many[-1].result()
        assert memory.made == 6
        many[0].result()
        assert memory.made == 7
    with remembering(10, disk=0) as memory:
        for each in many:
            each.result()
            assert memory.nbytes == each.result().nbytes  # the last one alone


def test_disturbed_kernels_are_scaled_to_processor_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine so busy that every run waits, wall times of kernels say little of how long they take."""
    model = open_job(encoder(tmp_path), "w8a8-dynamic").model
    bench = PlanBench(model, lambda plan: model, Trials.given([{"ids": np.arange(6)[None]}], ""))
    monkeypatch.setattr(
        plan_bench.Session, "kernels", lambda session: [Kernel("MatMul", name, 2.0, 9) for name in "ab"]
    )
    monkeypatch.setattr(plan_bench, "least_seconds", lambda *arguments: 0.5)
    assert [kernel.seconds for kernel in bench.kernels(None)] == [0.25, 0.25]


def test_four_bits_that_became_eight_are_not_bargained_with(tmp_path: Path) -> None:
    """Whoever names four bits wants small weights: what a floor asks for is all they are lengthened by."""
    recipe = Recipe("auto", min_sqnr=30, prefer="accuracy")
    result = onnxq.quantize(encoder(tmp_path), tmp_path / "q.onnx", recipe)
    longest = max(onnxq.formats.get(choice.format).bits for choice in result.plan if choice.format is not None)
    assert result.check is not None and result.check.sqnr >= 30 and longest == 8


@pytest.mark.parametrize(("word", "heard"), [("balanced", True), ("size", True), ("balanced", False)])
def test_a_few_weights_that_are_heard_stay_long(tmp_path: Path, word: str, heard: bool) -> None:
    """Half a percent of the file is nothing, where nobody wants it as small as can be; but not for nothing."""
    head = tiny.normal(1, 128, 2, 2)
    head[0, 0] = 4 * np.abs(head).max()  # which leaves fewer codes for the others
    head = head if heard else np.rint(head * 127 / head.max())  # which 8 bits hold as they are
    text = """g (float[1, 128, 8, 8] x) => (float[1, 1, 7, 7] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Tanh(a)  c = Mul(b, gain)
        [head] y = Conv(c, v) }"""
    gain = np.where(np.arange(128) == 0, 1e-3, 1).astype(np.float32).reshape(1, 128, 1, 1)
    model = tiny.save(tiny.model(text, {"w": tiny.normal(128, 128, 3, 3), "gain": gain, "v": head}), tmp_path)
    result = onnxq.quantize(model, tmp_path / "q.onnx", Recipe("w8a16", prefer=word))
    found = {choice.node: choice.format for choice in result.plan if choice.op == "Conv"}
    assert found.pop("head") == ("float16" if heard and word == "balanced" else "int8")
    assert set(found.values()) == {"int8"}
