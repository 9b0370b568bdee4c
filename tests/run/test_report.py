"""Reports: what they say is what the files hold, their JSON keeps to its schema, and names of models are only text."""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner, Result
from onnx import numpy_helper

from onnxq.cli import main
from onnxq.plan import Choice, Method
from onnxq.planning.counts.growth import REASON as GROWS
from onnxq.planning.counts.raw_inputs import REASON as RAW
from onnxq.report import reasons
from onnxq.report.document import VERSION, load_report, schema

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("plotly")
pytestmark = pytest.mark.usefixtures("quick")

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
#: The name of a node that would be a script, a template and a link, were it not text.
HOSTILE = "a/<script>document.title='x'</script><img src=x onerror=1>/{{7*7}}%{y}"
TEXT = """m (float[n, 32] x) => (float[n, 8] y) {
    a = MatMul (x, w0)  b = Relu (a)  c = MatMul (b, w1)  d = Relu (c)  y = MatMul (d, w2)
}"""


def written(folder: Path) -> Path:
    made = tiny.model(TEXT, {"w0": tiny.normal(32, 64), "w1": tiny.normal(64, 64, seed=1), "w2": tiny.normal(64, 8)})
    for number, node in enumerate(made.graph.node):
        node.name = HOSTILE if number == 0 else f"layers.{number}/{node.op_type}"
    x = np.random.default_rng(0).standard_normal((24, 4, 32)).astype(np.float32)
    np.savez(folder / "samples.npz", x=x)
    return tiny.save(made, folder)


def run(*words: object) -> Result:
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found


def report_of(path: Path) -> Any:
    """As JSON has it, checked by the schema that is published."""
    table = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(table)
    return table


def unpacked(page: str, id: str) -> str:
    found = re.search(f'<script type="application/octet-stream" id="{id}">(.*?)</script>', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its quantized one, and the report of that as JSON and as a page."""
    folder = tmp_path_factory.mktemp("report")
    model, output = written(folder), folder / "out.onnx"
    words = ["--data", folder / "samples.npz", "--keep-slow", "--effort", "quick", "--no-balance"]
    run("quantize", model, "-s", "w8a8", *words, "-o", output, "--html", folder / "r.json", "--html", folder / "r.html")
    return folder


def test_the_schema_is_the_published_one() -> None:
    assert schema() == (ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_report_says_what_the_file_holds(made: Path) -> None:
    found, file = report_of(made / "r.json"), onnx.load(made / "out.onnx")
    assert (found["kind"], found["onnxq_report"], found["scheme"]) == ("quantize", VERSION, "w8a8")
    assert found["summary"]["bytes_before"] == (made / "model.onnx").stat().st_size
    assert found["summary"]["bytes_after"] == (made / "out.onnx").stat().st_size
    assert (
        found["hashes"]["float model"]
        == json.loads(next(p.value for p in file.metadata_props if p.key == "onnxq"))["model"]
    )
    assert found["nodes"][0]["name"] == HOSTILE
    assert len(found["nodes"]) == 5 and sum(node["weights"] for node in found["nodes"]) == 32 * 64 + 64 * 64 + 64 * 8
    assert found["commands"][0].startswith(f"onnxq quantize {made / 'model.onnx'} -s w8a8")
    assert {row["op"] for row in found["operators"] if row["before"]} >= {"MatMul"}
    assert all(row["quantized_ms"] > 0 for row in found["operators"] if row["after"])
    named = {row["name"]: row for row in found["layers"]}
    assert named["layers.4/MatMul"]["sqnr"] == pytest.approx(found["summary"]["sqnr"], abs=6)


def test_errors_of_weights_are_those_of_the_codes_in_the_file(made: Path) -> None:
    """Against numpy, which reads codes and scales out of the file."""
    constants = {t.name: numpy_helper.to_array(t) for t in onnx.load(made / "out.onnx").graph.initializer}
    rows = {row["node"]: row for row in report_of(made / "r.json")["weights"]}
    w1 = tiny.normal(64, 64, seed=1)
    codes = next(x for x in constants.values() if x.shape == (64, 64) and x.dtype == np.int8).astype(np.float64)
    steps = [x for x in constants.values() if x.dtype == np.float32 and x.shape in ((64,), (1, 64))]
    errors = [10 * np.log10((w1**2).sum() / ((codes * s.reshape(1, -1) - w1) ** 2).sum()) for s in steps]
    assert rows["layers.2/MatMul"]["format"] == "int8" and not rows["layers.2/MatMul"]["is_scaled"]
    assert rows["layers.2/MatMul"]["sqnr"] == pytest.approx(max(errors), abs=0.05)


def test_activations_have_the_ranges_of_the_file(made: Path) -> None:
    found, file = report_of(made / "r.json"), onnx.load(made / "out.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    scales = {n.input[0]: float(constants[n.input[1]]) for n in file.graph.node if n.op_type == "QuantizeLinear"}
    rows = {row["name"]: row for row in found["activations"]}
    assert rows and set(rows) <= set(scales)
    for name, row in rows.items():
        assert row["chosen"][1] - row["chosen"][0] == pytest.approx(255 * scales[name], rel=1e-5)
        assert set(row["ranges"]) >= {"minmax", "percentile", "entropy", "mse"}
        assert row["ranges"]["minmax"] == pytest.approx((row["low"], row["high"]))
        assert row["start"] <= row["low"] and 0 <= row["clipped"] < 0.01
    assert sum(rows["x"]["counts"]) == 24 * 4 * 32


def test_names_are_text(made: Path) -> None:
    page = (made / "r.html").read_text(encoding="utf-8")
    assert "<script>document" not in page and "<img" not in page and "&lt;script&gt;document" in page
    assert HOSTILE in html.unescape(page) and "{{7*7}}" in page and "49%{y}" not in page
    data = json.loads(unpacked(page, "packed-data"))
    assert not any("<script" in text or "<img" in text for text in data["figures"]["map"]["data"][0]["hovertext"])
    policy = re.search(r'content="(default-src [^"]*)"', page)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe-inline'; img" in policy[1]
    assert "unsafe" not in policy[1].split("script-src")[1] and not re.search(r'(src|href)="(?!#)', page)


def test_a_report_as_json_is_a_report(made: Path, tmp_path: Path) -> None:
    run("report", made / "r.json", "-o", tmp_path / "again.html", "--json", tmp_path / "again.json")
    assert report_of(tmp_path / "again.json") == report_of(made / "r.json")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == (made / "r.html").read_text(encoding="utf-8")


def test_models_of_others(made: Path, tmp_path: Path) -> None:
    """By onnxruntime's own tool: formats, ranges and errors are read off the file."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        samples = iter(np.load(made / "samples.npz")["x"])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(({"x": x} for x in self.samples), None)

    quantization.quantize_static(made / "model.onnx", tmp_path / "theirs.onnx", Reader(), per_channel=True)
    run(
        "check",
        made / "model.onnx",
        tmp_path / "theirs.onnx",
        "--data",
        made / "samples.npz",
        "--html",
        tmp_path / "c.json",
    )
    found = report_of(tmp_path / "c.json")
    assert found["kind"] == "check" and found["scheme"] == "" and found["reasons"] == []
    assert [row["format"] for row in found["weights"]] == ["int8"] * 3 and len(found["activations"]) >= 3
    assert [node["becomes"] for node in found["nodes"] if node["op"] == "MatMul"] == ["int8"] * 3
    run("report", tmp_path / "theirs.onnx", "--json", tmp_path / "alone.json")
    alone = report_of(tmp_path / "alone.json")
    assert (
        alone["kind"] == "model" and not alone["weights"] and any(n["op"] == "QuantizeLinear" for n in alone["nodes"])
    )


def test_plans_analyses_and_searches(made: Path, tmp_path: Path) -> None:
    model = made / "model.onnx"
    run("plan", model, "-s", "w8a8-dynamic", "-o", tmp_path / "plan.json", "--keep", "layers.2/*")
    run("report", tmp_path / "plan.json", "--json", tmp_path / "p.json", "-o", tmp_path / "p.html")
    found = report_of(tmp_path / "p.json")
    assert found["reasons"][0]["nodes"] == ["layers.2/MatMul"] and "--keep" in found["reasons"][0]["advice"]
    run("analyze", model, "-w", "int4", "-w", "nf4", "--html", tmp_path / "a.json", "--html", tmp_path / "a.html")
    forms = [set(row["forms"]) for row in report_of(tmp_path / "a.json")["weights"]]
    assert forms == [{"int4 block32", "nf4 block64"}] * 3
    pytest.importorskip("highspy")
    few = ["--formats", "int8", "--formats", "uint4/32", "--points", 3, "--effort", "quick"]
    run(
        "search",
        model,
        "--data",
        made / "samples.npz",
        *few,
        "--html",
        tmp_path / "s.json",
        "--html",
        tmp_path / "s.html",
    )
    found = report_of(tmp_path / "s.json")
    assert found["front"] and found["nodes"] and "front" in (tmp_path / "s.html").read_text(encoding="utf-8")


def test_files_are_guarded(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made / "model.onnx"
    taken = tmp_path / "taken.html"
    taken.write_text("mine")
    for words in (["--html", model], ["--html", taken], ["--html", tmp_path / "no" / "r.html"]):
        found = CliRunner().invoke(main, [str(word) for word in ("check", model, made / "out.onnx", *words)])
        assert found.exit_code == 1 and found.output.count("\n") == 1, found.output
    assert taken.read_text() == "mine"
    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "plotly" else spec(name, *more)
    )
    found = CliRunner().invoke(main, ["report", str(model), "-o", str(tmp_path / "new.html")])
    assert (
        found.exit_code == 1 and "pip install 'onnxq[report]'" in found.output and not (tmp_path / "new.html").exists()
    )
    run("report", model, "--json", tmp_path / "new.json")


def test_reports_of_others_are_refused(made: Path, tmp_path: Path) -> None:
    table = report_of(made / "r.json")
    for wrong in ({"onnxq_report": VERSION + 1}, {"nodes": 3}, {"more": 1}):
        (tmp_path / "wrong.json").write_text(json.dumps(table | wrong))
        found = CliRunner().invoke(main, ["report", str(tmp_path / "wrong.json"), "--json", str(tmp_path / "x.json")])
        assert found.exit_code == 1 and "is not a report written by" in found.output
    assert load_report(made / "r.json").nodes[0].name == HOSTILE


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("computing in float is faster here", "--keep-slow"),
        ("costs more accuracy than it gives speed", "--prefer"),
        ("kept by a rule of the recipe", "--keep"),
        ("no range for 'h': never computed, or empty, on the calibration data", "--data"),
        ("computes in float64, which no packed or int8 kernel does", "float32"),
        ("no static int8 kernel for LSTM: unpacked when the model loads", "--target"),
        ("a row of 6 would be filled up to 16: 8 bits a row are smaller", "--block-size"),
        (f"{GROWS}: unpacked when the model loads", "fixed"),
        (RAW, "next to no time"),
        ("'w' has only 12 numbers", "nothing"),
        ("'w' is a table that Add reads: 16 bits", "nothing"),
        ("somebody else's words", "--set"),
    ],
)
def test_each_reason_has_advice(reason: str, advice: str) -> None:
    (found,) = reasons.reasons_of([Choice("n", "MatMul", Method.KEEP, elements=9, reason=reason)])
    assert advice in found.advice and found.reason == reason and found.weights == 9


def test_what_another_tool_left_as_it_was_is_no_error(tmp_path: Path) -> None:
    """A normalization that was not folded before weights were quantized; and the sum of two convolutions has no weight
    that could tell it computes in integers."""
    body = """c = Conv <pads = [1, 1, 1, 1]> (X, f)
        n = BatchNormalization (c, gamma, beta, mean, variance)"""
    shapes = "(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)"
    rounded = "{0}q = QuantizeLinear ({0}, s, z)  {0}d = DequantizeLinear ({0}q, s, z)"
    spelled = [rounded.format(name) for name in "xnt"]
    text = f"g {shapes} {{ {body.replace('X', 'x')}  t = Add (n, x)  y = Relu (t) }}"
    coded = f"""g {shapes} {{ {spelled[0]}  f = DequantizeLinear (codes, step)  {body.replace("X", "xd")}
        {spelled[1]}  t = Add (nd, xd)  {spelled[2]}  y = Relu (td) }}"""
    rng = np.random.default_rng(0)
    norm = {word: rng.uniform(0.2, 3, 16).astype(np.float32) for word in ("gamma", "beta", "mean", "variance")}
    f, step = tiny.normal(16, 16, 3, 3), np.float32(0.002)
    codes = {"codes": np.rint(f / step).clip(-128, 127).astype(np.int8), "step": step}
    pair = {"s": np.float32(0.05), "z": np.array(128, np.uint8)}
    for name, made in (("a", tiny.model(text, norm | {"f": f})), ("b", tiny.model(coded, norm | codes | pair))):
        for number, node in enumerate(node for node in made.graph.node if "Linear" not in node.op_type):
            node.name = f"{node.op_type}{number}"
        tiny.save(made, tmp_path, f"{name}.onnx")
    run("report", tmp_path / "b.onnx", "--against", tmp_path / "a.onnx", "--json", tmp_path / "r.json")
    report = report_of(tmp_path / "r.json")
    (weight,) = report["weights"]
    noise = np.sum((codes["codes"] * step - f) ** 2)
    assert weight["sqnr"] == pytest.approx(10 * np.log10(np.sum(f**2) / noise), abs=1e-3) and not weight["is_scaled"]
    assert report["summary"]["sqnr"] > 5 and report["summary"]["kernels"] == {"QLinearAdd": 1}
    assert {node["name"]: node["becomes"] for node in report["nodes"]}["Add2"] == "int8"


def test_products_on_codes_that_ran_in_float_are_told_as_such(tmp_path: Path) -> None:
    """A Gemm whose factor no integer kernel takes, behind one that is fused; and numbers that lie outside the codes by
    less than half a step are not outside."""
    body = """xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
        wd = DequantizeLinear <axis = 1> (codes, step)  a = MatMul (xd, wd)  aq = QuantizeLinear (a, sa, za)
        ad = DequantizeLinear (aq, sa, za)  ve = DequantizeLinear <axis = 1> (others, step)
        b = Gemm <alpha = 2.0> (ad, ve)"""
    shapes = "(float[4, 32] x) => (float[4, 32] b)"
    w = tiny.normal(32, 32)
    codes = np.rint(w / 0.02).clip(-127, 127).astype(np.int8)
    pair = {"s": np.float32(1 / 64), "z": np.array(128, np.uint8), "sa": np.float32(0.2), "za": np.array(128, np.uint8)}
    models = {
        "a": tiny.model(
            f"g {shapes} {{ a = MatMul (x, w)  b = Gemm <alpha = 2.0> (a, v) }}", {"w": w, "v": w.T.copy()}
        ),
        "b": tiny.model(
            f"g {shapes} {{ {body} }}",
            pair | {"codes": codes, "others": codes.T.copy(), "step": np.full(32, 0.02, np.float32)},
        ),
    }
    for name, made in models.items():
        for number, node in enumerate(node for node in made.graph.node if node.op_type in ("MatMul", "Gemm")):
            node.name = f"product{number}"
        tiny.save(made, tmp_path, f"{name}.onnx")
    x = np.random.default_rng(0).uniform(-1.9, 1.9, (4, 4, 32)).astype(np.float32)
    x[:, :, ::4] = -2 - 0.4 / 64
    np.savez(tmp_path / "x.npz", x=x)
    words = ["report", tmp_path / "b.onnx", "--against", tmp_path / "a.onnx", "--data", tmp_path / "x.npz"]
    run(*words, "--json", tmp_path / "r.json")
    report = report_of(tmp_path / "r.json")
    told = {node["name"]: (node["becomes"], node["reason"]) for node in report["nodes"]}
    assert told["product0"] == ("int8", "")
    assert told["product1"] == ("int8 stored", "computed in float: 'onnxq doctor' says why")
    assert {each["name"]: each["clipped"] for each in report["activations"]}["x"] == 0.0


def test_nodes_in_bodies_have_their_names_and_errors(tmp_path: Path) -> None:
    """Of a Scan: what is inside is a node like others, with its weight's error; layers are those outside."""
    text = """g (float[6, 4, 32] x, float[4, 32] s0) => (float[6, 4, 32] y) {
        last, states = Scan <num_scan_inputs = 1, body = turn (float[4, 32] s, float[4, 32] xi)
            => (float[4, 32] so, float[4, 32] yo) {
            [inside] a = MatMul (xi, w1)
            so = Tanh (a)
            yo = Add (so, s)
        }> (s0, x)
        [behind] y = MatMul (states, w2)
    }"""
    source = tiny.save(tiny.model(text, {"w1": tiny.normal(32, 32, seed=1), "w2": tiny.normal(32, 32)}), tmp_path)
    np.savez(tmp_path / "x.npz", x=tiny.normal(4, 6, 4, 32), s0=np.zeros((4, 4, 32), np.float32))
    words = ["quantize", source, "-s", "w8a16", "--keep-slow", "--effort", "quick", "-o", tmp_path / "out.onnx"]
    run(*words, "--data", tmp_path / "x.npz", "--html", tmp_path / "r.json", "--html", tmp_path / "r.html")
    report = report_of(tmp_path / "r.json")
    nodes = {node["name"]: node for node in report["nodes"]}
    assert nodes["inside"]["weights"] == nodes["behind"]["weights"] == 32 * 32
    assert "int8" in nodes["inside"]["becomes"]
    errors = {row["node"]: row["sqnr"] for row in report["weights"]}
    assert set(errors) == {"inside", "behind"} and all(35 < sqnr < 60 for sqnr in errors.values())
    assert {layer["value"] for layer in report["layers"]} == {"last", "states", "y"}


def test_ranges_of_activations_that_are_scaled_are_those_of_the_file(tmp_path: Path) -> None:
    """The float model's numbers beside ranges for others would look cut off, or far too wide."""
    rng = np.random.default_rng(5)
    scales = np.exp2(np.linspace(-3, 3, 8)).astype(np.float32)
    w1, w2 = tiny.normal(8, 8, seed=1), tiny.normal(8, 8, seed=2)
    chain = "g (float[16, 8] x) => (float[16, 8] y) {\n a = MatMul (x, w1)\n b = Relu (a)\n%s y = MatMul (%s, w2)\n}"
    codes = " q = QuantizeLinear (b, s, z)\n d = DequantizeLinear (q, s, z)\n"
    x = rng.normal(size=(8, 16, 8)).astype(np.float32)
    b = np.maximum(x @ (w1 * scales), 0)
    constants = {"w1": w1 * scales, "w2": w2 / scales[:, None], "s": np.float32(b.max() / 255), "z": np.uint8(0)}
    tiny.save(tiny.model(chain % ("", "b"), {"w1": w1, "w2": w2}), tmp_path, "a.onnx")
    tiny.save(tiny.model(chain % (codes, "d"), constants), tmp_path, "b.onnx")
    np.savez(tmp_path / "x.npz", x=x)
    words = ["report", "b.onnx", "--against", "a.onnx", "--data", "x.npz", "-o", "r.html", "--json", "r.json"]
    words = [str(tmp_path / word) if "." in word and not word.startswith("-") else word for word in words]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    (row,) = report_of(tmp_path / "r.json")["activations"]
    assert row["name"] == "b" and row["is_scaled"] and row["clipped"] == 0
    assert row["high"] == pytest.approx(float(b.max()), rel=1e-5)
