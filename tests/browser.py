"""A headless Chromium, driven over a pipe: what a page looks like, what it complains of, whether it fits its window."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: Seconds that an answer may take on a machine with other work.
PATIENCE = 60.0


def program() -> str | None:
    """Where the browser is; None: there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser.

    Attributes:
        complaints: what the page wrote to the console as a warning or an error, and exceptions nobody caught.
        requests: addresses that it asked for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._rest, self._number = to_browser, from_browser, b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> Any:
        """What the browser answers to a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._hear(answer)
        raise TimeoutError(method)

    def open(self, path: Path, *, width: int, height: int = 900, theme: str = "light") -> None:
        """Show a file in a window of this width, and wait until its plots are drawn."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while self.value("document.documentElement?.dataset.ready") != "yes":
            note = self.value("document.getElementById('no-plots')?.textContent")
            assert not note and time.monotonic() < until, note or self.complaints
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            some = os.read(self._from, 1 << 16)
            assert some, "the browser ended"
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _hear(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(found["exceptionDetails"].get("exception", found)))
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] in ("error", "warning"):
                self.complaints.append(found["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser of its own, with its files in `folder`, until the end of the block."""
    found = program()
    assert found is not None
    (read_by_it, to_it), (from_it, written_by_it) = _pipe(), _pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    options += ["--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}", "about:blank"]
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
    # It reads commands from file 3 and answers into file 4.
    actions += [(os.POSIX_SPAWN_DUP2, read_by_it, 3), (os.POSIX_SPAWN_DUP2, written_by_it, 4)]
    process = os.posix_spawn(found, [found, *options], os.environ | {"HOME": str(folder)}, file_actions=actions)
    try:
        os.close(read_by_it)
        os.close(written_by_it)
        yield Browser(to_it, from_it)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(to_it)
        os.close(from_it)


def _pipe() -> tuple[int, int]:
    """Files of numbers that the browser has no use of its own for."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
