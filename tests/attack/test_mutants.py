"""Spoiled models of hypothesis' choosing are planned or refused in a sentence, and the attack is not blind."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path
from random import Random

import odd
import pytest
from attack import cage, mutants, mutants_commands, mutate
from attack.generated import forms, growth, kinds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxq import cli
from onnxq.cli._commands import GROUPS
from onnxq.errors import OnnxqError
from onnxq.model.load import load_model
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.targets import get

#: hypothesis draws the numbers, so that it finds the smallest model that does harm.
SPOILED = st.tuples(st.sampled_from(mutants.BASES), st.integers(1, 3), st.randoms(use_true_random=False))


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(SPOILED)
def test_spoiled_models_are_planned_or_refused(tmp_path_factory: pytest.TempPathFactory, spoiled: tuple) -> None:
    base, count, r = spoiled
    proto = odd.MODELS[base].proto()
    for _ in range(count):
        mutate.spoil_model(proto, r)
    path = tmp_path_factory.mktemp("spoiled") / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with contextlib.suppress(OnnxqError):
        model = load_model(path)
        refusal = prepare(model)
        make_plan(
            model, Recipe("w4a16").resolve(has_data=False), get("ort-cpu"), infer_types(model), opset_note=refusal
        )


@pytest.mark.sweep
def test_no_link_leads_to_a_file_of_the_system(tmp_path: Path) -> None:
    """Mutations write through links, and so may commands that are attacked: as root, anything. Some kinds of cases
    change what is in the process that makes them."""
    script = f"""
import os
from pathlib import Path
from random import Random
from attack import mutants
place = Path({str(tmp_path.resolve())!r})
for number in range(300):
    folder = place / str(number) / "case"
    folder.mkdir(parents=True)
    os.chdir(folder)
    mutants.draw(Random(number), ["bundle", "folder", "named"] if number % 2 else None).build(folder)
    for path in folder.rglob("*"):
        if path.is_symlink() and path.is_file() and not path.resolve().is_relative_to(place):
            print(number, path, path.resolve(), flush=True)
os._exit(0)  # whatever servers were started
"""
    assert _in_cage(script) == ""


def test_the_same_seed_spoils_the_same_way(tmp_path: Path) -> None:
    cases = [mutants.draw(Random(7)) for _ in range(2)]
    assert cases[0] == cases[1]
    made = []
    for name in ("a", "b"):
        proto = odd.MODELS["LSTM"].proto()
        mutate.spoil_model(proto, random.Random(3))
        made.append((name, proto.SerializeToString()))
    assert made[0][1] == made[1][1]
    assert mutate.spoil_bytes(b"abc" * 99, Random(1)) == mutate.spoil_bytes(b"abc" * 99, Random(1))


def test_every_command_is_attacked() -> None:
    """One that is not known here is attacked all the same, by what its options take; but it is to have sound files."""
    drawn = mutants_commands.commands()
    grouped = {word for words in GROUPS.values() for word in words}
    assert {name.split()[0] for name in drawn} == set(cli.main.commands) == grouped  # type: ignore[attr-defined]
    assert set(mutants_commands.SOUND) == set(drawn)
    options = {each.name for command in drawn.values() for each in command.params}
    assert not set(mutants_commands.TEXTS) - options, "words for an option that no command has"
    r = Random(0)
    cases = [case for case in (mutants.draw(r) for _ in range(4000)) if case.kind == "command"]
    assert {list(drawn)[case.command % len(drawn)] for case in cases} == set(drawn)


@pytest.mark.sweep
@pytest.mark.slow
def test_every_command_has_something_to_do() -> None:
    """Options are spoiled around a command that succeeds: else all cases would end at the first mistake.

    Without torch those that train only say what is missing.
    """
    script = """
import importlib.util
from attack import cage, mutants, mutants_commands
names = list(mutants_commands.commands())
cases = [mutants.Mutant("command", "LSTM", number, ()) for number in range(len(names))]
trains = () if importlib.util.find_spec("torch") else ("train", "lora train")
print([(name, found.code, found.said) for name, found in zip(names, cage.run(cases)) if found.code not in (0, 3)
       and not (name in trains and "needs torch" in found.said)])
"""
    assert _in_cage(script) == "[]"


@pytest.mark.parametrize("domain", forms.DOMAINS)
def test_every_operator_is_made(domain: str) -> None:
    """Of what its schema says: legal models are among those that are made, though not many of some operators."""
    made = growth.begun(Random(0))
    of_domain = [form for form in forms.forms() if form.domain == domain]
    for i, form in enumerate(of_domain):
        node = made.add(Random(i), form, f"n{i}")
        assert {each.name for each in node.attribute} <= set(form.attributes)
    assert of_domain and len(made.graph.node) == len(of_domain) + 1


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_models_made_at_random_do_no_harm(kind: str) -> None:
    """And are no nonsense that is refused at the door: something is done with many of them."""
    script = f"""
from random import Random
from attack import cage, mutants
r = Random(1)
cases = [mutants.draw(r, [{kind!r}]) for _ in range(200)]
found = list(cage.run(cases))
harm = [(case, each.cause) for case, each in zip(cases, found) if each.defect]
print(harm, sum(each.code == 0 for each in found) > 40)
"""
    assert _in_cage(script) == "[] True"


@pytest.mark.sweep
@pytest.mark.slow
def test_the_cage_sees_what_goes_wrong(tmp_path: Path) -> None:
    """Cases that do what hostile ones might, so that the attack cannot pass by being blind."""
    script = """
import os, sys, time
from dataclasses import dataclass
from attack import cage
from onnxq import cli
from onnxq.cli import inspect

@dataclass
class Case:
    how: str
    def build(self, folder):
        (folder / "input").write_text("precious")
        inspect.load_model = getattr(self, self.how)
        return ["inspect", "input"]
    def fine(self, path, **_): raise cli.OnnxqError("a sentence")
    def traceback(self, path, **_): {}["foo"]
    def abort(self, path, **_): os.abort()
    def hang(self, path, **_): time.sleep(60)
    def changes(self, path, **_): path.write_text("lost"); raise cli.OnnxqError("a sentence")
    def leaves(self, path, **_): open("left", "w"); raise cli.OnnxqError("a sentence")
    def internal(self, path, **_): raise cli.OnnxqError("<lambda>() missing 1 required positional argument")

words = ["fine", "traceback", "abort", "hang", "changes", "leaves", "internal", "fine"]
print([outcome.defect for outcome in cage.run([Case(word) for word in words], seconds=2)])
"""
    assert _in_cage(script) == str(["", "traceback", "abort", "hang", "files", "files", "sentence", ""])
    assert cage.SECONDS <= 60


def test_whose_fault_a_crash_is() -> None:
    """Of the thread that died, and not of the one that is listed first."""
    said = """words: benchmark q.onnx
Fatal Python error: Segmentation fault

Thread 0x00007f7e14fc2b81 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto

Current thread 0x00007f7e14fc2b80 (most recent call first):
  File "/lib/onnxruntime/capi/onnxruntime_inference_collection.py", line 406 in run
  File "/onnxq/runtime/session.py", line 232 in run
"""
    wanted = [
        ("/lib/onnxruntime/capi/onnxruntime_inference_collection.py", "run"),
        ("/onnxq/runtime/session.py", "run"),
    ]
    assert cage.frames_of(said) == wanted
    assert cage.frames_of(said.replace("Current thread 0x", "Stack ").partition("Stack ")[2]) == wanted


@pytest.mark.sweep
def test_a_trace_may_stay_where_a_command_failed() -> None:
    script = """
from dataclasses import dataclass
from attack import cage
import tiny

@dataclass
class Case:
    folder: str
    def build(self, folder):
        tiny.save(tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}),
                  folder)
        words = ["quantize", "model.onnx", "-s", "w4a16", "-o", "out.onnx", "--no-check", "--logits", "h"]
        return [*words, "--trace", self.folder]

print([(outcome.code, outcome.defect) for outcome in cage.run([Case("."), Case("a/b")])])
"""
    assert _in_cage(script) == "[(1, ''), (1, '')]"


def _in_cage(script: str) -> str:
    """What a script prints, in a process of its own: the tests' has threads, and the cage forks."""
    tests = Path(__file__).resolve().parents[1]
    head = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
    done = subprocess.run([sys.executable, "-c", head + script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
