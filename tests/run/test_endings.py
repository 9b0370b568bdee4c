"""Signals to end are heard once: what is on the way out is not interrupted again, and none is lost in a finalizer."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEGIN = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is off in what a shell starts in the background
from onnxq.runtime.process import endings
endings.listen()
def again(): os.kill(os.getpid(), signal.{name})
class Finalized:
    def __del__(self): again(); time.sleep(0.1)
"""
_TWICE = """
try:
    again()
    time.sleep(20)
except {error}:
    again()
    time.sleep(0.2)
    print("swept")
threading.Timer(0.0, again).start()
"""
_LOST = """
made = Finalized()
try:
    del made
    for _ in range(200): time.sleep(0.1)
except {error}:
    print("swept")
"""


@pytest.mark.parametrize("script", [_TWICE, _LOST], ids=["twice", "in-a-finalizer"])
@pytest.mark.parametrize(("name", "error"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "SystemExit")])
def test_an_end_is_heard_once(script: str, name: str, error: str) -> None:
    text = (_BEGIN + script).replace("{name}", name).replace("{error}", error)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("swept\n", "", 0)


def test_what_else_is_lost_in_a_finalizer_is_printed() -> None:
    text = (
        _BEGIN.replace("{name}", "SIGINT")
        + "def fails(self): raise ValueError('x')\nFinalized.__del__ = fails\nFinalized()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert "ValueError: x" in done.stderr and done.returncode == 0
