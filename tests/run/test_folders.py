"""What becomes of a folder of models: a complete folder, in one step, with one format for what its parts share."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from folder_models import SHARED, X, decoder, encoder, files, put, quantize, rules, run

import onnxq
from onnxq import pipeline
from onnxq.bundles.export import export
from onnxq.cli import main
from onnxq.conversion.export_folder import export_folder
from onnxq.doctor.folders import mend_folder
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe, CheckFailed, NothingToDo
from onnxq.files.guard import Guard
from onnxq.folders.data_files import write_together
from onnxq.job import Environment, open_job
from onnxq.model.weights import find_weights
from onnxq.output import place

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """An encoder and a decoder as optimum writes them, with a matrix in common."""
    return put(tmp_path / "pair", encoder_model=encoder(), decoder_model=decoder(), config={"a": 1})


# What comes out


def test_the_result_is_complete_and_close(pair: Path) -> None:
    (pair / "sub").mkdir()
    (pair / "sub" / "vocab.txt").write_text("a\nb")
    result = quantize(pair)
    assert files(result.output) == [*files(pair)[:3], "onnxq.json", "sub/vocab.txt"]
    for name in ("config.json", "sub/vocab.txt"):
        assert (result.output / name).read_bytes() == (pair / name).read_bytes()
    for part in result.parts:
        assert part.result is not None and part.bytes_after < 0.5 * part.bytes_before
        assert tiny.sqnr(run(pair / part.file, X), run(result.output / part.file, X)) > 30
    assert result.bytes_after == sum(part.bytes_after for part in result.parts)
    report = json.loads((result.output / "onnxq.json").read_text())
    assert report | {"output": str(result.output)} == json.loads(result.to_json())
    assert [part["result"]["check"]["sqnr"] > 30 for part in report["parts"]] == [True, True]
    assert (result.output.stat().st_mode & 0o077) == (pair.stat().st_mode & 0o077)  # not private, as staging is


def codes_of(model: Path, node: str) -> bytes:
    """The packed weight that a node reads."""
    (found,) = (each for each in ir.load(model).graph if each.name.startswith(node) and len(each.inputs) > 2)
    return found.inputs[1].const_value.tobytes() + found.inputs[2].const_value.tobytes()


def test_a_weight_of_two_parts_has_one_format(pair: Path) -> None:
    alone = quantize(pair, "alone", rules(("own", "w8a16"), scheme="w4a16", min_sqnr=5.0))
    assert alone.shared == 1
    tied = [part.result.plan.choices["tied"] for part in alone.parts if part.result and part.name == "decoder_model"]
    assert [choice.format for choice in tied] == ["uint4"]

    result = quantize(pair, "both", rules(("encoder_model/embed", "w8a16"), scheme="w4a16", min_sqnr=5.0))
    plans = {part.name: part.result.plan for part in result.parts if part.result is not None}
    assert plans["encoder_model"].choices["embed"].format == plans["decoder_model"].choices["tied"].format == "int8"
    assert plans["decoder_model"].choices["tied"].reason == "as part 'encoder_model' has this weight"
    assert plans["decoder_model"].choices["first"].format == "uint4"  # its own, so as it was asked for
    packed = [
        codes_of(result.output / f"{name}_model.onnx", node)
        for name, node in (("encoder", "embed"), ("decoder", "tied"))
    ]
    assert packed[0] == packed[1]


def test_parts_that_shared_a_file_of_data_share_one_again(pair: Path) -> None:
    models = [pair / "encoder_model.onnx", pair / "decoder_model.onnx"]
    write_together([(model, model) for model in models], pair / "shared.bin")
    assert (pair / "shared.bin").stat().st_size == 3 * SHARED.nbytes  # the matrix of both, and one of each
    for model, proto in zip(models, (encoder(), decoder()), strict=True):
        np.testing.assert_array_equal(
            run(model, X), onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})[0]
        )

    result = quantize(pair)
    assert files(result.output) == [*files(pair)[:3], "onnxq.json", "shared.bin"]
    assert (result.output / "shared.bin").stat().st_size == 3 * SHARED.size  # codes; scales stay in the models
    assert result.bytes_after == sum(
        (result.output / name).stat().st_size for name in (*files(pair)[1:3], "shared.bin")
    )
    for model in models:
        assert tiny.sqnr(run(model, X), run(result.output / model.name, X)) > 30

    kept = quantize(pair, "kept", rules(("decoder_model/*", "keep")))
    assert files(kept.output) == files(result.output)
    np.testing.assert_array_equal(run(models[1], X), run(kept.output / "decoder_model.onnx", X))
    assert tiny.sqnr(run(models[0], X), run(kept.output / "encoder_model.onnx", X)) > 30


def test_external_data_keep_their_name(tmp_path: Path) -> None:
    folder = put(tmp_path / "f", config={})
    onnx.save(
        encoder(), folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0
    )
    assert files(quantize(folder).output) == ["config.json", "model.onnx", "model.onnx_data", "onnxq.json"]


def test_rules_may_name_a_part(pair: Path) -> None:
    found = {}
    for pattern in ("own", "encoder_model/own", "enc*/o?n", "encoder_model/re:^ow", "*/own"):
        if pattern == "*/own":  # no part is named: a pattern for nodes, which matches none
            with pytest.warns(RuntimeWarning, match="matches no node"):
                result = quantize(pair, "out", rules((pattern, "keep")), force=True)
        else:
            result = quantize(pair, "out", rules((pattern, "keep")), force=True)
        found[pattern] = [
            c.node for part in result.parts if part.result for c in part.result.plan if c.method == "keep"
        ]
    assert found == {
        pattern: ["own"] if ("ow" in pattern and pattern[0] != "*") or pattern == "enc*/o?n" else []
        for pattern in found
    }


def test_a_kept_part_is_copied(pair: Path) -> None:
    result = quantize(pair, recipe=rules(("decoder_model/*", "keep")))
    assert (result.output / "decoder_model.onnx").read_bytes() == (pair / "decoder_model.onnx").read_bytes()
    assert [part.note for part in result.parts] == ["as it was: kept, as asked", ""]
    with pytest.warns(RuntimeWarning, match=r"it matches no node; 'onnxq plan .*pair/decoder_model.onnx --nodes'"):
        quantize(pair, "typo", rules(("decoder_model/*", "keep"), ("typo", "w4a16")))
    with pytest.raises(NothingToDo, match="no part could be quantized"):
        quantize(pair, "none", rules(("*", "keep")))
    assert not (pair.parent / "none").exists()


def test_parts_without_weights_or_quantized_already_are_copied(pair: Path) -> None:
    onnx.save(tiny.model("agraph (float[n] x) => (float[n] y) { y = Relu(x) }"), pair / "tail.onnx")
    onnxq.quantize(pair / "decoder_model.onnx", pair / "before.onnx", "w8a16")
    os.replace(pair / "before.onnx", pair / "decoder_model.onnx")
    result = quantize(pair)
    notes = {part.name: part.note for part in result.parts}
    assert notes["encoder_model"] == "" and "quantized already (2 MatMulNBits)" in notes["decoder_model"]
    assert notes["tail"] == "as it was: nothing in it could be quantized"
    for name in ("decoder_model.onnx", "tail.onnx"):
        assert (result.output / name).read_bytes() == (pair / name).read_bytes()
    (result.output / "tail.onnx").unlink()
    with pytest.raises(BadModel, match=r"all parts of .*out are quantized already"):
        quantize(result.output, "again", rules(("x", "keep")))


# Data


def test_each_part_takes_its_own_data(pair: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    np.savez(samples / "encoder_model.npz", x=tiny.normal(8, 5, 64))
    (samples / "readme.txt").touch()
    result = quantize(pair, recipe="w8a8", data=samples)
    labels = {part.name: {c.method.value for c in part.result.plan} for part in result.parts if part.result}
    assert labels["encoder_model"] <= {"static", "stored", "keep"} and "static" not in labels["decoder_model"]
    notes = {part.name: part.note for part in result.parts}
    assert notes == {"encoder_model": "", "decoder_model": "no data for this part"}
    assert result.notes == (f"readme.txt in {samples} belongs to no part",)
    again = quantize(pair, "again", "w8a8", data={"encoder_model": samples / "encoder_model.npz"})
    assert [part.note for part in again.parts] == ["no data for this part", ""]


def test_data_for_no_part_are_refused(pair: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=tiny.normal(8, 5, 64))
    with pytest.raises(BadData, match=r"which part .*x.npz is for; give a folder .* \(decoder_model, encoder_model\)"):
        quantize(pair, data=tmp_path / "x.npz")
    with pytest.raises(BadData, match="unknown part 'encoder'; the parts are decoder_model, encoder_model"):
        quantize(pair, data={"encoder": tmp_path / "x.npz"})
    with pytest.raises(BadRecipe, match="w8a8 needs calibration data"):
        quantize(pair, recipe="w8a8")
    (pair / "decoder_model.onnx").unlink()
    result = quantize(pair, recipe="w8a8", data=tmp_path / "x.npz")  # there is only one it can be for
    assert [part.note for part in result.parts] == [""]


# One step


def test_a_failure_leaves_nothing(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize_model = pipeline.quantize

    def fail(model: Path, *arguments: object, **options: object) -> pipeline.Result:
        if model.stem == "encoder_model":
            raise CheckFailed("the outputs reach 1.0 dB")
        return quantize_model(model, *arguments, **options)

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "quantize", fail)
        with pytest.raises(CheckFailed, match=r"^part 'encoder_model': the outputs reach 1\.0 dB"):
            quantize(pair)
    with monkeypatch.context() as patched:
        patched.setattr("onnxq.output.place.publish", disk_full)
        with pytest.raises(BadOutput, match="no space left"):
            quantize(pair)
    assert [path.name for path in pair.parent.iterdir()] == ["pair"]


def test_a_folder_is_replaced_as_a_whole_and_only_if_it_is_ours(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = quantize(pair).output
    (out / "old.txt").touch()
    with pytest.raises(BadOutput, match="exists; give --force"):
        quantize(pair)
    quantize(pair, force=True)
    assert "old.txt" not in files(out)
    before = files(out)
    rename = os.rename

    def fail_once(a: Path, b: Path) -> None:
        if Path(b) == out and not out.exists() and ".old-" not in Path(a).name:
            raise OSError(5, "cannot")
        rename(a, b)

    with monkeypatch.context() as patched:
        patched.setattr(place, "EXCHANGE", "")  # as on systems that have no such function
        (out / "old.txt").touch()
        quantize(pair, force=True)
        assert files(out) == before
        patched.setattr(os, "rename", fail_once)
        with pytest.raises(BadOutput, match="cannot"):
            quantize(pair, force=True)
    assert files(out) == before and sorted(path.name for path in pair.parent.iterdir()) == ["out", "pair"]
    (out / "onnxq.json").unlink()
    with pytest.raises(BadOutput, match="holds files that onnxq did not write"):
        quantize(pair, force=True)


@pytest.mark.parametrize("command", ["quantize", "doctor", "bundle", "checkpoint"])
@pytest.mark.parametrize("seen", ["nothing", "a file", "another", "empty", "ours", "ours, and more"])
def test_what_came_into_being_meanwhile_stays(
    pair: Path, monkeypatch: pytest.MonkeyPatch, command: str, seen: str
) -> None:
    """What a run may replace is what it saw there when it began, with --force or without."""
    out, model, force = pair.parent / "out", pair / "encoder_model.onnx", seen.startswith("ours")
    environment = Environment(guard=Guard(force))

    def begin() -> object:
        match command:
            case "quantize":
                return quantize(pair, force=force)
            case "doctor":
                return mend_folder(pair, out, environment=environment)
            case "bundle":
                return export(model, out, force=force, check=False)
        weights = pair.parent / "w.onnx"
        onnxq.quantize(model, weights, "w4a16", force=True)
        return export_folder(weights, "torchao", out, environment=environment)

    whole = place.publish

    def meanwhile(*arguments: Any) -> None:
        match seen:
            case "a file":
                out.write_text("precious")
            case "another" | "empty":
                out.mkdir()
        if seen in ("another", "ours, and more"):
            (out / "thesis.txt").write_text("precious")
        whole(*arguments)

    if force:
        begin()
    monkeypatch.setattr(place, "publish", meanwhile)
    if seen in ("nothing", "empty", "ours"):
        begin()
        assert len(files(out)) > 1
        return
    with pytest.raises(BadOutput, match="meanwhile, and stays as it is"):
        begin()
    assert (out if out.is_file() else out / "thesis.txt").read_text() == "precious"
    assert (len(files(out)) > 1) is force and not list(pair.parent.glob(".onnxq-*"))


def test_of_two_runs_that_write_one_folder_the_second_is_refused(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = place.publish

    def both(*arguments: Any) -> None:
        monkeypatch.setattr(place, "publish", whole)
        quantize(pair)
        whole(*arguments)

    monkeypatch.setattr(place, "publish", both)
    with pytest.raises(BadOutput, match=r"'.*out' came into being meanwhile"):
        quantize(pair)
    assert "encoder_model.onnx" in files(pair.parent / "out")


def test_destinations_that_cannot_be(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (".", "x", ".."):
        with pytest.raises(BadOutput, match="one contains the other"):
            onnxq.quantize_folder(pair, pair / where, "w8a16", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(BadOutput, match="is not a folder"):
        quantize(pair, "file", force=True)
    with pytest.raises(BadOutput, match="does not exist"):
        quantize(pair, "a/b")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BadOutput, match="the folder you are in"):
        quantize(pair, "here", force=True)
    monkeypatch.chdir(tmp_path)
    assert onnxq.quantize_folder(pair, recipe="w8a16").output == Path("pair.w8a16")


# The command line


def invoke(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, result.output


def test_the_command_line(pair: Path, tmp_path: Path) -> None:
    code, said = invoke("quantize", pair, "-o", tmp_path / "out", "-s", "w8a16", "--report", tmp_path / "r.json")
    assert code == 0
    lines = said.splitlines()
    assert any("transformers folder, w8a16 for ort-cpu" in line for line in lines)
    assert [line.split()[0] for line in lines if " → " in line] == ["decoder_model", "encoder_model", "all"]
    assert "1 weight of several parts" in said and "copied   config.json" in said
    assert json.loads((tmp_path / "r.json").read_text())["shared_weights"] == 1
    code, said = invoke("quantize", pair, "-o", tmp_path / "out", "-s", "w8a16", "--force", "--json")
    assert code == 0 and json.loads(said[said.index("{") :])["kind"] == "transformers"

    code, said = invoke("inspect", tmp_path / "out")
    assert code == 0 and "transformers folder, 2 parts" in said and "2 MatMulNBits" in said
    code, said = invoke("plan", pair)
    assert code == 1 and "is a folder; give one of its models: decoder_model.onnx, encoder_model.onnx" in said
    code, said = invoke("dequantize", pair, "-o", tmp_path / "made")
    assert code == 1 and "is a folder; give one of its models" in said
    for words in (["convert", "--to", "onnx"], ["analyze"], ["train"], ["lora", "base"]):
        code, said = invoke(*words, pair, *([] if words == ["analyze"] else ["-o", tmp_path / "made"]))
        assert code == 1 and "is a folder; give one of its models: decoder_model.onnx" in said, words
    for words in (["lora", "convert"], ["lora", "merge"], ["import-weights"]):
        code, said = invoke(*words, pair, "other", "-o", tmp_path / "made")
        assert code == 1 and "is a folder; give one of its models: decoder_model.onnx" in said, words
    code, said = invoke("quantize", pair, "--ranges", tmp_path / "x")
    assert code == 1 and "--ranges is for a single model" in said
    code, said = invoke("quantize", pair / "encoder_model.onnx", "--layout", "same")
    assert code == 1 and "--layout is for a folder of models" in said


@pytest.mark.parametrize("name", ["encoder_model.onnx", "config.json"])
def test_a_report_replaces_nothing_that_is_in_the_folder(name: str, pair: Path, tmp_path: Path) -> None:
    before = (pair / name).read_bytes()
    words = ("quantize", pair, "-o", tmp_path / "out", "-s", "w8a16", "--force", "--report", pair / name)
    code, said = invoke(*words)
    assert code == 1 and f"{name}' is read, so it cannot be the output; choose another name with --report" in said
    assert (pair / name).read_bytes() == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--report", "--html", "--save-profile"])
@pytest.mark.parametrize("name", ["out", "out/new.json"])
def test_what_lies_where_the_folder_goes_is_refused_before_work_begins(
    name: str, option: str, pair: Path, tmp_path: Path
) -> None:
    if name != "out":
        (tmp_path / "out").mkdir()
    words = ("quantize", pair, "-o", tmp_path / "out", "-s", "w8a16", option, tmp_path / name)
    code, said = invoke(*words)
    assert code == 1 and f"{name}' lies where -o puts a folder; choose another name with {option}" in said
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_every_weight_is_found_where_parts_are_compared(pair: Path) -> None:
    """The readers of a shared weight are named by node: names of prepared models are those of plans."""
    result = quantize(pair)
    for part in result.parts:
        job = open_job(pair / part.file, "w8a16")
        assert {weight.node.name for weight in find_weights(job.model)} == set(part.result.plan.choices)
