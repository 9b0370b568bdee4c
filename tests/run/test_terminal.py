"""Names from a stranger's file are shown; a terminal never obeys them, and none of them looks like a line of ours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxq import cli
from onnxq.checking.models import Check
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.cli._console import Bars, console
from onnxq.cli._tables import check_table, size_words
from onnxq.errors import printable

pytestmark = pytest.mark.usefixtures("quick")

#: Clears the screen, turns the writing around, rings, sets the title, and begins a line.
EVIL = "\x1b[2Ja\u202e\x07\x1b]0;t\x07\nonnxq: done"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tiny.model(
        "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul(x, w) y = Relu(h) }", {"w": tiny.normal(64, 64)}
    )
    graph, first, second = made.graph, *made.graph.node
    first.name, first.output[0], second.input[0] = f"n{EVIL}", f"h{EVIL}", f"h{EVIL}"
    graph.input[0].name = first.input[0] = f"x{EVIL}"
    graph.initializer[0].name = first.input[1] = f"w{EVIL}"
    graph.output[0].name = second.output[0] = f"y{EVIL}"
    graph.node.add(op_type=f"O{EVIL}", domain=f"d{EVIL}", input=[graph.input[0].name], output=["unused"])
    made.opset_import.add(domain=f"d{EVIL}", version=1)
    made.producer_name = made.producer_version = EVIL
    (tmp_path / "in").mkdir()
    onnx.save(made, tmp_path / "in" / "m.onnx")
    onnx.save(
        tiny.model("g (float[n, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path / "a.onnx"
    )
    (tmp_path / "in" / f"b{EVIL}".replace("/", "")).write_text("{}")
    (tmp_path / "in" / "config.json").write_text("{}")
    plain = onnx.load(tmp_path / "in" / "m.onnx")
    del plain.graph.node[2]
    onnx.save(plain, tmp_path / "m.onnx")
    x = np.where(np.arange(4)[:, None], np.full(64, np.nan, np.float32), np.float32(1))  # there is something to tell
    np.savez(tmp_path / "data.npz", **{f"x{EVIL}": x})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore::onnxq.errors.UnusedOption")
@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "in/m.onnx"],
        ["inspect", "in"],
        ["plan", "in/m.onnx", "-s", "w8a16", "--nodes"],
        ["check", "m.onnx", "m.onnx"],
        ["analyze", "m.onnx", "-w", "int8"],
        ["benchmark", "m.onnx", "-w", "int8"],
        ["calibrate", "m.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out.ranges"],
        ["quantize", "m.onnx", "-s", "w8a16", "-o", "out.onnx"],
        ["quantize", "in", "-s", "w8a16", "-o", "out", "--no-check"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_prints_what_a_terminal_obeys(words: list[str], folder: Path) -> None:
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code in (0, 3), result.output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", result.output)
    assert not any(line.startswith("onnxq: done") for line in result.output.splitlines())


def test_colours_of_ours_stay() -> None:
    shown = type(console())(force_terminal=True, color_system="standard", markup=False, highlight=False, width=80)
    table = Table()
    table.add_column(Text("head", style="bold red"))
    table.add_row(EVIL)
    with shown.capture() as printed:
        shown.print(table, Text(EVIL), EVIL)
    assert "\x1b[1;31mhead" in printed.get()
    assert "\x1b[2J" not in printed.get() and "\x07" not in printed.get() and "\u202e" not in printed.get()


def on_a_terminal() -> Console:
    return type(console())(force_terminal=True, color_system="standard", markup=False, highlight=False, width=120)


@pytest.mark.parametrize(("sqnr", "colour"), [(20.0, "33"), (float("nan"), "31")], ids=["made-up", "not run"])
def test_what_is_not_proven_is_said_in_colour(sqnr: float, colour: str) -> None:
    check = Check("noise", sqnr, sqnr, sqnr, proves=False)
    shown = on_a_terminal()
    with shown.capture() as printed:
        shown.print(check_table(check))
    assert f"\x1b[1;{colour}mnot proven" in printed.get()


def test_bars_show_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10000, 10))
    shown = on_a_terminal()
    shown.get_time = lambda: float(next(seconds))
    with Bars(shown) as bars:
        bars.start("measuring kernels", 100)
        for _ in range(4):
            bars.advance(10)
        with shown.capture() as printed:
            shown.print(bars._bars.get_renderable())
    assert re.search(r"measuring kernels .*\d:\d\d:\d\d", printed.get())


def test_controls_become_spaces() -> None:
    assert printable(EVIL) == " [2Ja   ]0;t  onnxq: done"
    assert printable(EVIL, lines=True) == " [2Ja   ]0;t \nonnxq: done"


@pytest.mark.parametrize("is_added", [False, True])
def test_a_file_that_becomes_larger_says_why(is_added: bool, tmp_path: Path) -> None:
    """Where what it holds besides its weights is why, and not another weight."""
    text = 'g (float[n, 32] x) => (float[n, 32] y) { y = MatMul (x, "w.weight") }'
    model, weights = tiny.save(tiny.model(text, {"w.weight": tiny.normal(32, 32)}), tmp_path), tmp_path / "w.npz"
    names = ("w.weight", "v.weight")[: 1 + is_added]
    write_arrays(weights, ((n, lambda i=i: tiny.normal(32, 32, seed=i)) for i, n in enumerate(names)), replace=True)
    how = ImportOptions(add={"v": "y"} if is_added else {})
    done = import_weights(model, weights, tmp_path / "out.onnx", options=how, check=False)
    assert done.bytes_after > done.bytes_before
    assert ("outweighs so few weights" in size_words(done)[1]) is not is_added
