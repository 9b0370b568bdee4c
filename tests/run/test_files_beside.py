"""Files of others beside what is written, and several writers: what only looks like ours stays, nothing is mixed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq.cli import main
from onnxq.errors import BadOutput, BadRecipe
from onnxq.files import guard, staging
from onnxq.files.guard import Guard


def saved(folder: Path) -> Path:
    return tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), folder)


def test_what_only_looks_like_progress_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    np.savez("d.npz", x=tiny.normal(8, 1, 64))
    words = ["quantize", "model.onnx", "-s", "w8a8", "--data", "d.npz", "--ranges", "r.ranges", "--no-check", "-f"]
    words += ["-o", "q.onnx"]
    assert CliRunner().invoke(main, words).exit_code == 0
    theirs = {"r.ranges.partial": '{"key": "AKIA", "note": "mine"}', "r.ranges.partial.7of9": '{"key": "x"}'}
    theirs["r.ranges.partial.1of2"] = ""
    for name, text in theirs.items():
        Path(name).write_text(text)
    assert CliRunner().invoke(main, words).exit_code == 0
    assert {name: Path(name).read_text() for name in theirs} == theirs


def test_several_quantizations_at_once(tmp_path: Path) -> None:
    """Each reads what it stages, and forgets nothing of the others."""
    model = saved(tmp_path)

    def made(number: int) -> str:
        scheme = ("w4a16", "w8a16", "nf4", "fp4")[number % 4]
        onnxq.quantize(model, tmp_path / f"{number % 8}.onnx", scheme, force=True, shard_size=1000)
        return scheme

    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(made, range(24))]) == 24


def test_the_log_of_faults_adds_to_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(tmp_path)
    before = model.read_bytes()
    monkeypatch.setenv("ONNXQ_FAULT_LOG", str(model))
    monkeypatch.setenv("ONNXQ_FAULT", "x y z")
    onnxq.quantize(model, tmp_path / "q.onnx", "w4a16", check=False)
    assert model.read_bytes() == before


def test_one_checkpoint_is_not_left_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "g (float[1, 64] x) => (y) { h = MatMul(x, w) y = MatMul(h, v) }"
    tiny.save(tiny.model(text, {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64, seed=1)}), tmp_path)
    onnxq.quantize("model.onnx", "q.onnx", "w4a16", check=False)
    single = ["convert", "q.onnx", "--to", "safetensors", "-o", "m.safetensors", "-f"]
    several = [*single, "--shard-size", "1kB"]
    orders = ((single, several, "m.safetensors"), (several, single, "m.safetensors.index.json"))
    for first, second, other in orders:
        assert CliRunner().invoke(main, first).exit_code == 0
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        done = CliRunner().invoke(main, second)
        assert done.exit_code == 1 and f"'{other}' would stay beside it" in done.stderr, done.stderr
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        for path in tmp_path.glob("m.*"):
            path.unlink()


def test_a_folder_may_be_called_like_staging(tmp_path: Path) -> None:
    folder = tmp_path / f"{staging.PREFIX}work"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"x")
    watching = Guard(force=True)
    guard.remember([folder / "a.png"])
    with pytest.raises(BadOutput, match="is read, so it cannot be the output"):
        watching.writes(folder / "a.png")


@pytest.mark.parametrize("option", ["profile", "preprocessing", "tokenizer"])
def test_a_folder_of_what_a_program_gives_is_not_replaced(option: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    saved(tmp_path / "in")
    out = tmp_path / "out"
    onnxq.quantize_folder(tmp_path / "in", out, "w8a16", check=False)
    (out / "given.json").write_text("{}")
    with pytest.raises(BadOutput, match=r"given.json' is read, and lies in"):
        onnxq.quantize_folder(tmp_path / "in", out, "w8a16", force=True, **{option: str(out / "given.json")})
    assert (out / "given.json").exists()


def test_evidence_is_of_a_single_model(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="'evidence' is for a single model"):
        onnxq.quantize_folder(tmp_path, tmp_path / "out", evidence=tmp_path / "e.npz")


_FUNCTION = """
import numpy as np
def f():
    for i in range(4):
        yield {"x": np.full((1, 64), i, np.float32)}
"""


@pytest.mark.parametrize(
    "words", [["export", "model.onnx"], ["quantize", "in", "-s", "w8a8"]], ids=["bundle", "folder"]
)
@pytest.mark.parametrize("read", ["module", "module of a module", "named", "links"])
def test_a_folder_of_what_is_read_is_not_replaced(
    read: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an option names it, or it shows while it is read."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    saved(tmp_path), saved(Path("in"))
    command = [sys.executable, "-P", "-m", "onnxq", *words, "-o", "out"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(tmp_path / "out")])}
    subprocess.run(
        [*command, "--no-check", *(["-s", "w8a16"] if words[0] == "quantize" else [])],
        check=True,
        capture_output=True,
        env=environment,
        timeout=120,
    )
    Path("out/mine.py").write_text(_FUNCTION)
    Path("outer.py").write_text("from mine import f")
    np.savez("out/d.npz", x=tiny.normal(4, 1, 64))
    Path("links").mkdir()
    Path("links/d.npz").symlink_to("../out/d.npz")
    given = {"module": "mine:f", "module of a module": "outer.py:f", "named": "out/mine.py:f", "links": "links"}[read]
    done = subprocess.run(
        [*command, "--force", "--data", given], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 1 and "is read, and lies in 'out', the output; choose another folder" in done.stderr
    assert Path("out/mine.py").read_text() == _FUNCTION and Path("out/d.npz").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".onnxq")]


@pytest.mark.parametrize("what", ["trace", "shards"])
def test_files_that_nobody_named_are_not_written_through_links(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = {f"w{i}": tiny.normal(64, 64, seed=i) for i in range(3)}
    nodes = "a = MatMul(x, w0) b = MatMul(a, w1) y = MatMul(b, w2)"
    tiny.save(tiny.model(f"g (float[1, 64] x) => (y) {{ {nodes} }}", weights), tmp_path)
    onnxq.quantize("model.onnx", "q.onnx", "w8a16", check=False)
    words = {
        "trace": ["quantize", "model.onnx", "-s", "w8a16", "--no-check", "-o", "o.onnx", "--trace", "made"],
        "shards": ["convert", "q.onnx", "--to", "safetensors", "-o", "made/d.safetensors", "--shard-size", "5k"],
    }[what]
    Path("made").mkdir()
    assert CliRunner().invoke(main, words).exit_code == 0
    made = sorted(path for path in Path("made").iterdir() if path.suffix != ".json")[0]
    made.unlink()
    Path("precious").write_text("mine")
    made.symlink_to("../precious")
    done = CliRunner().invoke(main, [*words, "--force"])
    assert (done.exit_code, "is a link, and nobody named what it leads to" in done.stderr) == (1, True), done.output
    assert made.is_symlink() and Path("precious").read_text() == "mine"


def test_data_that_a_strangers_model_speaks_of_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a name such as ours, but of no model of that name."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    proto, name = onnx.load("model.onnx"), "photos.0123456789abcdef.data"
    onnx.save(proto, "out.onnx", save_as_external_data=True, location=name, size_threshold=0)
    onnxq.quantize("model.onnx", "out.onnx", "w8a16", check=False, force=True)
    assert Path(name).exists()


def test_what_is_mounted_where_a_folder_is_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is another one by a mount, and one in which something is mounted; as links cannot be told."""
    if os.geteuid() or shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("needs the right to mount")
    (home := tmp_path / "a tab\tand a back\\slash").mkdir()
    monkeypatch.chdir(home)
    onnxq.quantize(saved(tmp_path), "q.onnx", "w8a16", check=False)
    words = f"{sys.executable} -P -m onnxq export q.onnx -o out --no-check"
    subprocess.run(words.split(), check=True, capture_output=True, timeout=120)
    for name in ("bound", "theirs", "out/inside"):
        Path(name).mkdir()
    Path("theirs/precious").write_text("mine")
    script = f"""
mount --bind out bound && cp q.onnx bound/mine.onnx && {words.replace("q.onnx", "bound/mine.onnx")} --force
umount bound; mount --bind theirs out/inside && {words} --force
"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert "one contains the other" in done.stderr and "is where something is mounted" in done.stderr, done.stderr
    assert Path("out/mine.onnx").exists() and Path("theirs/precious").read_text() == "mine"
    assert not [path for path in home.iterdir() if path.name.startswith(".onnxq")]
