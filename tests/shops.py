"""A line to a server on this machine that breaks as networks do: a proxy that fails when it is told to."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny

#: A model that lies in stores.
TEXT = "g (float[n, 96] x) => (float[n, 48] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
WEIGHTS = {"w": tiny.normal(96, 128), "v": tiny.normal(128, 48, seed=1)}
#: What libraries of stores leave open, and warn of.
QUIET = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: What may go wrong with an answer.
ERROR, CUT, SLOW = "error", "cut", "slow"
#: Nothing comes any more, and the line stays open.
SILENT = "silent"


class Line:
    """Passes requests on.

    Attributes:
        faults: what goes wrong with the next answers to readings of objects, in turns; an empty word is none.
        good: requests of any kind that are passed on before none is any more; None: all.
        broken: what becomes of those behind.
        read: bytes of objects that were passed on, by path.
        methods: of all requests, in order, with their paths.
    """

    def __init__(self, port: int) -> None:
        self.port, self.faults = port, list[str]()
        self.read: Counter[str] = Counter()
        self.methods: list[tuple[str, str]] = []
        self.good: int | None = None
        self.broken = ERROR
        self.lock, self.ended = threading.Lock(), threading.Event()

    def next_fault(self) -> str:
        with self.lock:
            return self.faults.pop(0) if self.faults else ""

    def passes(self) -> bool:
        """Whether one more request is passed on."""
        with self.lock:
            if self.good is not None:
                self.good = max(self.good - 1, -1)
            return self.good is None or self.good >= 0


@contextmanager
def line_to(port: int) -> Iterator[tuple[str, Line]]:
    """The address of a line to the server at a port of this machine."""
    line = Line(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            line.methods.append((self.command, self.path))
            if not line.passes():
                if line.broken == ERROR:
                    self.send_error(500)
                elif line.broken == SILENT:
                    line.ended.wait(30)
                self.close_connection = True
                return
            there = http.client.HTTPConnection("127.0.0.1", line.port, timeout=30)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            there.request(self.command, self.path, body, headers)
            found = there.getresponse()
            content = found.read()
            there.close()
            is_reading = self.command == "GET" and self.path.split("?")[0].count("/") > 1
            fault = line.next_fault() if is_reading or self.command == "PUT" else ""
            if fault == SLOW:
                time.sleep(0.3)
            if fault == ERROR:
                self.send_error(500)
                return
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            size = found.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", size or "0")
            self.end_headers()
            if fault == CUT:
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            self.wfile.write(content)
            if is_reading:
                line.read[self.path.split("?")[0]] += len(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", line
    finally:
        line.ended.set()
        server.shutdown()
        server.server_close()


@contextmanager
def shop(folder: Path, fault: str, good: int) -> Iterator[str]:
    """The address of a web server of a folder, of whose answers all but the first few fail."""
    ended, count, lock = threading.Event(), 0, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            nonlocal count
            with lock:
                count += 1
                is_good = count <= good
            if not is_good and fault == ERROR:
                self.send_error(500)
                return
            if not is_good and fault == SILENT:
                ended.wait(30)
                self.close_connection = True
                return
            content = (folder / self.path.lstrip("/")).read_bytes()
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            start, stop = (int(found[1]), int(found[2] or len(content) - 1) + 1) if found else (0, len(content))
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes")
            if found:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            self.end_headers()
            is_cut = not is_good and fault == CUT
            self.close_connection = is_cut
            if self.command == "GET":
                self.wfile.write(content[start : (start + stop) // 2 if is_cut else stop])

        do_GET = do_HEAD = answer  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
