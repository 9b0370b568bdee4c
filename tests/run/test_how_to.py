"""How to add a format, a collector, a target, a pass, an algorithm, a rule … (CONTRIBUTING.md): one new file each.

The package is copied to a folder, the file is put where it belongs, and the copy is run: nothing else is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from onnx import numpy_helper
from tiny import normal

import onnxq
from onnxq import formats
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.formats import Granularity

FORMAT = '''
"""quadratic4: 16 levels that lie closer together near zero, times the block's absmax."""

import numpy as np

from onnxq.formats import Format, QuantizedTensor
from onnxq.formats.kinds import codebook

LEVELS = np.array([*(-((np.arange(8, 0, -1) / 8) ** 2)), *((np.arange(8) / 7) ** 2)], np.float32)


class quadratic4(Format):
    """Codes 0…15 index `LEVELS`; one float32 absmax a block."""

    name = "quadratic4"
    bits = 4
    code_type = np.dtype(np.uint8)
    default_block = 64
    levels = LEVELS
    tables = codebook.plain_tables(LEVELS)
    kernel = KERNEL

    def fit(self, w, granularity):
        return codebook.fit(w, granularity), None

    def encode(self, w, granularity, scales=None, zero_points=None):
        return codebook.encode(self, w, granularity, scales, self.tables)

    def decode(self, q):
        return codebook.decode(q, LEVELS)
'''
RULE = '''
"""Products, whatever they are."""

from onnxq.doctor.finding import Severity
from onnxq.doctor.rule import Rule


class AnyProduct(Rule):
    severity = Severity.NOTE
    what = "it multiplies"
    why = "that takes time"
    fix = "add instead"

    def find(self, patient):
        for node in patient.nodes:
            if node.op_type == "MatMul":
                yield self.at(node.name or "", "a product")
'''
COLLECTOR = '''
"""narrow: half of the range that was seen."""

from onnxq.collectors import SummaryCollector
from onnxq.summaries.ranges import UINT8, Range


class Narrow(SummaryCollector):
    needs_histogram = False

    def range(self, grid=UINT8):
        s = self.summary
        return Range(s.low / 2, s.high / 2) if s.low <= s.high else None
'''
TARGET = '''
"""loader: an engine that unpacks all weights when it loads a model."""

from onnxq.targets import Target


class loader(Target):
    name = "loader"
'''
PASS = '''
"""Says in the model's metadata how many nodes have stored weights."""

import onnx_ir as ir

from onnxq.passes.quantize import PlanPass
from onnxq.plan import Method


class CountStored(PlanPass):
    follows = "store_weights"

    def call(self, model):
        model.metadata_props["stored"] = str(len(self.plan.those(Method.STORED)))
        return ir.passes.PassResult(model, modified=True)
'''
NORMALIZING = '''
"""Takes descriptions out."""

import onnx_ir as ir

from onnxq.passes import Pass


class DropDescription(Pass):
    follows = "forget_exporter"

    def call(self, model):
        model.doc_string = "nothing to see here"
        return ir.passes.PassResult(model, modified=True)
'''
ALGORITHM = '''
"""cautious: scales twice as large as they have to be."""

from onnxq.formats import Granularity


def suits(op_type, format, granularity):
    return format.name == "int16"


def quantize(w, format, granularity, scales=None, zero_points=None):
    found, zeros = format.fit(w, granularity) if scales is None else (scales, zero_points)
    return format.encode(w, granularity, found * 2, zeros)
'''
ALGORITHM_WITH_DATA = '''
"""loud: the more the inputs of a layer are worth, the larger its scales: nobody would want that."""

import numpy as np

NEEDS_DATA = True


def suits(op_type, format, granularity):
    return format.name == "int16"


def quantize(w, format, granularity, scales=None, zero_points=None, *, layer, half_scales=False):
    found, zeros = format.fit(w, granularity) if scales is None else (scales, zero_points)
    return format.encode(w, granularity, found * np.float32(np.trace(layer.gram().sums[0])), zeros)
'''
PROJECT = '''
"""in-floats: a project that knows no codes."""


def parts(name, q):
    return {f"{name}.values": q.dequantize()}, {"bits": q.format.bits}


def read_as(q):
    return q


def plain(name):
    return name


def metadata(said):
    return {"layers": str(len(said))}


def config(said):
    return {"bits": {name: each["bits"] for name, each in said.items()}}
'''
OPERATOR = '''
"""What a model of somebody's own needs."""

from onnxq.training.graph.operators import operator


@operator("Twice", domain="somebody")
def twice(call, x):
    return 2 * x
'''
TEXT = "tiny (float[n, 64] x) => (float[n, 48] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }"
WEIGHTS = {"w": normal(64, 96), "v": normal(96, 48, seed=1)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package; each test adds its file and takes it away again."""
    folder = tmp_path_factory.mktemp("checkout")
    source = Path(onnxq.__file__).parent
    shutil.copytree(source, folder / "onnxq")  # with what Python compiled, which takes each process seconds
    return folder


def run(package: Path, files: dict[str, str], *arguments: str | Path) -> str:
    """What the copy's command line prints, with these files in it."""
    for name, text in files.items():
        assert not (package / "onnxq" / name).exists()
        (package / "onnxq" / name).write_text(text)
    try:
        command = [sys.executable, "-m", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(package), "COLUMNS": "200"}
        made = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stdout + made.stderr
        return made.stdout
    finally:
        for name in files:
            (package / "onnxq" / name).unlink()


def quantized(package: Path, files: dict[str, str], tmp_path: Path, *options: str) -> onnx.ModelProto:
    """The tiny model, quantized by the copy as its plan says; nothing is timed or tuned."""
    model = tiny.save(tiny.model(TEXT, WEIGHTS, opset=21, ir_version=10), tmp_path)
    report = tmp_path / "result.json"
    always = ["--no-check", "-o", tmp_path / "out.onnx", "--report", report, "--force"]
    run(package, files, "onnxq", "quantize", model, *always, *options)
    return onnx.load(tmp_path / "out.onnx")


def sqnr(made: onnx.ModelProto, *, optimize: bool = True) -> float:
    """dB at the output against the float model, in onnxruntime without our library."""
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = normal(7, 64, seed=5) * 8
    exact = np.maximum(x.astype(np.float64) @ WEIGHTS["w"], 0) @ WEIGHTS["v"]
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    y = session.run(None, {"x": x})[0]
    return float(10 * np.log10(np.square(exact).sum() / np.square(y - exact).sum()))


@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
def test_a_format_is_one_file(package: Path, tmp_path: Path, target: str) -> None:
    files = {"formats/quadratic4.py": FORMAT.replace("KERNEL", "None")}
    made = quantized(package, files, tmp_path, "--weights", "quadratic4", "--target", target)
    # 16 levels in blocks of 64 and two layers: nf4 reaches 18 dB here.
    assert 14 < sqnr(made) < 30
    packed = [numpy_helper.to_array(t) for t in made.graph.initializer if t.name.startswith("w_quadratic4")]
    assert sum(array.nbytes for array in packed) == 64 * 96 / 2


def test_a_kernels_format_has_its_body_from_the_same_file(package: Path, tmp_path: Path) -> None:
    files = {"formats/quadratic4.py": FORMAT.replace("KERNEL", '"quadratic4"')}
    options = ["--weights", "quadratic4", "--target", "onnxq"]
    made = quantized(package, files, tmp_path, *options)
    assert [node.op_type for node in made.graph.node if node.domain == "onnxq"] == ["MatMulNBits"] * 2
    assert {function.overload for function in made.functions} == {"quadratic4"}
    assert 14 < sqnr(made) < 30


def test_the_laws_of_formats_hold_for_a_new_one(package: Path) -> None:
    tests = Path(__file__).parents[1] / "graph"
    files = {"formats/quadratic4.py": FORMAT.replace("KERNEL", "None")}
    laws = ["-p", "no:cacheprovider", "-o", "addopts=", "-q", "-k", "quadratic4", "--rootdir", tests.parents[1]]
    said = run(package, files, "pytest", *laws, tests / "test_format_laws.py")
    assert "passed" in said


def test_a_collector_is_one_file(package: Path, tmp_path: Path) -> None:
    x = np.linspace(-4, 4, 64, dtype=np.float32)
    np.savez(tmp_path / "data.npz", x=np.tile(x, (8, 1, 1)))
    options = ["--scheme", "w8a8", "--data", str(tmp_path / "data.npz"), "--calibration", "narrow"]
    made = quantized(package, {"collectors/narrow.py": COLLECTOR}, tmp_path, *options)
    scale = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}["x_scale"]
    assert scale == pytest.approx(4 / 255)


def test_a_stored_only_target_is_one_file(package: Path, tmp_path: Path) -> None:
    made = quantized(package, {"targets/loader.py": TARGET}, tmp_path, "--scheme", "w4a16", "--target", "loader")
    plan = json.loads((tmp_path / "result.json").read_text())
    assert {node.domain for node in made.graph.node} == {""}
    assert "MatMul" in {node.op_type for node in made.graph.node}
    assert 15 < sqnr(made) < 40, plan


def test_a_pass_is_one_file(package: Path, tmp_path: Path) -> None:
    files = {"passes/quantize/count_stored.py": PASS, "passes/normalize/drop_description.py": NORMALIZING}
    made = quantized(package, files, tmp_path, "--weights", "float16")
    assert {entry.key: entry.value for entry in made.metadata_props}["stored"] == "2"
    assert made.doc_string == "nothing to see here"


def test_an_algorithm_is_one_file(package: Path, tmp_path: Path) -> None:
    made = quantized(package, {"algorithms/cautious.py": ALGORITHM}, tmp_path, "--weights", "int16")
    scales = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}["w_scale"]
    own, _ = formats.get("int16").fit(WEIGHTS["w"], Granularity(1))
    np.testing.assert_array_equal(scales.reshape(-1), 2 * own)


def test_an_algorithm_that_needs_data_is_one_file(package: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((8, 4, 64)).astype(np.float32) / 16
    np.savez(tmp_path / "data.npz", x=x)
    files = {"algorithms/loud.py": ALGORITHM_WITH_DATA}
    made = quantized(package, files, tmp_path, "--weights", "int16", "--data", str(tmp_path / "data.npz"))
    scales = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}["w_scale"]
    own, _ = formats.get("int16").fit(WEIGHTS["w"], Granularity(1))
    used = np.delete(x, [2, 4], axis=0)  # the others are held back
    assert scales.reshape(-1) / own == pytest.approx(np.square(used).sum(), rel=1e-3)


def test_a_rule_is_one_file(package: Path, tmp_path: Path) -> None:
    path = tiny.save(tiny.model(TEXT, WEIGHTS), tmp_path)
    found = json.loads(run(package, {"doctor/rules/any_product.py": RULE}, "onnxq", "doctor", path, "--json"))
    assert [each["rule"] for each in found["findings"]] == ["any-product"] * 2


def test_a_project_to_export_to_is_one_file(package: Path, tmp_path: Path) -> None:
    quantized(package, {}, tmp_path, "--scheme", "w4a16", "--target", "onnxq")
    options = ["convert", tmp_path / "out.onnx", "--to", "in-floats", "-o", tmp_path / "there"]
    run(package, {"conversion/layers/in_floats.py": PROJECT}, "onnxq", *options)
    values = dict(open_checkpoint(tmp_path / "there" / "model.safetensors"))
    assert sorted(x.shape for x in values.values()) == [(48, 96), (96, 64)]
    assert all(name.endswith(".values") for name in values)
    assert set(json.loads((tmp_path / "there" / "config.json").read_text())["bits"].values()) == {4}


def test_an_operator_to_train_through_is_one_file(package: Path) -> None:
    pytest.importorskip("torch")
    look = "from onnxq.training.graph import operators; print(sorted(operators.known())[-1])"
    files = {"../look.py": look, "training/graph/operators/of_somebody.py": OPERATOR}
    assert run(package, files, "look") == "('somebody', 'Twice')\n"
