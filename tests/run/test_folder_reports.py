"""Folders of models compared and shown: part by part, in one table, one page and one JSON."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from folder_models import X, decoder, encoder, put

from onnxq.checking.compare import compare
from onnxq.cli import main
from onnxq.errors import BadModel
from onnxq.folders.compare import compare_folders
from onnxq.report.document import schema
from onnxq.samples.sampling import Sampling

pytestmark = pytest.mark.usefixtures("quick")


def run(*words: object, code: int = 0) -> Result:
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found


def report_of(path: Path) -> Any:
    table = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json.loads(schema())).validate(table)
    return table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a float folder, samples of one of its parts, the quantized folder, and reports of that."""
    folder = tmp_path_factory.mktemp("folders")
    put(folder / "pair", encoder_model=encoder(), decoder_model=decoder(), config={"a": 1})
    (folder / "data").mkdir()
    np.savez(folder / "data" / "encoder_model.npz", x=np.stack([X * (i + 1) / 8 for i in range(16)]))
    words = ["--data", folder / "data", "--effort", "quick", "-o", folder / "small"]
    pages = ["--html", folder / "r.html", "--html", folder / "r.json"]
    run("quantize", folder / "pair", "-s", "w8a16", "--keep", "decoder_model/*", *words, *pages)
    return folder


def test_a_quantized_folder_has_one_report_with_one_of_each_part(made: Path) -> None:
    found = report_of(made / "r.json")
    assert (found["kind"], found["title"], found["scheme"]) == ("quantize", "small", "w8a16")
    kept, part = found["parts"]
    assert [part["title"] for part in found["parts"]] == ["decoder_model", "encoder_model"]
    assert kept["notes"] == ["as it was: kept, as asked"] and not kept["nodes"]
    assert kept["summary"]["bytes_before"] == kept["summary"]["bytes_after"]
    assert part["model"] == str(made / "small" / "encoder_model.onnx")
    assert part["against"] == str(made / "pair" / "encoder_model.onnx")
    assert [node["name"] for node in part["nodes"] if node["weights"]] == ["embed", "own"]
    assert part["summary"]["sqnr"] > 30 and part["summary"]["proves"] and part["layers"] and part["weights"]
    assert found["summary"]["bytes_after"] == sum(each["summary"]["bytes_after"] for each in found["parts"])
    assert part["commands"] == [
        f"onnxq check {part['against']} {part['model']} --data {made / 'data' / 'encoder_model.npz'}"
    ]
    assert found["commands"][0].startswith(f"onnxq quantize {made / 'pair'}")


def bodies(page: str) -> list[str]:
    packed = re.findall(r'<script type="application/octet-stream" class="part">(.*?)</script>', page)
    return [gzip.decompress(base64.b64decode(each)).decode() for each in packed]


def test_the_page_holds_every_part(made: Path, tmp_path: Path) -> None:
    page = (made / "r.html").read_text(encoding="utf-8")
    assert [re.search("<h1>(.*?)</h1>", body)[1] for body in bodies(page)] == ["decoder_model", "encoder_model"]  # type: ignore[index]
    assert 'href="#part-1">encoder_model' in page and "as it was: kept, as asked" in page
    run("report", made / "r.json", "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_folders_are_compared_part_by_part(made: Path, tmp_path: Path) -> None:
    found = compare_folders(made / "pair", made / "small", Sampling(str(made / "data")))
    alone = compare(
        made / "pair" / "encoder_model.onnx",
        made / "small" / "encoder_model.onnx",
        Sampling(str(made / "data" / "encoder_model.npz")),
    )
    by_name = {part.name: part.found for part in found.parts}
    assert by_name["encoder_model"].to_dict()["sqnr"] == alone.to_dict()["sqnr"]
    words = ["check", made / "pair", made / "small", "--data", made / "data"]
    told = run(*words, "--html", tmp_path / "c.json").output
    assert re.search(r"decoder_model .* identical .* made-up inputs", told) and "give --data" in told
    assert re.search(r"encoder_model .* dB .* 16 samples", told)
    parts = report_of(tmp_path / "c.json")["parts"]
    assert [part["kind"] for part in parts] == ["check"] * 2 and parts[1]["summary"]["sqnr"] == alone.sqnr
    table = json.loads(run(*words, "--json").output)
    assert [row["part"] for row in table["parts"]] == ["decoder_model", "encoder_model"] and table["only_a"] == []


def test_layer_by_layer_and_with_a_floor(made: Path, tmp_path: Path) -> None:
    words = ["check", made / "pair", made / "small", "--by-layer"]
    told = run(*words, "--html", tmp_path / "c.json").output
    assert told.index("decoder_model") < told.index("encoder_model") and "the same throughout" in told
    assert [len(part["layers"]) for part in report_of(tmp_path / "c.json")["parts"]] == [2, 3]
    for more, sentence in ((["--by-layer"], "has sqnr="), ([], "the outputs reach")):
        found = CliRunner().invoke(main, [str(word) for word in (*words[:3], *more, "--fail-below", "sqnr=110")])
        assert found.exit_code == 1 and "part 'encoder_model': " in found.output and sentence in found.output


def test_a_report_of_folders_as_they_lie(made: Path, tmp_path: Path) -> None:
    run("report", made / "small", "--against", made / "pair", "--json", tmp_path / "r.json")
    parts = report_of(tmp_path / "r.json")["parts"]
    assert [part["title"] for part in parts] == ["decoder_model", "encoder_model"]
    assert all(part["summary"]["sqnr"] > 30 and part["against"] for part in parts)
    run("report", made / "small", "--json", tmp_path / "alone.json")
    assert [part["against"] for part in report_of(tmp_path / "alone.json")["parts"]] == ["", ""]


def test_parts_named_by_their_precision_find_their_partners(tmp_path: Path) -> None:
    """As transformers.js names them; what has no partner is told."""
    put(tmp_path / "a", encoder_model=encoder(), decoder_model=decoder(), extra=decoder(), config={})
    put(tmp_path / "b", encoder_model_q4=encoder(), decoder_model=decoder(), decoder_model_merged=decoder(), config={})
    found = compare_folders(tmp_path / "a", tmp_path / "b")
    assert {part.name: part.b.name for part in found.parts} == {
        "encoder_model": "encoder_model_q4.onnx",
        "decoder_model": "decoder_model.onnx",
    }
    assert (found.only_a, found.only_b) == (("extra",), ("decoder_model_merged",))
    told = run("check", tmp_path / "a", tmp_path / "b").output
    assert f"only in {tmp_path / 'a'}: extra" in " ".join(told.split())


def test_what_is_refused(made: Path, tmp_path: Path) -> None:
    model = made / "small" / "encoder_model.onnx"
    for words, sentence in (
        (["check", made / "pair", model], "is a folder; give one of its models"),
        (["report", made / "small", "--against", model], "is a folder; give one of its models"),
        (["check", made / "pair", made / "small", "--metric", "top1"], "--metric is for a single model"),
        (["check", made / "pair", made / "small", "--data", made / "data" / "encoder_model.npz"], "which part"),
        (["check", made / "pair", made / "small", "--all"], "--all goes with --by-layer"),
    ):
        assert sentence in run(*words, code=1).output
    onnx.save(encoder(), tmp_path / "other.onnx")
    with pytest.raises(BadModel, match="has the name of one in"):
        compare_folders(made / "pair", tmp_path)
