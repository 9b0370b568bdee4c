"""What a command reads though no option names it stays as it is: files that tables name, that lie beside a model,
modules and libraries of the user's, data of a model in text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from google.protobuf import text_format

import onnxq
from onnxq import cli
from onnxq.errors import BadOutput, BadRecipe
from onnxq.files import guard, staging
from onnxq.files.guard import Guard

pytestmark = pytest.mark.usefixtures("quick")

IMAGES = "g (float[n, 3, 16, 16] pixel_values) => (y) { c = Conv(pixel_values, w)  y = Relu(c) }"
MODULE = """
import numpy as np
from {package}_helper import number
def samples():
    for _ in range(4):
        yield {{"x": np.full((1, 64), number, np.float32)}}
"""

LAZY = """
import numpy as np
def samples():
    from {package}_helper import number
    for _ in range(4):
        yield {{"x": np.full((1, 64), number, np.float32)}}
"""


def refused(*words: object) -> str:
    """What the command line says, which ends with 1."""
    found = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert found.exit_code == 1, found.output
    return found.output


def model(folder: Path, name: str = "model.onnx") -> Path:
    made = tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)})
    return tiny.save(made, folder, name)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A model of pictures, a table that names some, and what says how they are prepared."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "pics").mkdir()
    for number in range(4):
        image.fromarray(np.full((16, 16, 3), 60 * number, np.uint8)).save(tmp_path / "pics" / f"{number}.png")
    (tmp_path / "t.csv").write_text("image\n" + "".join(f"pics/{number}.png\n" for number in range(4)))
    settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True, "size": 16}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    tiny.save(tiny.model(IMAGES, {"w": tiny.normal(32, 3, 3, 3)}), tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:inputs are made as")
@pytest.mark.parametrize("output", ["pics/3.png", "preprocessor_config.json"])
@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "-s", "w8a8", "-o"),
        ("calibrate", "-s", "w4a16", "--evidence"),
        ("quantize", "-s", "w8a8", "--no-check", "-o", "o.onnx", "--report"),
    ],
)
def test_files_of_a_table_and_beside_a_model(
    words: tuple[str, ...], output: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(pictures)
    before = Path(output).read_bytes()
    assert f"'{output}' is read" in refused(words[0], "model.onnx", "--data", "t.csv", *words[1:], output, "-f")
    assert Path(output).read_bytes() == before and not Path("o.onnx").exists()


@pytest.mark.filterwarnings("ignore:inputs are made as")
def test_files_of_a_table_that_are_not_read(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(pictures)
    before = Path("pics/3.png").read_bytes()
    words = ("--data", "t.csv", "--limit", "1", "-o", "page.html", "--json", "pics/3.png", "-f")
    assert "'pics/3.png' is read" in refused("report", "model.onnx", *words)
    assert Path("pics/3.png").read_bytes() == before


@pytest.mark.parametrize("code", [MODULE, LAZY])
@pytest.mark.parametrize("lost", ["{package}.py", "{package}_helper.py"])
def test_modules_of_the_user(lost: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"of_{tmp_path.name}"
    for name, text in ((package, code.format(package=package)), (f"{package}_helper", "number = 1")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / lost.format(package=package)
    before = path.read_bytes()
    words = ("calibrate", model(tmp_path), "-s", "w8a8", "--data", f"{package}:samples", "-o", path, "-f")
    assert f"'{path}' is read" in refused(*words)
    assert path.read_bytes() == before


def test_a_module_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("score_of.py").write_text("def f(session):\n    return 1.0\n")
    words = ("-s", "w8a16", "-o", "o.onnx", "--evaluate", "score_of.py:f", "--report", "score_of.py", "-f")
    assert "'score_of.py' is read" in refused("quantize", model(tmp_path), *words)
    assert Path("score_of.py").read_text().startswith("def f") and not Path("o.onnx").exists()


def test_data_of_a_model_in_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = onnx.load(model(tmp_path))
    onnx.save_model(made, "t.onnx", save_as_external_data=True, location="w.png", size_threshold=0)
    text = text_format.MessageToString(onnx.load("t.onnx", load_external_data=False))
    Path("t.textproto").write_text(text)
    before = Path("w.png").read_bytes()
    assert "'w.png' is read" in refused("benchmark", "t.textproto", "--plot", "w.png", "-f")
    assert Path("w.png").read_bytes() == before


def test_a_library_that_is_named(tmp_path: Path) -> None:
    library = onnxq.runtime.native.path()
    if library is None:
        pytest.skip("the compiled library was not built")
    copy = tmp_path / "own.so"
    copy.write_bytes(library.read_bytes())
    words = ["quantize", str(model(tmp_path)), "-s", "w4a16", "-t", "onnxq", "-o", str(tmp_path / "o.onnx")]
    command = [sys.executable, "-m", "onnxq", *words, "--report", str(copy), "-f"]
    env = {**os.environ, "ONNXQ_LIBRARY": str(copy)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and f"'{copy}' is read" in done.stderr
    assert copy.read_bytes() == library.read_bytes()


def test_a_library_that_is_none_is_a_sentence_of_the_version_too(tmp_path: Path) -> None:
    env = {**os.environ, "ONNXQ_LIBRARY": str(tmp_path / "nothing.so")}
    done = subprocess.run([sys.executable, "-m", "onnxq", "--version"], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"onnxq: ONNXQ_LIBRARY: '{tmp_path / 'nothing.so'}' cannot be read: No such file or directory"
    ]


def test_what_an_earlier_command_read_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "beside.json"
    path.write_text("{}")
    earlier = Guard(force=True)
    guard.remember([path])
    with pytest.raises(BadOutput, match="is read"):
        earlier.writes(path)
    Guard(force=True).writes(path)
    guard.remember([path], for_good=True)
    with pytest.raises(BadOutput, match="is read"):
        Guard(force=True).writes(path)


def test_data_of_what_is_replaced_go_though_they_were_checked(tmp_path: Path) -> None:
    source, output = model(tmp_path), tmp_path / "o.onnx"
    for scheme in ("w4a16", "w8a16", "nf4"):
        onnxq.quantize(source, output, scheme, check=False, force=True, shard_size=1000)
        onnxq.check(source, output)
        stored = onnx.load(output, load_external_data=False).graph.initializer
        named = {entry.value for tensor in stored for entry in tensor.external_data if entry.key == "location"}
        assert {path.name for path in tmp_path.glob("o.onnx.*")} == named != set()


def test_data_of_equal_weights_of_two_models_are_two(tmp_path: Path) -> None:
    source = model(tmp_path)
    for output, scheme in (("y.onnx", "w8a16"), ("x.onnx", "w8a16"), ("x.onnx", "w4a16")):
        onnxq.quantize(source, tmp_path / output, scheme, check=False, force=True, shard_size=1000)
    hashes = [path.name.split(".")[-2] for path in tmp_path.glob("x.onnx.*.data")]
    assert hashes and not any((tmp_path / f"y.onnx.{each}.data").exists() for each in hashes)
    assert list(tmp_path.glob("y.onnx.*.data"))


class _Failing(os.PathLike):
    def __fspath__(self) -> str:
        raise KeyError("no name")


@pytest.mark.parametrize("formats", [b"x", range(3), [3]])
def test_sequences_of_other_things(formats: object, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="'formats' is of type"):
        onnxq.search(model(tmp_path), formats=formats)


def test_paths_that_fail_and_integers_without_end(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="'model' is of type _Failing"):
        onnxq.quantize(_Failing(), tmp_path / "o.onnx", "w4a16")
    with pytest.raises(BadRecipe, match="'min_sqnr' is of type int"):
        onnxq.Recipe("w4a16", min_sqnr=10**400)
    with pytest.raises(BadRecipe, match="'min_sqnr' is of type Fraction"):
        onnxq.Recipe("w4a16", min_sqnr=Fraction(10**400))


def test_an_input_that_goes_meanwhile_is_named(tmp_path: Path) -> None:
    output = tmp_path / "sub" / "o.onnx"
    with pytest.raises(BadOutput, match=r"gone\.data' is read, and is there no more"), staging.as_sentences(output):
        (tmp_path / "gone.data").read_bytes()
    for own in (output, output.parent, output.parent / f"{staging.PREFIX}1" / "o.onnx"):
        with pytest.raises(BadOutput, match=r"o\.onnx' cannot be written"), staging.as_sentences(output):
            own.open()


def test_a_layer_of_what_is_no_tensor() -> None:
    with pytest.raises(BadRecipe, match="'packed' is of type list"):
        onnxq.Linear4Bit([[1]], [[1.0]], 2)
