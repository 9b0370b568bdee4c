"""Stores that lie, break or are slow, and spoiled entries of the cache: kinds of cases for `mutants.py`."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnx
import tiny
from attack import mutate, scenes
from attack.mutants_data import Case
from attack.mutants_options import CONSTANTS, LAYERS, traps

from onnxq.files import cache

#: What may be odd about an answer, besides nothing.
ODD = (
    *("500", "503", "403", "404", "416", "302 itself", "302 file", "cut", "short", "long", "no length", "huge length"),
    *("negative length", "no range", "other range", "other bytes", "garbage", "slow", "empty", "gzip", "two lengths"),
    *("status 999", "huge header", "no answer"),
)
COMMANDS = (
    ["inspect", "URL/model.onnx"],
    ["quantize", "URL/model.onnx", "-s", "w4a16", "-o", "out/q.onnx", "--no-check"],
    ["quantize", "URL/model.onnx", "-s", "w8a8", "--data", "URL/data.npz", "-o", "out/q.onnx", "--no-check"],
    ["plan", "URL/model.onnx", "-s", "w4a16", "--recipe", "URL/recipe.toml"],
    ["check", "URL/model.onnx", "URL/model.onnx"],
    ["import-weights", "URL/model.onnx", "URL/data.npz", "-o", "out/i.onnx"],
    ["verify", "URL/bundle"],
    ["encode", "URL/data.npz", "-w", "int8", "-o", "out/w.npz"],
    ["quantize", "model.onnx", "-s", "w4a16", "--no-check", "-o", "URL/out.onnx"],
)


class _Server:
    """Serves `files` at each address, now and then as somebody would who wants to do harm."""

    def __init__(self, files: dict[str, bytes], oddities: list[tuple[str, int]]) -> None:
        self.files, self.oddities, self.count = files, oddities, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None: ...

        self.server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.count += 1
        odd = next((how for how, every in self.oddities if every and self.count % every == 0), "")
        content = self.files.get(request.path.split("?")[0].lstrip("/"))
        if content is None:
            request.send_error(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "")
        start, stop = (int(found[1]), int(found[2] or len(content) - 1) + 1) if found else (0, len(content))
        if odd == "no answer":
            request.close_connection = True
            return
        if odd in ("500", "503", "403", "404", "416"):
            request.send_error(int(odd))
            return
        if odd == "slow":
            time.sleep(0.2)
        if odd.startswith("302"):
            request.send_response(302)
            request.send_header("Location", request.path if odd == "302 itself" else "file:///etc/passwd")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if odd == "no range":
            found, start, stop = None, 0, len(content)
        part = content[start:stop]
        part = {"short": part[: len(part) // 2], "long": part * 2, "other bytes": bytes(len(part)), "empty": b""}.get(
            odd, part
        )
        if odd == "garbage":
            request.wfile.write(b"\0\xff" * 99)
            request.close_connection = True
            return
        request.send_response(999 if odd == "status 999" else 206 if found else 200)
        if found:
            shown = (0, 1, 2) if odd == "other range" else (start, max(start, stop) - 1, len(content))
            request.send_header("Content-Range", "bytes {}-{}/{}".format(*shown))
        lengths = {"no length": (), "huge length": (1 << 62,), "negative length": (-5,), "two lengths": (1, len(part))}
        for length in lengths.get(odd, (len(part),)):
            request.send_header("Content-Length", str(length))
        request.send_header("Accept-Ranges", "bytes")
        if odd == "gzip":
            request.send_header("Content-Encoding", "gzip")
        if odd == "huge header":
            request.send_header("X-Long", "x" * 200_000)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(part[: len(part) // 2] if odd == "cut" else part)
        request.close_connection = (
            odd in ("cut", "no length", "huge length", "short", "two lengths") or request.close_connection
        )


def store(case: Case, folder: Path) -> list[str]:
    """Files of a web server whose answers are odd now and then, and whose files may be spoiled."""
    made = _model(folder, case)
    oddities = [(r.choice(ODD), r.choice([1, 2, 3, 5, 7])) for r in map(random.Random, case.seeds)]
    server = _Server(made, oddities)
    os.environ["XDG_CACHE_HOME"] = str(folder / "out" / "cache")
    words = COMMANDS[case.command % len(COMMANDS)]
    query = ("", "", "?a=b&c=d", "#x", "?")[case.command // 16 % 5]
    return [word.replace("URL", server.url) + (query if "URL" in word else "") for word in words]


def _model(folder: Path, case: Case) -> dict[str, bytes]:
    """A model with data beside it and what belongs to it, by their paths in the store; some of them spoiled."""
    traps(folder)
    scenes.put(folder, "model", "bundle")
    proto = tiny.model(LAYERS, CONSTANTS)
    (folder / "far").mkdir()
    onnx.save(proto, folder / "far" / "model.onnx", save_as_external_data=True, size_threshold=0, location="d")
    if case.command // 7 % 3 == 0:
        made = onnx.load(folder / "far" / "model.onnx", load_external_data=False)
        for seed in case.seeds:
            r = random.Random(seed)
            if r.random() < 0.5:
                mutate.outside(made, r)
            else:
                for entry in r.choice(list(made.graph.initializer)).external_data:
                    if entry.key == "location":
                        entry.value = r.choice(
                            ["../x", "/etc/passwd", "", "d/../d", "http://x/y", "a\0", "d?x", "%2e%2e/x"]
                        )
        (folder / "far" / "model.onnx").write_bytes(made.SerializeToString())
    found = {name: (folder / "far" / name).read_bytes() for name in ("model.onnx", "d")}
    found["data.npz"] = (folder / "data.npz").read_bytes()
    found["recipe.toml"] = b'scheme = "w4a16"\n'
    for path in (folder / "bundle").iterdir():
        found[f"bundle/{path.name}"] = path.read_bytes()
    for each in folder.glob("far/*"):
        each.unlink()
    (folder / "far").rmdir()
    return found


def cached(case: Case, folder: Path) -> list[str]:
    """Entries of the cache that are others, longer, links or pipes; some of them with the hash that fits them."""
    made = _model(folder, case)
    server = _Server(made, [])
    os.environ["XDG_CACHE_HOME"] = str(folder / "out" / "cache")
    place = cache.folder()
    place.mkdir(parents=True)
    kept = cache.usual()
    kept.put("0" * 40, b"x" * 99)
    put = cache.Cache.get

    def get(self: cache.Cache, name: str) -> bytes | None:
        """Something is there for every name that is asked for."""
        path, r = self.folder / name, random.Random(f"{case.seeds} {name}")
        if not os.path.lexists(path) and r.random() < 0.8:
            _entry(path, r)
        return put(self, name)

    cache.Cache.get = get  # type: ignore[method-assign]
    words = COMMANDS[case.command % len(COMMANDS)]
    return [word.replace("URL", server.url) for word in words]


def _entry(path: Path, r: random.Random) -> None:
    how = r.randrange(6)
    content = r.choice([b"", b"x", b"\0" * 5000, bytes(r.randrange(256) for _ in range(300))])
    if how < 3:
        path.write_bytes(hashlib.blake2b(content, digest_size=20).digest() + content)
    elif how == 3:
        path.write_bytes(content)
    elif how == 4:
        path.symlink_to(r.choice([mutate.elsewhere(path.parent), "/dev/zero", path.name]))
    else:
        os.mkfifo(path)


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"store": store, "cached": cached}
