"""Folders that are written to stores: what is there stays as it would here, and what is written goes there however
the command ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner, Result

from onnxq.cli import main
from onnxq.errors import BadOutput
from onnxq.files import mirror, storage
from onnxq.files.publish import StoredFolder
from onnxq.files.storage import Known
from onnxq.runtime.process.endings import Ended

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("quick")
TEXT = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w)  y = Relu(a) }"
TWO = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, v)  y = MatMul(a, w) }"
#: Of negative numbers only, so that there is no finite number behind the Log.
NOWHERE = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w)  y = Log(a) }"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty one; a model `model.onnx` and a folder `two` with two of it are in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mirror, "_outputs", {})  # what other tests in this process failed to write
    made = tiny.model(TEXT, {"w": tiny.normal(64, 64)})
    tiny.save(made, tmp_path)
    (tmp_path / "two").mkdir()
    for name in ("a.onnx", "b.onnx"):
        tiny.save(made, tmp_path / "two", name)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    return memory


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == code, done.output
    return done


def names(store: Any, folder: str) -> list[str]:
    return sorted(path.removeprefix(f"{folder}/") for path in store.find(folder))


WRITING = {
    "export": ["export", "model.onnx", "--no-check"],
    "quantize": ["quantize", "two", "-s", "w4a16", "--no-check"],
    "doctor": ["doctor", "two", "--fix"],
    "convert": ["convert", "memory://q.onnx", "--to", "compressed-tensors"],
}


@pytest.mark.parametrize("command", WRITING)
def test_a_folder_of_somebody_else_stays(command: str, store: Any) -> None:
    """With --force too, as here."""
    run("quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "memory://q.onnx")
    store.pipe_file("/out/notes/mine.txt", b"precious")
    for force in ([], ["--force"]):
        done = run(*WRITING[command], "-o", "memory://out", *force, code=1)
        assert "onnxq: 'memory://out' holds files that onnxq did not write there" in done.stderr
    assert names(store, "/out") == ["notes/mine.txt"]
    store.pipe_file("/file", b"precious")
    assert "'memory://file' is not a folder" in run(*WRITING[command], "-o", "memory://file", code=1).stderr


def meanwhile(monkeypatch: pytest.MonkeyPatch, at: str, content: bytes) -> None:
    """Let somebody else put a file there once this command has seen that there is none."""
    real = storage.write

    def write(local: Path, url: str, *, replace: bool = True) -> Known:
        monkeypatch.setattr(storage, "write", real)
        fsspec.filesystem(at.partition("://")[0]).pipe_file(at, content)
        return real(local, url, replace=replace)

    monkeypatch.setattr(storage, "write", write)


def test_what_came_into_being_meanwhile_stays(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --force: a model, a report beside it, and a folder, of which nothing is written then."""
    quantize = ("quantize", "model.onnx", "-s", "w4a16", "--no-check", "-o", "memory://q.onnx")
    for words, at in (
        (quantize, "memory://q.onnx"),
        ((*quantize[:-1], "memory://p.onnx", "--report", "memory://r.json"), "memory://r.json"),
        ((*WRITING["quantize"], "-o", "memory://out"), "memory://out/onnxq.json"),
    ):
        meanwhile(monkeypatch, at, b"theirs")
        said = run(*words, code=1).output
        assert "came into being meanwhile; give --force to replace it" in said and at in said
        assert store.cat_file(at) == b"theirs"
        monkeypatch.setattr(mirror, "_outputs", {})
    assert names(store, "/out") == ["onnxq.json"]
    meanwhile(monkeypatch, "memory://q.onnx", b"theirs")
    run(*quantize, "--force")
    made = store.cat_file("/q.onnx")
    assert made != b"theirs"
    store.rm_file("/q.onnx")
    meanwhile(monkeypatch, "memory://q.onnx", made)
    run(*quantize)  # of which nothing is lost


FILES = {
    "e.safetensors": ["encode", "w.npz", "-w", "nf4"],
    "d.npz": ["decode", "memory://c.gguf"],
    "w.gguf": ["convert", "memory://q.onnx", "--to", "gguf"],
    "w.safetensors": ["convert", "memory://q.onnx", "--to", "safetensors"],
}


@pytest.mark.parametrize("name", FILES)
def test_what_came_into_being_meanwhile_stays_whatever_writes_the_file(
    name: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("w.npz", w=tiny.normal(64, 64))
    run("encode", "w.npz", "-w", "q8_0", "-o", "memory://c.gguf")
    run("quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "memory://q.onnx")
    words = [*FILES[name], "-o", f"memory://{name}"]
    meanwhile(monkeypatch, f"memory://{name}", b"theirs")
    said = run(*words, code=1).stderr
    assert f"'memory://{name}' came into being meanwhile; give --force to replace it" in said
    assert store.cat_file(f"/{name}") == b"theirs"
    monkeypatch.setattr(mirror, "_outputs", {})
    run(*words, "--force")
    assert store.cat_file(f"/{name}") != b"theirs"


@pytest.mark.parametrize("folder", ["", "many/"])
def test_weights_in_several_files_are_all_there(folder: str, store: Any) -> None:
    """The one that names the others is the last."""
    tiny.save(tiny.model(TWO, {"v": tiny.normal(64, 64), "w": tiny.normal(64, 64, seed=1)}), Path.cwd(), "m.onnx")
    run("quantize", "m.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "q.onnx")
    words = ["convert", "q.onnx", "--to", "safetensors", "--shard-size", "1", "-o"]
    run(*words, f"memory://{folder}w.safetensors")
    run(*words, "w.safetensors")
    wanted = {each.name: each.read_bytes() for each in Path.cwd().glob("w*")}
    assert len(wanted) > 2
    assert {name.rsplit("/", 1)[1]: store.cat_file(name) for name in store.find("/")} == wanted
    said = run(*words, f"memory://{folder}w.safetensors", code=1).stderr
    assert "exists; give --force to replace it" in said
    run(*words, f"memory://{folder}w.safetensors", "--force")


def test_nothing_is_replaced_for_which_nobody_asked_a_guard(store: Any) -> None:
    path = mirror.destination("memory://new.txt")
    path.write_bytes(b"ours")
    store.pipe_file("/new.txt", b"theirs")
    with pytest.raises(BadOutput, match=r"'memory://new\.txt' came into being meanwhile"):
        mirror.publish_rest()
    assert store.cat_file("/new.txt") == b"theirs"


@pytest.mark.parametrize("command", WRITING)
def test_a_folder_of_which_a_part_came_there_is_replaced(
    command: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "memory://q.onnx")
    real, there = storage.write, list[str]()

    def write(local: Path, url: str, *, replace: bool = True) -> Known:
        if there:
            raise BadOutput(f"'{url}' cannot be reached")
        there.append(url)
        return real(local, url, replace=replace)

    monkeypatch.setattr(storage, "write", write)
    said = run(*WRITING[command], "-o", "memory://out", code=1).stderr
    assert "cannot be reached; 'memory://out' holds a part of the result: --force replaces it" in said
    monkeypatch.setattr(storage, "write", real)
    monkeypatch.setattr(mirror, "_outputs", {})
    assert len(names(store, "/out")) == 1
    said = run(*WRITING[command], "-o", "memory://out", code=1).stderr
    assert "'memory://out' exists; give --force to replace it" in said
    run(*WRITING[command], "-o", "memory://out", "--force")
    assert len(names(store, "/out")) > 1


@pytest.mark.parametrize(("at", "is_late"), [("before", False), ("first", True), ("last", True)])
def test_of_two_who_replace_a_folder_at_once_one_is_told(
    at: str, is_late: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WRITING["quantize"], "-o", "memory://out"]
    run(*words)
    real, become = storage.write, StoredFolder.become

    def writing(local: Path, url: str, *, replace: bool = True) -> Known:
        found = real(local, url, replace=replace)
        if url.endswith("onnxq.json" if at == "first" else "b.onnx"):
            store.pipe_file("/out/a.onnx" if at == "last" else "/out/c.onnx", b"theirs")
        return found

    def becoming(self: StoredFolder, folder: Path) -> None:
        store.pipe_file("/out/a.onnx", b"theirs")
        become(self, folder)

    monkeypatch.setattr(*(storage, "write", writing) if is_late else (StoredFolder, "become", becoming))
    said = run(*words, "--force", code=1).stderr
    if is_late:
        assert "somebody else wrote to 'memory://out' at the same time, and it may hold files of both" in said
    else:
        assert "'memory://out' was changed meanwhile, and stays as it is" in said
        assert store.cat_file("/out/a.onnx") == b"theirs"


@pytest.mark.parametrize("is_told", [True, False], ids=["versions", "no versions"])
def test_of_two_who_write_files_of_one_length_at_once_one_is_told(
    is_told: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of one model, quantized in two ways, fit each other in all but their numbers. A store that tells
    versions is not asked for the bytes; nor is any for those of data, which are called by them."""
    monkeypatch.setattr("onnxq.output.write.SINGLE_FILE_BYTES", 0)
    words, real, read = [*WRITING["quantize"], "-o", "memory://out", "--force"], storage.write, list[str]()
    run(*words)
    assert sum(name.endswith(".data") for name in names(store, "/out")) == 2
    info, same = type(store).info, storage._is_same

    def written(local: Path, url: str, *, replace: bool = True) -> Known:
        found = real(local, url, replace=replace)
        if url.endswith("b.onnx"):
            store.pipe_file("/out/a.onnx", store.cat_file("/out/a.onnx")[:-1] + b"?")
        return found

    def told(self: Any, path: str, **options: Any) -> Any:
        content = store.store.get(self._strip_protocol(path))
        return info(self, path, **options) | ({} if content is None else {"ETag": str(hash(content.getvalue()))})

    def looked(fs: Any, local: Path, path: str) -> bool:
        read.append(path)
        return same(fs, local, path)

    monkeypatch.setattr(storage, "_is_same", looked)
    if is_told:
        monkeypatch.setattr(type(store), "info", told)
    run(*words)
    assert [path for path in read if is_told or path.endswith(".data")] == []
    monkeypatch.setattr(storage, "write", written)
    monkeypatch.setattr(mirror, "_outputs", {})
    said = run(*words, code=1).stderr
    assert "somebody else wrote to 'memory://out' at the same time, and it may hold files of both" in said


@pytest.mark.parametrize("command", WRITING)
def test_a_folder_of_onnxq_is_replaced_as_a_whole_where_that_is_asked_for(command: str, store: Any) -> None:
    run("quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "memory://q.onnx")
    run(*WRITING[command], "-o", "memory://out")
    wanted = names(store, "/out")
    assert len(wanted) > 1
    store.pipe_file("/out/old/model.onnx", b"of an earlier version")
    done = run(*WRITING[command], "-o", "memory://out", code=1)
    assert "onnxq: 'memory://out' exists; give --force to replace it" in done.stderr
    run(*WRITING[command], "-o", "memory://out", "--force")
    assert names(store, "/out") == wanted


@pytest.mark.parametrize("output", ["memory://net", "memory://net/model.onnx/inside", "memory://"])
def test_what_is_read_in_a_store_is_not_in_the_output(output: str, store: Any) -> None:
    """Nor does the output lie in it, as here."""
    content = Path("model.onnx").read_bytes()
    store.pipe_file("/net/model.onnx", content)
    words = ["export", "model.onnx", "--reference", "memory://net/model.onnx", "-o", output, "--force"]
    assert "one contains the other; choose another folder with -o" in run(*words, code=1).stderr
    assert store.cat_file("/net/model.onnx") == content and names(store, "/net") == ["model.onnx"]


def test_a_folder_does_not_take_the_place_of_what_another_option_writes(store: Any) -> None:
    words = [*WRITING["quantize"], "-o", "memory://out", "--report", "memory://out/report.json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (1, 2) and not store.find("/out"), done.output


def test_steps_of_an_earlier_run_stay(store: Any) -> None:
    words = ["quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "--trace", "memory://steps"]
    run(*words, "-o", "a.onnx")
    before = {name: store.cat_file(name) for name in store.find("/steps")}
    assert len(before) > 1
    done = run(*words, "-o", "b.onnx", code=1)
    assert done.stderr.startswith("onnxq: 'memory://steps/1-prepared.onnxtxt' exists; give --force to replace it")
    assert {name: store.cat_file(name) for name in store.find("/steps")} == before
    run(*words, "-o", "b.onnx", "--force")


def test_what_could_not_be_compared_is_there(store: Any) -> None:
    """And is called as it was given, where it is warned of."""
    tiny.save(tiny.model(NOWHERE, {"w": -np.abs(tiny.normal(64, 64))}), Path.cwd())
    np.savez("data.npz", x=np.abs(tiny.normal(8, 1, 64)))
    words = ["quantize", "model.onnx", "-s", "w4a16", "--keep-slow", "--data", "data.npz", "-o", "memory://out/q.onnx"]
    done = run(*words, "--evidence", "memory://out/e.npz", "--trace", "memory://out/steps", code=3)
    assert "onnxq: warning: memory://out/q.onnx was written, but nobody knows how good it is" in done.stderr
    assert {"e.npz", "q.onnx", "steps/1-prepared.onnxtxt"} <= {*names(store, "/out")}


def test_a_folder_that_could_not_be_compared_is_there(store: Any) -> None:
    for name in ("a.onnx", "b.onnx"):
        tiny.save(tiny.model(NOWHERE, {"w": -np.abs(tiny.normal(64, 64))}), Path("two"), name)
    Path("data").mkdir()
    for name in "ab":
        np.savez(f"data/{name}.npz", x=np.abs(tiny.normal(8, 1, 64)))
    words = ["quantize", "two", "-s", "w4a16", "--keep-slow", "--data", "data", "-o", "memory://out"]
    run(*words, code=3)
    assert names(store, "/out") == ["a.onnx", "b.onnx", "onnxq.json"]


@pytest.mark.parametrize(
    ("error", "is_there"),
    [(BrokenPipeError(32, "Broken pipe"), True), (Ended(143), False), (KeyboardInterrupt(), False)],
)
def test_what_nobody_reads_about_is_there(
    error: BaseException, is_there: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But who ends the command does not wait for a store."""
    path = mirror.destination("memory://out/f.json")

    def shows(*_: object, **__: object) -> None:
        path.write_text("{}")
        raise error

    monkeypatch.setattr("onnxq.cli.profile.console", shows)
    done = CliRunner().invoke(main, ["profile", "model.onnx", "-o", "memory://other.json"])
    assert done.exit_code != 0
    assert store.exists("/out/f.json") == is_there


def test_reports_say_where_it_is(store: Any) -> None:
    """And not which path of this machine stands for it."""
    pytest.importorskip("plotly")
    words = ["quantize", "-s", "w4a16", "--no-check", "--json", "--report", "memory://r.json", "--html", "r.html"]
    store.pipe_file("/net/model.onnx", Path("model.onnx").read_bytes())
    for place in ("q.onnx", "two"):
        model = "memory://net/model.onnx" if place == "q.onnx" else "two"
        told = run(*words, model, "-o", f"memory://{place}", "--force", *["--keep-slow"] * (place == "q.onnx"))
        for text in (told.stdout, store.cat_file("/r.json")):
            assert json.loads(text)["output"] == f"memory://{place}"
        page = Path("r.html").read_text()
        assert str(mirror._root) not in page and f"memory://{place}" in page
    told = run("dequantize", "memory://q.onnx", "-o", "memory://f.onnx", "--json")
    assert json.loads(told.stdout)["output"] == "memory://f.onnx"
    assert mirror.told(mirror.destination("https://me:word@shop/q.onnx?sig=key")) == "https://shop/q.onnx"
