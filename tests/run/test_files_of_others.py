"""What was not written here stays: data under the name that a model's data get, folders that look like ours."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq import cli
from onnxq.bundles.export import export
from onnxq.errors import BadOutput
from onnxq.files.guard import Guard
from onnxq.output import place

pytestmark = pytest.mark.usefixtures("quick")


def saved(folder: Path, rows: int = 64) -> Path:
    text = f"g (float[1, {rows}] x) => (y) {{ y = MatMul(x, w) }}"
    return tiny.save(tiny.model(text, {"w": tiny.normal(rows, 256)}), folder)


def quantized(folder: Path, force: bool = False) -> Path:
    output = folder / "q.onnx"
    onnxq.quantize(saved(folder), output, "w8a16", check=False, shard_size=1000, force=force)
    return output


def data_of(folder: Path) -> Path:
    """The largest of its data files."""
    return max(folder.glob("q.onnx.*.data"), key=lambda path: path.stat().st_size)


def test_data_do_not_replace_what_has_their_name(tmp_path: Path) -> None:
    quantized(tmp_path)
    taken = data_of(tmp_path)
    for path in tmp_path.glob("q.onnx*"):
        path.unlink()
    taken.write_bytes(b"somebody's")
    with pytest.raises(BadOutput, match="exists with other bytes in it"):
        quantized(tmp_path)
    assert taken.read_bytes() == b"somebody's" and not (tmp_path / "q.onnx").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["model.onnx", taken.name])
    quantized(tmp_path, force=True)
    assert taken.read_bytes() != b"somebody's"


def test_data_do_not_replace_those_of_the_model_that_is_read(tmp_path: Path) -> None:
    quantized(tmp_path)
    name = data_of(tmp_path).name
    for path in tmp_path.glob("*.onnx*"):
        path.unlink()
    model = onnx.load(saved(tmp_path))
    onnx.save_model(model, tmp_path / "model.onnx", save_as_external_data=True, location=name, size_threshold=0)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(BadOutput, match="exists with other bytes in it"):
        onnxq.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", "w8a16", check=False, shard_size=1000, force=True)
    assert (tmp_path / name).read_bytes() == before


def test_a_report_does_not_replace_the_data_of_the_model_that_was_written(tmp_path: Path) -> None:
    quantized(tmp_path)
    data = data_of(tmp_path)
    before = data.read_bytes()
    guard = Guard(force=True)
    guard.writes(data, "--report")
    onnxq.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", "w8a16", check=False, shard_size=1000, guard=guard)
    with pytest.raises(BadOutput, match=r"holds the data of '.*q\.onnx'; choose another name with --report"):
        guard.write_text(data, "{}")
    assert data.read_bytes() == before


@pytest.mark.parametrize("text", ['{"name": "my extension"}', "[1]", "hello", '{"parts": []}', ""])
@pytest.mark.parametrize("name", ["manifest.json", place.REPORT])
def test_a_folder_is_ours_by_what_its_report_says(name: str, text: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "src").mkdir(parents=True)
    (folder / name).write_text(text)
    with pytest.raises(BadOutput, match="holds files that onnxq did not write there"):
        place.check_destination(folder, [saved(tmp_path)], True, name)


def test_bundles_and_folders_of_ours_are_replaced(tmp_path: Path) -> None:
    model = saved(tmp_path)
    for force in (False, True):
        export(model, tmp_path / "bundle", check=False, force=force)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.onnx").write_bytes(model.read_bytes())
    words = ["quantize", str(tmp_path / "parts"), "-s", "w8a16", "--no-check", "-o", str(tmp_path / "done")]
    for force in ([], ["--force"]):
        done = CliRunner().invoke(cli.main, [*words, *force])
        assert done.exit_code == 0, done.output
    assert {"parts", "left_out"} <= json.loads((tmp_path / "done" / place.REPORT).read_text()).keys()


def test_data_that_a_copy_as_json_speaks_of_stay(tmp_path: Path) -> None:
    """JSON may spell a letter by its number."""
    output, name = tmp_path / "modèle.onnx", "modèle.onnx.0123456789abcdef.data"
    model = onnx.load(saved(tmp_path))
    onnx.save_model(model, output, save_as_external_data=True, location=name, size_threshold=0)
    (tmp_path / "copy.json").write_text(json.dumps({"location": name}))
    onnxq.quantize(tmp_path / "model.onnx", output, "w8a16", check=False, force=True)
    assert (tmp_path / name).exists()
    (tmp_path / "copy.json").unlink()
    onnx.save_model(model, output, save_as_external_data=True, location=name, size_threshold=0)
    onnxq.quantize(tmp_path / "model.onnx", output, "w8a16", check=False, force=True)
    assert not (tmp_path / name).exists()
