"""Models, data and outputs of stores are as those of this machine, over a line that breaks too."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from shops import CUT, ERROR, QUIET, SILENT, SLOW, TEXT, WEIGHTS, Line, line_to, shop

import onnxq
from onnxq.calibration.find_ranges import Effort
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadOutput
from onnxq.files import mirror, storage
from onnxq.model.load import load_model
from onnxq.output import packed_elsewhere, write

fsspec = pytest.importorskip("fsspec")
pytestmark = QUIET
W4 = onnxq.Recipe("w4a16", keep_slow=True)
W8 = onnxq.Recipe("w8a8", keep_slow=True, calibration="percentile")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with its data beside it, and samples; here, and in `memory://`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PAUSE", 0.01)
    monkeypatch.setattr(packed_elsewhere, "LEAST_BYTES", 1)
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 100)
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "here"
    made.mkdir()
    onnx.save(
        tiny.model(TEXT, WEIGHTS), made / "model.onnx", save_as_external_data=True, size_threshold=0, location="d"
    )
    np.savez(made / "data.npz", x=np.random.default_rng(0).standard_normal((24, 1, 96)).astype(np.float32))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for file in made.iterdir():
        memory.pipe_file(f"/shop/{file.name}", file.read_bytes())
    return made


def made_here(folder: Path, recipe: onnxq.Recipe, data: str | None = None, **options: Any) -> dict[str, bytes]:
    out = folder.parent / "out"
    out.mkdir()
    given = None if data is None else folder / data
    onnxq.quantize(folder / "model.onnx", out / "q.onnx", recipe, data=given, check=False, **options)
    return {file.name: file.read_bytes() for file in out.iterdir()}


@pytest.mark.parametrize(("shard_size", "files"), [(None, 2), ("layer", 3)])
def test_a_model_of_a_store_becomes_what_it_becomes_here(shard_size: str | None, files: int, folder: Path) -> None:
    written: list[str] = []
    wanted = made_here(folder, W8, "data.npz", shard_size=shard_size)
    before = storage.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "write", lambda *a, **k: (written.append(a[1]), before(*a, **k))[1])
        onnxq.quantize(
            "memory://shop/model.onnx",
            "memory://out/q.onnx",
            W8,
            data="memory://shop/data.npz",
            check=False,
            shard_size=shard_size,
        )
    memory = fsspec.filesystem("memory")
    assert {name.rsplit("/", 1)[1]: memory.cat_file(name) for name in memory.find("/out")} == wanted
    assert len(written) == files
    assert written[-1] == "memory://out/q.onnx"  # the model last, when its data are there


def test_the_file_of_a_store_is_checked(folder: Path, quick: None) -> None:
    result = onnxq.quantize("memory://shop/model.onnx", "memory://out/q.onnx", W4)
    assert result.check is not None and result.check.sqnr > 15


def test_weights_are_fetched_when_they_are_read(folder: Path) -> None:
    model = load_model(mirror.local("memory://shop/model.onnx"))
    data = next(path for path in mirror._files if path.name == "d")
    assert not mirror._files[data].ranges
    for name, array in WEIGHTS.items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), array)
        fetched = sum(stop - start for start, stop in mirror._files[data].ranges)
        assert fetched == (array.nbytes if name == "w" else sum(each.nbytes for each in WEIGHTS.values()))


def test_data_of_a_stranger_stay_in_the_folder(folder: Path) -> None:
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    for place in ("../../secret", "/etc/passwd"):
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = place
        fsspec.filesystem("memory").pipe_file("/shop/stranger.onnx", proto.SerializeToString())
        with pytest.raises(BadModel, match="outside the model's folder"):
            onnxq.quantize("memory://shop/stranger.onnx", "q.onnx", W4)


def test_links_beside_a_model_lead_nowhere_by_an_address_either(folder: Path) -> None:
    """As by a path: what came with somebody's archive would read any file of this machine."""
    (folder.parent / "secret").write_bytes((folder / "d").read_bytes())
    (folder / "link").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    for place in ("link", "up/secret"):
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = place
        (folder / "stranger.onnx").write_bytes(proto.SerializeToString())
        for address in (folder / "stranger.onnx", f"file://{folder}/stranger.onnx"):
            with pytest.raises(BadModel, match="outside the model's folder"):
                onnxq.quantize(address, "q.onnx", W4, check=False)


def test_an_address_of_this_machine_is_a_path(folder: Path) -> None:
    """What holds for paths holds there: what is read is not written, pipes are no files, folders are made."""
    words = ["quantize", "-s", "w8a16", "--no-check", "-f"]
    path, address = str(folder / "model.onnx"), f"file://{folder.parent}/./here/model.onnx"
    before = (folder / "model.onnx").read_bytes()
    for model, output in ((path, address), (address, path), (address, f"FILE://{path}")):
        done = CliRunner().invoke(main, [*words, model, "-o", output])
        assert done.exit_code == 1 and "is read, so it cannot be the output" in done.stderr
    assert (folder / "model.onnx").read_bytes() == before
    os.mkfifo(folder / "pipe.onnx")
    for place in (["pipe.onnx", "-o", "q.onnx"], ["model.onnx", "-o", f"file://{folder}/pipe.onnx"]):
        done = CliRunner().invoke(main, [*words, f"file://{folder}/{place[0]}", *place[1:]])
        assert done.exit_code == 1 and "pipe.onnx' is not a file" in done.stderr
    done = CliRunner().invoke(main, ["export", path, "--no-check", "-o", f"file://{folder}/made.bundle"])
    assert done.exit_code == 0 and (folder / "made.bundle" / "model.onnx").exists(), done.stderr


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("output", ["memory://shop/model.onnx", "MEMORY:///shop/model.onnx"])
def test_what_is_read_in_a_store_is_not_written(output: str, is_first: bool, folder: Path) -> None:
    before = fsspec.filesystem("memory").cat_file("/shop/model.onnx")
    words, model = ["-o", output], ["memory://shop/model.onnx"]
    both = [*words, *model] if is_first else [*model, *words]
    done = CliRunner().invoke(main, ["quantize", *both, "-s", "w8a16", "--no-check", "-f"])
    assert done.exit_code == 1 and "is read, so it cannot be the output" in done.stderr, done.output
    assert fsspec.filesystem("memory").cat_file("/shop/model.onnx") == before


def test_a_store_by_any_spelling_is_one_place() -> None:
    pytest.importorskip("s3fs")
    assert len({mirror._place(f"{kind}://shop/m.onnx") for kind in ("s3", "S3")}) == 1


@pytest.mark.parametrize(
    ("model", "data", "error", "sentence"),
    [
        ("memory://shop/none.onnx", None, BadModel, "'memory://shop/none.onnx': no such file"),
        ("memory://shop/model.onnx", "memory://shop/none.npz", BadData, "'memory://shop/none.npz': no such file"),
        ("memory://shop/model.onnx::memory://x", None, BadModel, "is not an address that onnxq reads"),
        ("http://127.0.0.1:9/model.onnx", None, BadModel, "cannot be reached, tried 5 times"),
    ],
)
def test_what_is_not_there(folder: Path, model: str, data: str | None, error: type, sentence: str) -> None:
    if model.startswith("http"):
        pytest.importorskip("aiohttp")  # which fsspec asks for only then
    with pytest.raises(error) as found:
        onnxq.quantize(model, "q.onnx", "w8a8" if data else "w4a16", data=data)
    assert sentence in str(found.value)


def test_a_server_that_has_no_such_file_is_asked_once(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(BadModel, match=r"none\.onnx': no such file"):
                onnxq.quantize(f"http://127.0.0.1:{server.server_port}/none.onnx", "q.onnx", "w4a16")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("good", [0, 6], ids=["at once", "on the way"])
@pytest.mark.parametrize("fault", [ERROR, CUT, SILENT])
def test_a_server_that_breaks_is_one_sentence_and_nothing_is_lost(
    folder: Path, fault: str, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line: what was there before is there, and nothing else is."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(storage, "STALL", 0.3)
    monkeypatch.setattr(storage, "ATTEMPTS", 3)
    monkeypatch.setenv("ONNXQ_CACHE_SIZE", "0")
    out = folder.parent / "out"
    out.mkdir()
    (out / "q.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (out / "d").write_bytes((folder / "d").read_bytes())
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with shop(folder, fault, good) as address:
        words = ["quantize", f"{address}/model.onnx", "-s", "w8a8", "--data", f"{address}/data.npz"]
        done = CliRunner().invoke(main, [*words, "--no-check", "-f", "-o", str(out / "q.onnx")])
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("onnxq: 'http://127.0.0.1:") and done.stderr.count("\n") == 1, done.stderr
    assert "tried 3 times" in done.stderr and "Traceback" not in done.stderr
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_settings_of_the_user_for_a_web_server_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setitem(fsspec.config.conf, "https", {"client_kwargs": {"headers": {"Authorization": "a"}}})
    made = storage._fs("https://host/a.onnx").client_kwargs
    assert made["headers"] == {"Authorization": "a"} and made["timeout"].sock_read == storage.STALL


def test_a_store_is_given_up_as_often_as_it_says(bucket: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries below have tries of their own, which multiply: 250 requests, or an hour."""
    mine = {**fsspec.config.conf["s3"], "skip_instance_cache": True, "config_kwargs": {"read_timeout": 7}}
    monkeypatch.setitem(fsspec.config.conf, "s3", mine)
    bucket.good, bucket.broken = 0, CUT
    try:
        with pytest.raises(BadModel, match="tried 5 times"):
            storage.known("s3://shop/model.onnx")
    finally:
        bucket.good = None
    most = storage.ATTEMPTS * storage.S3_TRIES * 2  # of the file, and of a folder of that name
    assert storage.ATTEMPTS <= len(bucket.methods) <= most
    assert storage._fs("s3://shop").config_kwargs["read_timeout"] == 7


def test_the_command_line_takes_addresses(folder: Path) -> None:
    words = ["memory://shop/model.onnx", "-s", "w4a16", "--keep-slow", "--no-check", "-o", "memory://out/q.onnx"]
    done = CliRunner().invoke(main, ["quantize", *words])
    assert done.exit_code in (0, 3), done.output
    assert done.stdout.startswith("memory://out/q.onnx: w4a16 for ort-cpu")
    again = CliRunner().invoke(main, ["quantize", *words])
    assert again.exit_code == 1
    assert again.stderr.startswith("onnxq: 'memory://out/q.onnx' exists; give --force to replace it")
    words = [
        "memory://shop/model.onnx",
        "--data",
        "memory://shop/data.npz",
        "-s",
        "w8a8",
        "-o",
        "memory://out/m.ranges",
    ]
    done = CliRunner().invoke(main, ["calibrate", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(fsspec.filesystem("memory").cat_file("/out/m.ranges"))["values"]


def test_a_write_that_fails_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", full)
    with pytest.raises(BadOutput, match=r"'memory://out/\S+' cannot be reached, tried 5 times: OSError.*No space left"):
        onnxq.quantize("memory://shop/model.onnx", "memory://out/q.onnx", W4, check=False)


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Line]]:
    """The address of an S3 server behind a line that may break."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with line_to(server.get_host_and_port()[1]) as found:
            yield found
    finally:
        server.stop()


@pytest.fixture
def bucket(folder: Path, s3: tuple[str, Line], monkeypatch: pytest.MonkeyPatch) -> Line:
    """The folder in bucket `shop`, which everybody may read."""
    address, line = s3
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": address})
    fs = fsspec.filesystem("s3")
    with contextlib.suppress(FileExistsError):
        fs.mkdir("shop", acl="public-read-write")
    for file in folder.iterdir():
        fs.pipe_file(f"shop/{file.name}", file.read_bytes())
    fs.invalidate_cache()
    line.faults.clear()
    line.read.clear()
    line.methods.clear()
    return line


@pytest.mark.parametrize(
    "faults", [[], [ERROR, CUT, SLOW, ERROR, ERROR, CUT, CUT, "", ERROR, SLOW]], ids=["", "breaks"]
)
def test_s3_over_a_line_that_breaks(folder: Path, bucket: Line, faults: list[str]) -> None:
    wanted = made_here(folder, W8, "data.npz")
    bucket.faults += faults
    onnxq.quantize("s3://shop/model.onnx", "s3://shop/o/q.onnx", W8, data="s3://shop/data.npz", check=False, force=True)
    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    assert {name.rsplit("/", 1)[1]: fs.cat_file(name) for name in fs.find("shop/o")} == wanted
    assert not bucket.faults
    puts = [path for method, path in bucket.methods if method == "PUT" and path.startswith("/shop/o/")]
    assert puts[-1].startswith("/shop/o/q.onnx") and ".data" in puts[0]


def test_http_is_read_by_ranges(folder: Path, bucket: Line, s3: tuple[str, Line]) -> None:
    wanted = made_here(folder, W4)
    onnxq.quantize(f"{s3[0]}/shop/model.onnx", folder.parent / "h.onnx", W4, check=False)
    assert (folder.parent / "h.onnx").read_bytes() != b""
    assert len(wanted) == len([*folder.parent.glob("h.onnx*")])
    model = load_model(mirror.local(f"{s3[0]}/shop/model.onnx"))
    bucket.read.clear()
    assert model.graph.initializers["w"].const_value is not None
    assert not bucket.read["/shop/d"]


def test_workers_read_parts_of_files_of_s3(folder: Path, bucket: Line) -> None:
    distributed = pytest.importorskip("distributed")
    wanted = made_here(folder, W8, "data.npz")
    options = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, silence_logs="CRITICAL", **options) as found:
        effort = Effort(cluster=found.scheduler_address)
        out = folder.parent / "c"
        out.mkdir()
        for recipe in (W8, W4):
            source = "s3://shop/data.npz" if recipe is W8 else None
            onnxq.quantize(
                "s3://shop/model.onnx", out / "q.onnx", recipe, data=source, check=False, effort=effort, force=True
            )
            if recipe is W8:
                assert {file.name: file.read_bytes() for file in out.iterdir()} == wanted


def test_credentials_that_are_missing_are_told(
    folder: Path, bucket: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setitem(fsspec.config.conf, "s3", {**fsspec.config.conf["s3"], "skip_instance_cache": True})
    with pytest.raises(BadModel, match=r"no credentials for 's3://shop/model.onnx'"):
        onnxq.quantize("s3://shop/model.onnx", "q.onnx", W4)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://me:pass@host:1/a/m.onnx?sig=secret&x=1", "https://host:1/a/m.onnx"),
        ("--data=s3://bucket/d?key=secret", "--data=s3://bucket/d"),
        ("--data=here.npz?x", "--data=here.npz?x"),
        ("re:a=b?", "re:a=b?"),
        ("s3://bucket/m.onnx", "s3://bucket/m.onnx"),
    ],
)
def test_what_gives_access_is_not_told_to_readers_of_a_page(word: str, shown: str) -> None:
    assert storage.without_secrets(word) == shown


def test_data_that_cannot_be_asked_for_are_not_those_of_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails between a model and its data: what was fetched of another call is not taken for them."""
    load_model(mirror.local("memory://shop/model.onnx"))
    known = storage.known

    def failing(url: str, error: type[Exception] = BadModel) -> storage.Known:
        if url.endswith("/d"):
            raise error(f"'{url}' cannot be reached, tried 5 times: OSError: 500")
        return known(url, error)

    monkeypatch.setattr(storage, "known", failing)
    with pytest.raises(BadModel, match="/d' cannot be reached"):
        mirror.local("memory://shop/model.onnx")
    monkeypatch.setattr(storage, "known", known)
    fsspec.filesystem("memory").rm_file("/shop/d")
    path = mirror.local("memory://shop/model.onnx")
    assert not (path.parent / "d").exists()
