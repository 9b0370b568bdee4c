"""Without data, `auto` on target onnxq takes bf16 in the place of w4a16 where measured times and noise speak for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny

import onnxq
from onnxq import pipeline
from onnxq.plan import Plan
from onnxq.planning import int8_regions
from onnxq.runtime import native
from onnxq.runtime.machine import this_machine
from onnxq.runtime.profile import MachineProfile, PlanTime
from onnxq.tuning.timings import Timings

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.usefixtures("quick"),
]


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products with an activation between them, 32 rows at once."""
    rng = np.random.default_rng(0)
    weights = {"a": rng.standard_normal((256, 512)) / 16, "b": rng.standard_normal((512, 64)) / 23}
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[32, 256] x) => (float[32, 64] y) { h = MatMul (x, a)  r = Relu (h)  y = MatMul (r, b) }""")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()
    )
    path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of them, whose weights w4a16 stores in fewer bits and computes with in float."""
    text = """g (float[1, 16, 24, 24] x) => (float[1, 16, 24, 24] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, u)  b = Relu(a)  c = Conv<pads = [1, 1, 1, 1]>(b, v)  d = Relu(c)
        y = Conv<pads = [1, 1, 1, 1]>(d, w) }"""
    weights = {name: tiny.normal(16, 16, 3, 3, seed=i) / 12 for i, name in enumerate("uvw")}
    return tiny.save(tiny.model(text, weights), tmp_path_factory.mktemp("convolutions"))


@pytest.fixture(scope="module")
def measured(mlp: Path) -> MachineProfile:
    """What a machine that multiplies bfloat16 measures, so that every kernel's key is known."""
    profile = new_profile()
    pipeline.quantize(mlp, mlp.with_name("measured.onnx"), target="onnxq", profile=profile)
    assert {"bfloat16", "uint4"} <= {word for key in profile.kernels for word in key.split()}
    return profile


def new_profile(*, is_closed: bool = False) -> MachineProfile:
    here = this_machine()
    return MachineProfile(dataclasses.replace(here, isa=f"{here.isa} amx_bf16"), is_closed=is_closed)


def closed(measured: MachineProfile, *, isa: str | None = None, **seconds: float) -> MachineProfile:
    """Times by the format that stands in a kernel's key."""
    formats = {"bfloat16": 1.0, "uint4": 1.0, "float": 1.0} | seconds
    kernels = {
        key: next((each for word, each in formats.items() if word in key.rpartition("|")[2].split()), 1.0)
        for key in measured.kernels
    }
    machine = measured.machine if isa is None else dataclasses.replace(measured.machine, isa=isa)
    models = dict.fromkeys(measured.models, 2.0)
    return MachineProfile(machine, measured.threads, kernels, models, is_closed=True)


def scheme_of(mlp: Path, profile: MachineProfile, **recipe: str) -> str:
    made = pipeline.quantize(
        mlp, mlp.with_name("out.onnx"), onnxq.Recipe(**recipe), target="onnxq", profile=profile, force=True
    )
    assert made.was_auto and made.recipe.scheme == made.plan.scheme
    return made.plan.scheme


def test_the_faster_one_is_taken(mlp: Path, measured: MachineProfile) -> None:
    assert scheme_of(mlp, closed(measured, bfloat16=0.3, uint4=0.5)) == "bf16"
    assert scheme_of(mlp, closed(measured, bfloat16=0.5, uint4=0.3)) == "w4a16"
    # As fast as each other: the one with less noise.
    assert scheme_of(mlp, closed(measured, bfloat16=0.4, uint4=0.4)) == "bf16"


def test_where_nothing_is_gained_weights_are_small(mlp: Path, measured: MachineProfile) -> None:
    assert scheme_of(mlp, closed(measured, bfloat16=2.0, uint4=2.0)) == "w4a16"


def test_only_where_the_processor_multiplies_it_and_bytes_are_not_all(mlp: Path, measured: MachineProfile) -> None:
    fast = {"bfloat16": 0.1, "uint4": 0.9}
    assert scheme_of(mlp, closed(measured, isa="x86_64 avx2 fma", **fast)) == "w4a16"
    assert scheme_of(mlp, closed(measured, **fast), prefer="size") == "w4a16"


@pytest.mark.parametrize(("seconds", "scheme"), [(0.3, "bf16"), (1.0, "w4a16")])
def test_convolutions_in_regions_count(
    convolutions: Path, seconds: float, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored in bfloat16, not packed: the other plan was thought to change nothing."""

    def measured(timings: Timings, plan: Plan, bound: float) -> PlanTime:
        return PlanTime(seconds if int8_regions.in_bfloat16(plan) else 1.0, 0.0)

    monkeypatch.setattr(Timings, "measured", measured)
    assert scheme_of(convolutions, new_profile()) == scheme
    monkeypatch.undo()
    assert scheme_of(convolutions, new_profile(is_closed=True)) == "w4a16"  # it knows nothing


def test_a_profile_that_knows_nothing_of_it_decides_as_before(mlp: Path, measured: MachineProfile) -> None:
    profile = closed(measured, bfloat16=0.1, uint4=0.9)
    profile.kernels = {key: seconds for key, seconds in profile.kernels.items() if "bfloat16" not in key}
    assert scheme_of(mlp, profile) == "w4a16"


def test_the_name_and_a_repetition(mlp: Path, measured: MachineProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mlp.parent)
    made = pipeline.quantize(mlp, target="onnxq", profile=closed(measured, bfloat16=0.1))
    assert made.output.name == "mlp.bf16.onnx"
    again = pipeline.quantize(mlp, "again.onnx", like=made.output)
    assert again.output.read_bytes() == made.output.read_bytes()
