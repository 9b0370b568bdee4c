"""A store that breaks under any command, at any request: one sentence, and all is what it was, here and there."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner, Result
from shops import CUT, ERROR, QUIET, SILENT, TEXT, WEIGHTS, Line, line_to

from onnxq.cli import main
from onnxq.files import data_files, mirror, storage
from onnxq.output import write

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
pytestmark = QUIET
#: As long as a store may say nothing, here.
QUICK = {"config_kwargs": {"read_timeout": 0.5, "retries": {"total_max_attempts": 1}}}
QUANTIZE = ["quantize", "s3://shop/model.onnx", "-s", "w8a16", "--no-check", "--keep-slow", "-f", "-o"]
#: By what they do. `out` and `s3://shop/out` hold an older result.
COMMANDS = {
    "from a store": [*QUANTIZE, "out/q.onnx"],
    "into a store": ["quantize", "model.onnx", *QUANTIZE[2:], "s3://shop/out/q.onnx"],
    "from data": ["calibrate", "model.onnx", "-s", "w8a8", "--data", "s3://shop/data.npz", "-f", "-o", "out/m.ranges"],
    "ranges into a store": (
        ["calibrate", "model.onnx", "-s", "w8a8", "--data", "data.npz", "-f", "-o", "s3://shop/out/m.ranges"]
    ),
    "weights": (
        ["import-weights", "model.onnx", "s3://shop/weights.npz", "--partial", "--no-check", "-f", "-o", "out/q.onnx"]
    ),
    "a folder of data": [
        "calibrate",
        "model.onnx",
        "-s",
        "w8a8",
        "--data",
        "s3://shop/samples",
        "-f",
        "-o",
        "out/m.ranges",
    ],
    "a bundle": ["verify", "s3://shop/bundle"],
    "a bundle into a store": ["export", "model.onnx", "--no-check", "-f", "-o", "s3://shop/out/bundle"],
    "compared": ["check", "s3://shop/model.onnx", "out/q.onnx"],
    "encoded": ["encode", "s3://shop/data.npz", "-w", "int8", "-f", "-o", "s3://shop/out/w.npz"],
}
#: Those that every run of the tests tries.
ALWAYS = ("into a store", "from data")


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Line]]:
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with line_to(server.get_host_and_port()[1]) as found:
            yield found
    finally:
        server.stop()


def run(words: list[str]) -> Result:
    """As a process of its own: nothing is known of any store."""
    for known in (mirror._files, mirror._outputs, mirror._published):
        known.clear()
    storage._fs("s3://shop").invalidate_cache()
    return CliRunner().invoke(main, words)


@pytest.fixture
def line(s3: tuple[str, Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Folder and bucket with a model, data, samples, a bundle and what earlier commands wrote."""
    address, line = s3
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "ONNXQ_CACHE_SIZE": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(storage, "PAUSE", 0.01)
    monkeypatch.setattr(storage, "ATTEMPTS", 3)
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 100)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": address, "skip_instance_cache": True, **QUICK})
    monkeypatch.chdir(tmp_path)
    onnx.save(
        tiny.model(TEXT, WEIGHTS), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0, location="d"
    )
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((24, 1, 96)).astype(np.float32))
    line.good = None
    fs = fsspec.filesystem("s3")
    with contextlib.suppress(FileExistsError):
        fs.mkdir("shop", acl="public-read-write")
    with contextlib.suppress(FileNotFoundError):
        fs.rm("shop/out", recursive=True)
    halves = np.full((48, 2), 0.01, np.float16)
    np.savez(tmp_path / "weights.npz", **{"v.weight_4bit": np.zeros((48, 64), np.uint8), "v.scales_4bit": halves})
    put(fs, *(tmp_path / name for name in ("model.onnx", "d", "data.npz", "weights.npz")))
    fs.put_file(str(tmp_path / "data.npz"), "shop/samples/a.npz")
    for words in (
        ["quantize", "model.onnx", "-s", "w4a16", "--no-check", "--keep-slow", "-o", "out/q.onnx"],
        ["quantize", "model.onnx", "-s", "w4a16", "--no-check", "--keep-slow", "-o", "s3://shop/out/q.onnx"],
        ["calibrate", "model.onnx", "-s", "w8a8", "--data", "data.npz", "--limit", "5", "-o", "out/m.ranges"],
        ["encode", "data.npz", "-w", "int4", "-o", "s3://shop/out/w.npz"],
        ["export", "out/q.onnx", "--no-check", "-o", "s3://shop/out/bundle"],
    ):
        Path("out").mkdir(exist_ok=True)
        done = run(words)
        assert done.exit_code in (0, 3), done.output
    for path in fs.find("shop/out/bundle"):
        fs.copy(path, path.replace("shop/out", "shop"))
    return line


def put(fs: Any, *files: Path) -> None:
    for file in files:
        fs.put_file(str(file), f"shop/{file.name}")


def contents(line: Line) -> dict[str, bytes]:
    """Of the bucket and of the folder."""
    line.good = None
    fs = fsspec.filesystem("s3")
    there = {f"s3://{path}": fs.cat_file(path) for path in fs.find("shop")}
    return there | {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def require_whole(found: dict[str, bytes], new: dict[str, bytes], folder: Path) -> None:
    """A model that is there is there with the data that it names, of its own."""
    for name, content in found.items():
        if not name.endswith(".onnx") or "/bundle/" in name:
            continue
        (folder / "m.onnx").write_bytes(content)
        for data in data_files.own_data(folder / "m.onnx"):
            beside = f"{name.rpartition('/')[0]}/{data.name}" if "/" in name else data.name
            assert beside in found and (
                beside not in new or len(found[beside]) in (len(new[beside]), len(found[beside]))
            )


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ALWAYS else pytest.mark.sweep) for n in COMMANDS])
def test_a_store_that_breaks_for_good(name: str, line: Line, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = contents(line)
    line.methods.clear()
    done = run(COMMANDS[name])
    assert done.exit_code in (0, 3), done.output
    requests, new = len(line.methods), contents(line)
    assert requests
    changed = {each for each in before.keys() | new.keys() if before.get(each) != new.get(each)}
    for good in sorted({0, requests // 2, requests - 1}):
        for fault in (ERROR, CUT) if good else (ERROR, CUT, SILENT):
            restore(before, changed)
            line.good, line.broken = max(good, 0), fault
            start = time.monotonic()
            done = run(COMMANDS[name])
            where = (name, good, requests, fault, done.exit_code, done.stderr)
            assert time.monotonic() - start < 150, where
            found = contents(line)
            if done.exit_code != 1:  # it asked for less than before
                assert done.exit_code in (0, 3) and good >= requests - 1, where
                continue
            assert done.stderr.startswith("onnxq: 's3://shop/") and done.stderr.count("\n") == 1, where
            assert "tried 3 times" in done.stderr and "Traceback" not in done.stderr, where
            lost = [each for each in before if found.get(each) not in (before[each], new.get(each))]
            mixed = [each for each in found if found[each] not in (before.get(each), new.get(each))]
            assert not lost and not mixed, where
            assert not [each for each in found if not each.startswith("s3://") and found[each] != before.get(each)], (
                where
            )
            require_whole(found, new, tmp_path_factory.mktemp("whole"))


def restore(before: dict[str, bytes], changed: set[str]) -> None:
    fs = fsspec.filesystem("s3")
    for each in changed:
        if each.startswith("s3://"):
            fs.pipe_file(each, before[each]) if each in before else fs.rm_file(each)
        elif each in before:
            Path(each).write_bytes(before[each])
        else:
            Path(each).unlink(missing_ok=True)
    fs.invalidate_cache()
    for left in Path().glob(".onnxq-*"):
        shutil.rmtree(left)
