"""Whatever goes wrong ends in one sentence and an exit code that says of what kind it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq import cli, job
from onnxq.boundary import as_sentence, bounded, code_of
from onnxq.cli import inspect as inspect_command
from onnxq.errors import BadModel, BadRecipe, Bug, Exit, OnnxqError, OutOfMemory, one_line
from onnxq.model import load, weights

W = {"w": tiny.normal(64, 64)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", W), tmp_path)


def raising(error: BaseException) -> object:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyError("foo"), Exit.BUG, "this is a bug in onnxq: KeyError ('foo')"),
        (TypeError("<lambda>() missing 1 argument\nand more"), Exit.BUG, "this is a bug in onnxq"),
        (MemoryError(), Exit.CANNOT, "not enough memory"),
        (RuntimeError("can't start new thread"), Exit.CANNOT, "a library or a thread could not be had"),
        (ImportError("x.so: failed to map segment from shared object"), Exit.CANNOT, "not enough memory"),
        (RecursionError("maximum"), Exit.CANNOT, "nested too deeply"),
        (OSError(errno.ENOSPC, "No space left on device", "f"), Exit.CANNOT, "no space left on the disk"),
        (OSError(errno.EMFILE, "Too many open files", "f"), Exit.CANNOT, "too many files are open"),
        (PermissionError(errno.EACCES, "Permission denied", "secret"), Exit.CANNOT, "'secret': Permission denied"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted"),
        (BadModel("a\nb \x1b[2Jc"), Exit.CANNOT, "onnxq: a b  [2Jc"),
    ],
    ids=["key", "type", "memory", "thread", "library", "recursion", "disk", "files", "permission", "interrupt", "ours"],
)
def test_the_command_line(
    error: BaseException, code: Exit, words: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_command, "load_model", raising(error))
    result = CliRunner().invoke(cli.main, ["inspect", str(model)])
    assert result.exit_code == code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_who_interrupts_while_words_are_read_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.main, "parse_args", raising(KeyboardInterrupt()))
    result = CliRunner().invoke(cli.main, ["inspect", "x.onnx"])
    assert (result.exit_code, result.stderr) == (Exit.INTERRUPTED, "onnxq: interrupted\n")


def test_debug_shows_the_traceback(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_command, "load_model", raising(KeyError("foo")))
    assert "Traceback" not in CliRunner().invoke(cli.main, ["inspect", str(model)]).stderr
    assert "Traceback" in CliRunner().invoke(cli.main, ["--debug", "inspect", str(model)]).stderr


def test_python_gets_exceptions_of_ours_only(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "load_model", raising(KeyError("foo")))
    with pytest.raises(onnxq.OnnxqError, match=r"this is a bug in onnxq: KeyError .* with '.*model.onnx'") as caught:
        onnxq.quantize(model, model.parent / "out.onnx")
    assert isinstance(caught.value, onnxq.Bug)
    assert isinstance(caught.value.__cause__, KeyError)
    monkeypatch.setattr(job, "load_model", raising(MemoryError()))
    with pytest.raises(OutOfMemory):
        onnxq.quantize(model, model.parent / "out.onnx")


def test_a_failure_on_what_onnxruntime_refuses_is_no_bug(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quantized(proto: onnx.ModelProto) -> None:
        onnx.save(proto, model)
        onnxq.quantize(model, model.parent / "out.onnx")

    monkeypatch.setattr(job, "load_model", raising(KeyError("foo")))
    proto = onnx.load(model)
    with pytest.raises(Bug):
        quantized(proto)
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("nosuch", 1))
    with pytest.raises(
        BadModel, match=r"'.*' is not a legal ONNX model: onnxruntime refuses the model: .*nosuch"
    ) as found:
        quantized(proto)
    assert isinstance(found.value.__cause__, KeyError)
    proto.graph.node[0].domain = "of.strangers"  # of whom onnxruntime knows nothing
    proto.opset_import.add(domain="of.strangers", version=1)
    with pytest.raises(Bug):
        quantized(proto)


def test_a_bug_says_at_which_node(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the functions at work know it."""
    (node,) = load.load_model(model).graph
    node.name = "product"
    monkeypatch.setattr(weights, "_ROLES", {("", "MatMul"): raising(KeyError("foo"))})
    with pytest.raises(KeyError) as caught:
        weights.has_weights(node)
    said = str(as_sentence(caught.value))
    assert "in model.weights.weights_of at node 'product' (MatMul)" in said


def test_an_interrupt_that_a_library_makes_an_error_of_is_one() -> None:
    """As Python does where a function in C returns something while an exception is set, and onnx_ir of all."""

    @bounded
    def work() -> None:
        try:
            try:
                raise KeyboardInterrupt
            except BaseException as error:
                raise SystemError("returned a result with an exception set") from error
        except Exception as error:
            raise ValueError("Error calling it") from error

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_code_is_of_the_place_and_the_kind() -> None:
    def caught(error: Exception) -> str:
        with pytest.raises(OnnxqError) as made:
            bounded(raising(error))()  # type: ignore[arg-type]
        assert made.value.__cause__ is not None
        return code_of(made.value.__cause__)

    assert caught(KeyError("a")) == caught(KeyError("b")) != caught(IndexError("a"))
    assert isinstance(as_sentence(KeyError("a")), Bug)


def test_a_warning_that_is_an_error_is_no_bug(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    words = [
        "quantize",
        str(model),
        "-s",
        "w4a16",
        "--keep",
        "nosuch",
        "--no-check",
        "-o",
        str(model.with_name("q.onnx")),
    ]
    done = subprocess.run([sys.executable, "-m", "onnxq", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.CANNOT and done.stderr.startswith("onnxq: ") and "nosuch" in done.stderr, done
    assert "bug" not in done.stderr and len(done.stderr.splitlines()) == 1


class Failing:
    """Progress of somebody else's."""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        raise ZeroDivisionError("mine")

    def advance(self, done: int) -> None:
        pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"progress": Failing()}, r"the progress that was given fails in start\(\) with ZeroDivisionError: mine"),
        ({"learn": lambda *_: 1 // 0}, "given as learn failed with ZeroDivisionError: integer division"),
        ({"learn": lambda *_: "more"}, "given as learn gave 'more' in the place of a Learned"),
        ({"logits": [["y"]]}, r"'logits' is of type list; it takes Sequence\[str\]"),
        ({"lengths": [None]}, r"'lengths' is of type list; it takes Sequence\[int\]"),
        ({"threads": 1 << 31}, "2147483648 threads cannot be had"),
        ({"threads": -1}, "-1 threads cannot be had"),
        ({"trace": "a\0"}, "a name that was given holds a NUL, or half a character"),
        ({"ranges": "\ud800"}, "a name that was given holds a NUL, or half a character"),
    ],
)
def test_odd_values_are_told(options: dict[str, Any], says: str, model: Path) -> None:
    with pytest.raises(BadRecipe, match=says):
        onnxq.quantize(model, model.with_name("q.onnx"), "w8a16", **options)


def test_paths_of_bytes_are_told(model: Path) -> None:
    (entry,) = (each for each in os.scandir(os.fsencode(model.parent)) if each.name == b"model.onnx")
    with pytest.raises(BadRecipe, match="'model' is of type DirEntry"):
        onnxq.quantize(entry)  # type: ignore[arg-type]


def test_usage_is_another_code() -> None:
    assert CliRunner().invoke(cli.main, ["inspect"]).exit_code == Exit.USAGE
    assert CliRunner().invoke(cli.main, ["inspect", "--nonsense"]).exit_code == Exit.USAGE


def test_sentences_are_of_one_line_and_not_endless() -> None:
    assert one_line(" a\r\n\x00b\u2028c\u202ed\x9b31m ") == "a b c d 31m"
    assert len(one_line("n" * 10**6)) < 2000


def supervised(body: str) -> list[str]:
    script = "from onnxq.runtime.supervisor import supervised, doing\nimport os, signal, sys, time\n"
    script += f"def work():\n doing('loading m.onnx')\n {body}\nsupervised(work)\n"
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("os.abort()", 70, "crashed (SIGABRT) while loading m.onnx"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 70, "crashed (SIGSEGV) while loading m.onnx"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed while loading m.onnx, most often because memory ran out"),
        ("os._exit(127)", 137, "a thread could not be had while loading m.onnx, because memory ran out"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, ""),
        ("sys.exit(3)", 3, ""),
        ("print('done')", 0, ""),
    ],
)
def test_a_crash_below_is_told(body: str, code: int, words: str) -> None:
    done = subprocess.run(supervised(body), capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("os._exit(0)", 1, "f:g ended the process, with exit code 0, before the work was done"),
        ("os._exit(3)", 1, "f:g ended the process, with exit code 3, before the work was done"),
        ("os.abort()", 70, "crashed (SIGABRT) while f:g was at work, and perhaps loading m.onnx"),
        ("os.kill(os.getpid(), signal.SIGALRM)", 142, "ended by SIGALRM while f:g was at work"),
        ("calling(''); os.abort()", 70, "crashed (SIGABRT) while loading m.onnx"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_who_was_at_work_is_told(body: str, code: int, words: str) -> None:
    command = supervised(f"calling('f:g'); {body}")
    command[-1] = command[-1].replace("supervised, doing", "supervised, doing, calling")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code and words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    # Not one long sleep: Python does not see a signal that comes just before it begins.
    wait = "[time.sleep(0.01) for _ in range(6000)]"
    body = f"signal.signal({int(number)}, lambda *_: sys.exit(9)); print('ready', flush=True); {wait}"
    with subprocess.Popen(supervised(body), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == 9


def test_who_interrupts_before_anybody_listens_is_heard() -> None:
    command = supervised("pass")
    early = "import onnxq.runtime.supervisor as s; s.die_with = lambda parent: os.kill(os.getpid(), signal.SIGINT)"
    command[-1] = command[-1].replace("supervised(work)", f"{early}; supervised(work)")
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=heard)
    assert (done.returncode, done.stderr) == (130, "onnxq: interrupted\n")


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_does_not_hear_of_its_end_is_ended(number: signal.Signals) -> None:
    """As a model that never ends does not, inside onnxruntime; under nohup SIGHUP is no end."""
    body = f"signal.signal({int(number)}, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    command = supervised(body)
    before = "import onnxq.runtime.supervisor as s; s.PATIENCE = 0.3; signal.signal(1, signal.SIG_IGN)"
    command[-1] = command[-1].replace("supervised(work)", f"{before}; supervised(work)")
    heard = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
        assert process.stderr is not None and "ended while a library" in process.stderr.read()


def test_nothing_goes_on_when_the_command_is_killed() -> None:
    with subprocess.Popen(
        supervised("print(os.getpid(), flush=True); time.sleep(60)"), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait(timeout=30)
        assert process.stdout.read() == b""  # the child has closed its end
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child lives on")


def test_a_function_that_gives_less_later_leaves_no_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def samples() -> object:
        calls.append(1)
        for _ in range(16 if len(calls) < 4 else 2):
            yield {"x": np.ones((1, 64), np.float32)}

    with pytest.raises(OnnxqError, match="it must always give the same"):
        onnxq.quantize(model, model.parent / "out.onnx", "w8a8", data=samples)  # type: ignore[arg-type]
    assert not (model.parent / "out.onnx").exists()
