"""`onnxq doctor` on models on which onnxruntime crashes: a finding, as of anything else that is wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_doctor import CONV, RIGHT
from tiny import model, save

from onnxq.doctor import patient
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Severity
from onnxq.runtime.process.trial import signal_that_ends
from onnxq.runtime.session import Session
from onnxq.runtime.supervisor import crash_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is tried in a process of its own here")


class CrashesOpening(Session):
    """With the optimizer on."""

    def __init__(self, *arguments: Any, optimize: bool = True, **options: Any) -> None:
        if optimize:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().__init__(*arguments, optimize=optimize, **options)


class CrashesRunning(Session):
    def run(self, *arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGFPE)


@pytest.mark.parametrize(
    ("crashing", "has_data", "severity", "words"),
    [
        (CrashesOpening, False, Severity.ERROR, "(SIGSEGV) when it opens the model; without its optimizer it does not"),
        (CrashesRunning, True, Severity.ERROR, "(SIGFPE) when it runs the model on a sample of the data"),
        (CrashesRunning, False, Severity.WARNING, "(SIGFPE) when it runs the model on inputs that were made up"),
    ],
)
def test_a_crash_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crashing: type[Session],
    has_data: bool,
    severity: Severity,
    words: str,
) -> None:
    path = save(model(CONV, RIGHT | {"sb": RIGHT["sb"] * np.float32(0.1)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 1, 4, 8, 8), np.float32))
    monkeypatch.setattr(patient, "Session", crashing)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # those of the tests' runner do nothing meanwhile
    sampling = patient.Sampling(tmp_path / "data.npz") if has_data else None
    diagnosis = examine(path, sampling=sampling)
    found = {finding.rule: finding for finding in diagnosis.findings}
    assert set(found) == {"does-not-open", "bias-scale"}  # what is wrong in the file is found all the same
    assert found["does-not-open"].severity is severity and words in found["does-not-open"].message
    assert not diagnosis.kernels


def test_a_trial_tells_what_ended_it_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    changed: list[int] = []
    assert signal_that_ends(lambda: changed.append(1)) == "" and not changed
    assert signal_that_ends(lambda: 1 // 0) == "" and signal_that_ends(lambda: sys.exit(3)) == ""
    assert signal_that_ends(os.abort) == "SIGABRT"
    assert signal_that_ends(lambda: os.kill(os.getpid(), signal.SIGKILL)) == ""  # no crash: somebody ended it


def test_a_crash_of_another_command_names_the_doctor() -> None:
    said = crash_of(-signal.SIGSEGV, "onnxruntime opened or ran 'a.onnx'")
    assert "while onnxruntime opened or ran 'a.onnx': a damaged model, or a bug; 'onnxq doctor MODEL' tells" in said


def test_who_interrupts_just_when_the_trial_is_over_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is gone already, and cannot be ended again."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    waitpid = os.waitpid

    def interrupted(process: int, options: int) -> None:
        waitpid(process, options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "waitpid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        signal_that_ends(lambda: None)


def test_a_trial_that_is_interrupted_does_not_unwind_what_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    read, write = os.pipe()
    fork = os.fork

    def forked() -> int:
        if child := fork():
            return child
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, before anything of the trial began
        return child

    monkeypatch.setattr(os, "fork", forked)
    try:
        assert signal_that_ends(lambda: None) == ""
    finally:
        os.write(write, f"{os.getpid()} ".encode())
    assert os.read(read, 99) == f"{os.getpid()} ".encode()


def test_a_program_with_threads_of_its_own_is_not_forked() -> None:
    program = (
        "import threading, time; from onnxq.runtime.process.trial import signal_that_ends;"
        "threading.Thread(target=time.sleep, args=[30], daemon=True).start();"
        "import os; print(repr(signal_that_ends(os.abort)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "''\n"


def test_sessions_that_nobody_holds_are_left_alone() -> None:
    """Their threads are not in the process that was forked off: to end one there crashes, or waits without end."""
    program = (
        "import gc, onnx, onnxruntime as ort; from onnxq.runtime.process.trial import signal_that_ends;"
        "gc.disable();"
        "text = '<ir_version: 9, opset_import: [\"\" : 17]> g (float[8] x) => (float[8] y) { y = Neg(x) }';"
        "options = ort.SessionOptions(); options.intra_op_num_threads = 4;"
        "circle = [ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)];"
        "circle.append(circle);"
        "del circle;"
        "print(repr(signal_that_ends(gc.collect)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "''\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_program_ends_the_trial(number: signal.Signals) -> None:
    program = (
        "import os, time; from onnxq.runtime.process import endings; endings.listen();"
        "from onnxq.runtime.process.trial import signal_that_ends;"
        "signal_that_ends(lambda: (os.write(9, f'{os.getpid()}\\n'.encode()), time.sleep(60)))"
    )
    read, write = os.pipe()
    command = f'exec "$0" -c "$1" 9>&{write}'
    with subprocess.Popen(["bash", "-c", command, sys.executable, program], pass_fds=[write]) as parent:
        os.close(write)
        with os.fdopen(read) as lines:
            child = Path(f"/proc/{int(lines.readline())}")
            parent.send_signal(number)
            parent.wait(timeout=30)
            for _ in range(200):
                with contextlib.suppress(OSError):
                    if child.joinpath("stat").read_text().split()[2] == "Z":  # nobody has asked for its end yet
                        break
                if not child.exists():
                    break
                time.sleep(0.05)
            else:
                raise AssertionError("it still runs")
