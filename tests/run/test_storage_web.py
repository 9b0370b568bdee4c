"""What is asked of a web server before it is written to."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner
from shops import QUIET, TEXT, WEIGHTS

from onnxq.cli import main
from onnxq.files import storage

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
pytestmark = QUIET


def test_a_report_that_nobody_would_take_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer passed for one without such a file, until the model was written."""
    monkeypatch.setattr(storage, "PAUSE", 0.001)
    model, out = tiny.save(tiny.model(TEXT, WEIGHTS), tmp_path), tmp_path / "out.onnx"
    for option in ("--report", "--html"):
        words = ["quantize", str(model), "-s", "w8a16", "--no-check", "-o", str(out)]
        done = CliRunner().invoke(main, [*words, option, "http://127.0.0.1:9/made.json"])
        assert done.exit_code == 1 and "cannot be reached, tried 5 times" in done.stderr, done.output
        assert not out.exists()


def test_what_a_web_server_has_is_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            found = [storage.exists(f"http://127.0.0.1:{server.server_port}/{name}") for name in ("there", "none")]
        finally:
            server.shutdown()
    assert found == [True, False]
