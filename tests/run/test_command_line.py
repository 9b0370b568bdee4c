"""The command line itself: help in groups and quick, examples that parse, completion, versions, words explained."""

from __future__ import annotations

import ast
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import tiny
from click.shell_completion import get_completion_class
from click.testing import CliRunner

import onnxq
from onnxq.cli import main
from onnxq.cli._commands import GROUPS, SECTIONS
from onnxq.cli._examples import EXAMPLES
from onnxq.cli._terms import FIGURES, TERMS
from onnxq.errors import Exit
from onnxq.plan import Choice, Method
from onnxq.report.reasons import ADVICE, NOTHING, advice_for

ROOT = Path(__file__).parents[2]
#: Seconds of processor time in which help is there.
QUICK = 0.3


def run(*words: str, **environment: str) -> str:
    found = CliRunner(env=environment).invoke(main, words)
    assert found.exit_code == 0, found.output
    return found.output


def test_every_command_is_in_a_group_and_has_a_line() -> None:
    grouped = [word for words in GROUPS.values() for word in words]
    assert set(main.commands) <= set(grouped) and len(grouped) == len(set(grouped))
    text = run("--help")
    assert "Others" not in text
    for word in main.commands:
        assert re.search(rf"^  {word}  +\S.*\.?", text, re.MULTILINE), word
        assert main.commands[word].short_help and main.commands[word].name == word


def test_help_imports_nothing_slow() -> None:
    """And so is quick: of three times the least, for what else the machine does."""
    script = (
        "import sys; sys.argv = ['onnxq', '--help']; from onnxq.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    )
    script += "print([m for m in ('numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'plotly') if m in sys.modules])"
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        assert done.stdout.endswith("\n[]\n"), done.stdout[-200:]
    assert min(seconds) < QUICK


def test_commands_read_sympy_only_where_dimensions_are_computed() -> None:
    """onnx_ir imports it for that: reading it would take as long as all else that a command needs to begin."""
    script = (
        "import sys; sys.argv = ['onnxq', 'inspect', 'models/text_transformer.onnx']\n"
        "from onnxq.__main__ import work\n"
        "try: work()\nexcept SystemExit as end: assert not end.code\n"
        "before = 'sympy.core' in sys.modules\n"
        "import onnx_ir, sympy\n"
        "print(before, onnx_ir.SymbolicDim('n') + 1, sympy.Integer(2) + 3)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1:] == ["False n + 1 5"], done.stdout + done.stderr


@pytest.mark.parametrize("chosen", [None, "0"])
def test_nobody_is_told_of_models(chosen: str | None, tmp_path: Path) -> None:
    """onnxruntime from 1.29 on tells its maker, unless this is set before it is read; what the user set stays."""
    script = (
        "import onnxq, os, sys\n"
        "from onnxq.runtime.ort import installed\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "installed.require()\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path)} | ({} if chosen is None else {"ORT_DISABLE_TELEMETRY": chosen})
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    assert done.stdout.strip() == (chosen or "1")
    assert chosen or not list(tmp_path.iterdir()), "what onnxruntime keeps of a device that tells"


@pytest.mark.parametrize("word", sorted(main.commands))
def test_every_command_has_examples_that_parse(word: str) -> None:
    command = main.commands[word]
    lines = re.findall(r"onnxq [a-z].*", f"{command.help}\n{command.epilog or ''}")
    examples = [part for line in lines if (parts := line.split("&&")) for part in parts if f"onnxq {word} " in part]
    assert examples, word
    for example in examples:
        words = shlex.split(re.sub(r"[)\"|].*|  .*|> .*", "", example.strip()))[2:]
        command.make_context(word, words)


def test_options_stand_in_sections() -> None:
    text = run("quantize", "--help")
    assert "\nOthers:" in text and all(f"\n{title}:" in text for title in SECTIONS)
    listed = [name for names in SECTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    for param in main.commands["quantize"].params:
        if isinstance(param, click.Option):
            assert len(re.findall(rf"^  .*{re.escape(param.opts[0])}\b(?!-)", text, re.MULTILINE)) >= 1, param.name
    assert "Options:" in run("inspect", "--help")


def test_plan_says_which_options_quantize_alone_has() -> None:
    named = set(re.findall(r"--[a-z-]+", main.commands["plan"].help or ""))
    quantizes, plans = ({o for p in main.commands[word].params for o in p.opts} for word in ("quantize", "plan"))
    assert named and "--effort" in named and named <= quantizes - plans


@pytest.mark.parametrize(("shell", "words"), [("bash", "1"), ("zsh", "1"), ("fish", "qua")])
def test_shells_complete(shell: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_ONNXQ_COMPLETE" in run("completion", shell)
    monkeypatch.setenv("COMP_WORDS", "onnxq qua")
    monkeypatch.setenv("COMP_CWORD", words)
    found = get_completion_class(shell)
    assert found is not None
    lines = found(main, {}, "onnxq", "_ONNXQ_COMPLETE").complete()
    assert "quantize" in lines and "dequantize" not in lines


def test_versions() -> None:
    lines = run("--version").splitlines()
    assert lines[0] == f"onnxq, version {onnxq.__version__}"
    told = {line.split()[0]: line for line in lines[1:]}
    assert set(told) == {"library", "isa", "machine", "runtime", "python"} and "onnxruntime 1." in told["runtime"]


def test_no_color() -> None:
    for given, wanted in (({"NO_COLOR": "1"}, False), ({}, None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("NO_COLOR", raising=False)
            for key, value in given.items():
                patch.setenv(key, value)
            assert main.make_context("onnxq", ["inspect", "x"]).color is wanted


def test_terms_are_those_of_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = {}
    for title in ("Nouns", "Glossary"):
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("|")][2:]
        rows |= {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in lines)}
    assert rows == TERMS


def test_words_are_explained() -> None:
    """In whatever spelling, and all at once where there is none."""
    every = run("explain")
    for word in (*TERMS, *FIGURES, "w8a8-dynamic", "nf4", "gptq", "moving-average", "ort-cpu"):
        assert word in every
        assert run("explain", *word.upper().replace("_", " ").split(", ")[0].split())
    assert "a check could not run" in run("explain", "exit", "3")
    assert "NormalFloat" in run("explain", "NF4") and run("explain", "NF4").count("nf4") >= 1
    assert "--keep-slow" in run("explain", "float is faster here")
    assert "large is handed on to the weights" in run("explain", "smoothquant")
    assert "kept out of calibration, so" in run("explain", "held-back")
    found = CliRunner().invoke(main, ["explain", "sqnrr"])
    assert found.exit_code == 1 and "perhaps SQNR" in found.output


def test_examples_with_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On what their files are called: labels lie in arrays, pictures are preprocessed."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    tiny.save(
        tiny.model("g (float[N, 64] x) => (float[N, 4] scores) { scores = MatMul (x, w) }", {"w": tiny.normal(64, 4)}),
        tmp_path,
    )
    np.savez("samples.npz", x=tiny.normal(64, 64))
    np.savez("labelled.npz", x=tiny.normal(64, 64), y=rng.integers(0, 4, 64))
    lines = [line for line in EXAMPLES["quantize"] if "--data" in line]
    for number, line in enumerate(line for line in lines if "photos/" not in line):
        run(*shlex.split(line)[1:], "-o", f"{number}.onnx", "--max-drop" if "--metric" in line else "--min-sqnr", "1")
    assert any("--metric" in line for line in lines)
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos").mkdir()
    for number in range(8):
        image.fromarray(rng.integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(f"photos/{number}.png")
    text = "g (float[N, 3, 224, 224] x) => (float[N, 8, 14, 14] y) { y = Conv <strides = [16, 16]> (x, w) }"
    tiny.save(tiny.model(text, {"w": tiny.normal(8, 3, 16, 16)}), tmp_path)
    (line,) = (line for line in lines if "photos/" in line)
    run(*shlex.split(line)[1:], "-o", "photos.onnx")


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("how", [{"block": 32}, {"granularity": "tensor"}, {"granularity": "channel"}, {}])
def test_what_becomes_of_a_node_is_explained(method: Method, how: dict) -> None:
    choice = Choice("a", "Conv", method, "int8", algorithm="gptq", rank=16, **how)
    said = run("explain", *choice.label.split())
    for part in choice.label.replace("+", " ").split():
        assert f"  {part}: " in said or choice.label == part


def test_no_explanation_is_long() -> None:
    """Of terms, 25 words; of figures, what a few lines hold."""
    assert max(len(text.split()) for text in FIGURES.values()) <= 40


def test_every_exit_code_is_explained() -> None:
    for code in Exit:
        assert code.name.lower() in run("explain", f"exit {int(code)}")


def test_every_reason_of_the_sources_has_advice() -> None:
    """What stands in the sources as a reason of a choice finds words of its own."""
    found = set()
    for path in [*(ROOT / "onnxq/planning").rglob("*.py"), *(ROOT / "onnxq/targets").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = (
                isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "in_float"
            )
            if is_call and len(node.args) > 1 and isinstance(node.args[1], (ast.Constant, ast.JoinedStr)):
                found.add(ast.unparse(node.args[1]).strip("f'\""))
    assert len(found) > 10
    assert [reason for reason in sorted(found) if advice_for(reason) == NOTHING and "{reason}" not in reason] == []
    assert len({pattern for pattern, _ in ADVICE}) == len(ADVICE)
