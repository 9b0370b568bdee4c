"""What is read stays as it is, what is there is not replaced unasked, and a disk that is full takes nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq.calibration import find_ranges
from onnxq.calibration.observations import Observations
from onnxq.cli import main
from onnxq.errors import BadOutput
from onnxq.files import data_files, staging
from onnxq.files.guard import Guard
from onnxq.job import Job
from onnxq.output import write
from onnxq.summaries.ranges import Ranges

pytestmark = pytest.mark.usefixtures("quick")
MATMUL = "g (float[N, 64] x) => (float[N, 64] y) { [first] a = MatMul(x, w)  [last] y = MatMul(a, v) }"
CONSTANTS = {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64, seed=1)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with external weights, and everything else that a command may read."""
    monkeypatch.chdir(tmp_path)
    proto = tiny.model(MATMUL, CONSTANTS)
    onnx.save(proto, "in.onnx", save_as_external_data=True, location="in.weights", size_threshold=0)
    np.savez("data.npz", x=tiny.normal(12, 1, 64))
    Path("samples").mkdir()
    np.savez("samples/0.npz", x=tiny.normal(12, 1, 64))
    Path("recipe.toml").write_text('scheme = "w8a8"\n')
    Path("mine.py").write_text("import numpy as np\ndef rows():\n    yield {'x': np.ones((1, 64), np.float32)}\n")
    run("plan", "in.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "plan.json")
    run("calibrate", "in.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "in.ranges")
    run("calibrate", "in.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "part.ranges", "--shard", "1/2")
    return tmp_path


def run(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.sweep
def test_where_what_is_printed_goes_is_no_output(folder: Path) -> None:
    """`>> log` and the log, or /dev/stdout, as the page: it would take the place of what is in the log."""
    Path("log").write_text("precious\n")
    script = f"import sys; sys.path.insert(0, {str(Path(onnxq.__file__).parents[1])!r})\n"
    script += "from onnxq.__main__ import run; run()"
    for place in ("log", "/dev/stdout"):
        words = ["plan", "in.onnx", "-f", "-o", place]
        with Path("log").open("a") as log:
            done = subprocess.run([sys.executable, "-c", script, *words], stdout=log, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and f"'{place}' is where what is printed goes" in done.stderr
        assert Path("log").read_text() == "precious\n"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path): path.read_bytes() for path in files}


W8A8 = ("-s", "w8a8", "--data")
QUANTIZE = ("quantize", "in.onnx", "--no-check", "-o", "out.onnx", "--report")
READ = {
    "calibrate: model": ("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "in.onnx"),
    "calibrate: weights": ("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "in.weights"),
    "calibrate: data": ("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "data.npz"),
    "calibrate: data, spelled otherwise": ("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "samples/../data.npz"),
    "calibrate: data in a folder": ("calibrate", "in.onnx", *W8A8, "samples", "-o", "samples/0.npz"),
    "calibrate: a function": ("calibrate", "in.onnx", *W8A8, "mine:rows", "-o", "mine.py"),
    "calibrate: recipe": ("calibrate", "in.onnx", "--data", "data.npz", "--recipe", "recipe.toml", "-o", "recipe.toml"),
    "merge": ("calibrate", "--merge", "part.ranges", "-o", "part.ranges"),
    "plan: model": ("plan", "in.onnx", "-o", "in.onnx"),
    "plan: weights": ("plan", "in.onnx", "-o", "in.weights"),
    "plan: data": ("plan", "in.onnx", "--data", "data.npz", "-o", "data.npz"),
    "plan: recipe": ("plan", "in.onnx", "--recipe", "recipe.toml", "--data", "data.npz", "-o", "recipe.toml"),
    "report: weights": (*QUANTIZE, "in.weights"),
    "report: data": (*QUANTIZE, "data.npz", *W8A8, "data.npz"),
    "report: plan": (*QUANTIZE, "plan.json", "--plan", "plan.json", *W8A8, "data.npz"),
    "report: recipe": (*QUANTIZE, "recipe.toml", "--recipe", "recipe.toml", "--data", "data.npz"),
    "report: ranges": (*QUANTIZE, "in.ranges", "--ranges", "in.ranges", *W8A8, "data.npz"),
}
#: Commands that write a model, and a file that they read.
READ_FOR_MODELS = {
    "quantize: weights": (("quantize", "in.onnx", "--no-check"), "in.weights"),
    "quantize: recipe": (("quantize", "in.onnx", "--recipe", "recipe.toml", "--data", "data.npz"), "recipe.toml"),
    "quantize: plan": (("quantize", "in.onnx", "--plan", "plan.json", *W8A8, "data.npz"), "plan.json"),
    "import-weights: checkpoint": (("import-weights", "in.onnx", "data.npz"), "data.npz"),
    "import-weights: weights": (("import-weights", "in.onnx", "data.npz"), "in.weights"),
}


@pytest.mark.parametrize("words", READ.values(), ids=READ)
def test_what_a_command_reads_is_never_written(words: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    assert "is read, so it cannot be the output" in run(*words, "--force", code=1)
    assert contents(folder) == before


@pytest.mark.parametrize(("words", "read"), READ_FOR_MODELS.values(), ids=READ_FOR_MODELS)
def test_what_is_read_is_never_replaced_by_a_model(words: tuple[str, ...], read: str, folder: Path) -> None:
    """By its own name, which no model may have, as little as by a name that a model may have."""
    (folder / "other.onnx").hardlink_to(read)
    before = contents(folder)
    assert f"'{read}' must end in .onnx" in run(*words, "-o", read, "--force", code=1)
    assert "'other.onnx' is read, so it cannot be the output" in run(*words, "-o", "other.onnx", "--force", code=1)
    assert contents(folder) == before


@pytest.mark.parametrize("words", [("quantize", "in.onnx"), ("import-weights", "in.onnx", "data.npz")])
def test_force_is_not_advised_where_it_would_not_help(words: tuple[str, ...], folder: Path) -> None:
    """A name that no model may have is refused for that, even if the file is there."""
    Path("mine").write_text("precious")
    before = contents(folder)
    for options in ((), ("--force",)):
        assert "'mine' must end in .onnx; choose another name" in run(*words, "-o", "mine", *options, code=1)
    assert contents(folder) == before


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_links_to_what_is_read_are_the_same(link: str, folder: Path) -> None:
    other = folder / "other"
    other.symlink_to("data.npz") if link == "symbolic" else other.hardlink_to("data.npz")
    before = contents(folder)
    said = run("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "other", "-f", code=1)
    assert "is read, so it cannot be the output" in said
    assert contents(folder) == before


EXISTING = {
    "calibrate": ("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "mine"),
    "merge": ("calibrate", "--merge", "part.ranges", "-o", "mine"),
    "plan": ("plan", "in.onnx", "-o", "mine"),
    "report": (*QUANTIZE, "mine"),
    "quantize": ("quantize", "in.onnx", "--no-check", "-o", "mine.onnx"),
    "import-weights": ("import-weights", "in.onnx", "data.npz", "-o", "mine.onnx"),
    "trace": ("quantize", "in.onnx", "--no-check", "-o", "out.onnx", "--trace", "trace"),
}


@pytest.mark.parametrize("words", EXISTING.values(), ids=EXISTING)
def test_what_is_there_is_not_replaced_unasked(words: tuple[str, ...], folder: Path) -> None:
    for name in ("mine", "mine.onnx"):
        Path(name).write_text("precious")
    Path("trace").mkdir()
    Path("trace/2-rewritten.onnxtxt").write_text("precious")
    before = contents(folder)
    assert "exists; give --force to replace it" in run(*words, code=1)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "words",
    [
        (*QUANTIZE, "out.onnx"),
        (*QUANTIZE, "./OUT.onnx"),
        (*QUANTIZE, "r", *W8A8, "data.npz", "--ranges", "r"),
        (*QUANTIZE, "r.partial", *W8A8, "data.npz", "--ranges", "r"),
    ],
    ids=["model and report", "other letters", "report and ranges", "report and progress"],
)
def test_one_file_is_not_two_outputs(words: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    assert "choose another name" in run(*words, code=1)
    assert contents(folder) == before


def test_with_force_everything_is_replaced(folder: Path) -> None:
    Path("mine").write_text("old")
    run("plan", "in.onnx", "-o", "mine", "-f")
    assert json.loads(Path("mine").read_text())["choices"]
    run("calibrate", "in.onnx", *W8A8, "data.npz", "-o", "mine", "-f")
    assert json.loads(Path("mine").read_text())["values"]
    assert not list(folder.glob("mine.partial*"))


def test_weights_in_bodies_of_functions_are_read_too() -> None:
    """The file of the model says so, whatever part of it is read later."""
    inner = tiny.model("g (float[4] x) => (float[4] y) { y = Add(x, b) }", {"b": np.ones(4, np.float32)})
    body = inner.graph
    onnx.external_data_helper.set_external_data(body.initializer[0], "deep.bin", 0, 16)
    body.initializer[0].ClearField("raw_data")
    branch = onnx.helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    function = onnx.helper.make_function("local", "f", ["x", "c"], ["z"], [branch], [onnx.helper.make_opsetid("", 17)])
    inner.functions.append(function)
    Path("deep.onnx").write_bytes(inner.SerializeToString())
    Path("deep.bin").write_bytes(b"\0" * 16)
    assert data_files.locations(Path("deep.onnx")) == {"deep.bin"}
    guard = Guard(force=True)
    guard.reads("deep.onnx")
    with pytest.raises(BadOutput, match=r"deep\.bin' is read"):
        guard.writes(Path("deep.bin"))


@pytest.mark.parametrize("size", [1, data_files._CHUNK - 5, data_files._CHUNK + 3, 2 * data_files._CHUNK - 12])
def test_locations_are_found_anywhere_in_a_large_file(size: int) -> None:
    entry = onnx.StringStringEntryProto(key="location", value="w" * 200).SerializeToString()
    Path("large.onnx").write_bytes(b"\0" * size + entry + b"\0" * 100)
    assert data_files.locations(Path("large.onnx")) == {"w" * 200}


def test_data_that_only_look_like_those_of_the_output_stay(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Only what the replaced model itself refers to goes, and not if a copy of that model does, too."""
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)
    run("quantize", "in.onnx", "-s", "w4a16", "--no-check", "-o", "out.onnx")
    (first,) = write.own_data(Path("out.onnx"))
    Path("out.onnx.data").write_text("precious")
    Path("out.onnx.0123456789abcdef.data").write_text("precious")
    Path("copy.onnx").write_bytes(Path("out.onnx").read_bytes())
    run("quantize", "in.onnx", "-s", "w8a16", "--no-check", "-o", "out.onnx", "-f")
    assert Path("out.onnx.data").read_text() == Path("out.onnx.0123456789abcdef.data").read_text() == "precious"
    assert first.exists()
    (second,) = write.own_data(Path("out.onnx"))
    run("quantize", "in.onnx", "-s", "nf4", "--no-check", "-o", "out.onnx", "-f")
    assert not second.exists()
    Path("copy.onnx").unlink()


@pytest.mark.parametrize("location", ["out.onnx.data", "shared.bin"])
def test_data_that_other_programs_wrote_stay_when_their_model_is_replaced(location: str, folder: Path) -> None:
    """They may be those of several models, some of them perhaps packed, or elsewhere."""
    proto = tiny.model(MATMUL, CONSTANTS)
    onnx.save(proto, "out.onnx", save_as_external_data=True, location=location, size_threshold=0)
    run("quantize", "in.onnx", "-s", "w8a16", "--no-check", "-o", "out.onnx", "-f")
    assert Path(location).exists()


def test_data_stay_that_a_model_under_another_name_refers_to(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Its fields may be in any order."""
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)
    run("quantize", "in.onnx", "-s", "w4a16", "--no-check", "-o", "out.onnx")
    (data,), whole = write.own_data(Path("out.onnx")), onnx.load("out.onnx", load_external_data=False)
    graph = onnx.ModelProto(graph=whole.graph)
    whole.ClearField("graph")
    Path("b.model").write_bytes(graph.SerializeToString() + whole.SerializeToString())
    run("quantize", "in.onnx", "-s", "w8a16", "--no-check", "-o", "out.onnx", "-f")
    assert data.exists()


@pytest.mark.parametrize("name", ["x" * 250 + ".onnx", b"\xff\xfe.onnx".decode("utf-8", "surrogateescape")])
def test_data_have_names_that_a_file_system_and_a_model_can_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)
    path = Path(name)
    write.save(tiny.read(tiny.model(MATMUL, CONSTANTS)), path)
    (data,) = write.own_data(path)
    assert len(os.fsencode(data.name)) <= 255
    found = ir.load(path).graph.initializers
    for key, wanted in CONSTANTS.items():
        np.testing.assert_array_equal(tiny.array(found[key]), wanted)


def test_names_with_a_nul_are_refused() -> None:
    with pytest.raises(BadOutput, match="NUL"):
        Guard().writes(Path("a\0b"))


def test_a_link_stays_one_and_permissions_stay(folder: Path) -> None:
    Path("target.json").write_text("{}")
    Path("target.json").chmod(0o640)
    Path("latest.json").symlink_to("target.json")
    run("plan", "in.onnx", "-o", "latest.json", "-f")
    assert Path("latest.json").is_symlink()
    assert json.loads(Path("target.json").read_text())["choices"]
    assert Path("target.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("source", ["in.ranges", "recipe.toml"])
def test_ranges_that_came_into_being_meanwhile_stay(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another run with the same data are as good; anything else is not replaced unasked."""
    choose = find_ranges.ranges_of

    def meanwhile(job: Job, seen: Observations) -> Ranges:
        Path("r").write_bytes(Path(source).read_bytes())
        return choose(job, seen)

    monkeypatch.setattr(find_ranges, "ranges_of", meanwhile)
    words = ("quantize", "in.onnx", *W8A8, "data.npz", "--no-check", "-o", "out.onnx", "--ranges", "r")
    said = run(*words, code=int(source != "in.ranges"))
    assert ("came into being meanwhile" in said) is (source != "in.ranges")
    assert Path("r").read_bytes() == Path(source).read_bytes()
    assert Path("r.partial").exists() is (source != "in.ranges")  # which is not lost with them


@pytest.mark.parametrize("kind", ["text", "model"])
def test_a_full_disk_leaves_the_old_file(kind: str, folder: Path) -> None:
    """The system refuses every file of more than a few bytes, as a full disk does."""
    words = {
        "text": ("plan", "in.onnx", "-s", "nf4", "-o", "out.json", "-f"),
        "model": ("quantize", "in.onnx", "-s", "nf4", "--no-check", "-o", "out.onnx", "-f"),
    }[kind]
    run("plan", "in.onnx", "-o", "out.json")
    run("quantize", "in.onnx", "-s", "w8a16", "--no-check", "-o", "out.onnx")
    before = contents(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        said = run(*words, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written: File too large" in said
    assert contents(folder) == before


def test_a_folder_without_locks_is_written_to_and_not_swept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(95, os.strerror(95))

    (folder / ".onnxq-someone").mkdir()
    monkeypatch.setattr(staging.fcntl, "flock", no_locks)
    write.write_text(folder / "a", "text")
    assert (folder / "a").read_text() == "text"
    assert [path.name for path in folder.glob(".onnxq-*")] == [".onnxq-someone"]


@pytest.mark.parametrize("name", ["a.onnx", "a.onnx_adapter"])
def test_what_onnxruntime_opens_or_writes_has_a_path_of_text(name: str, tmp_path: Path) -> None:
    (tmp_path / "\udcff").mkdir()
    with pytest.raises(BadOutput, match="path is text in UTF-8; rename it"):
        Guard().writes(tmp_path / "\udcff" / name)


def test_folders_of_other_machines_are_not_swept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their locks may not be seen here."""
    for here in (True, False):
        machine = "-".join(staging._machine()) if here else "00000000-00000000"
        (folder / f"{staging.PREFIX}{machine}-x").mkdir()
    write.write_text(folder / "a", "text")
    assert [path.name for path in folder.glob(".onnxq-*")] == [".onnxq-00000000-00000000-x"]


def descendants_of(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for path in found for child in path.read_text().split()]
    return children + [each for child in children for each in descendants_of(child)]


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_processes_of_calibration_end_with_their_parent(number: signal.Signals, folder: Path) -> None:
    text = "import numpy as np, time\ndef rows():\n    for i in range(9):\n        time.sleep(0.3 * (i > 0))\n"
    Path("slow.py").write_text(text + "        yield {'x': np.ones((1, 64), np.float32)}\n")
    command = [sys.executable, "-m", "onnxq", "calibrate", "in.onnx", *W8A8, "slow:rows", "-o", "r", "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    heard = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    process = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if number == signal.SIGKILL else heard,
    )
    until = time.monotonic() + 60
    while len(children := descendants_of(process.pid)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(children) == 3  # the one in which the command works, and its two
    time.sleep(0.5)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < until
        time.sleep(0.05)
