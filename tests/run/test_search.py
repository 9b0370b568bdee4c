"""A search under a budget: exact, and within its bound in the file that is written."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import searched
import tiny
from click.testing import CliRunner
from searched import bits, quantized, size

import onnxq
from onnxq import targets
from onnxq.cli import main
from onnxq.drafts.budgeted import BudgetDrafts
from onnxq.errors import BadRecipe, CheckFailed
from onnxq.job import open_job
from onnxq.progress import QUIET
from onnxq.searching import meter, options, space
from onnxq.searching.drop_search import EVALUATIONS
from onnxq.searching.knapsack import Bound
from onnxq.searching.search import Search, Solution
from onnxq.searching.sensitivity import Sensitivity

pytest.importorskip("highspy")
pytestmark = pytest.mark.usefixtures("quick", "few_runs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched.made(tmp_path_factory.mktemp("search"))


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.31, 0.215])
def test_the_file_is_no_larger_than_the_budget(folder: Path, tmp_path: Path, share: float) -> None:
    result = quantized(folder, tmp_path / "o.onnx", budget=f"size={share:.1%}")
    assert size(result.output) <= share * size(folder / "model.onnx")
    assert size(result.output) > 0.8 * share * size(folder / "model.onnx")  # what may be spent is spent
    assert result.plan.scheme == options.SCHEME
    assert not (tmp_path / "o.onnx.search").exists()


@pytest.mark.sweep
@pytest.mark.parametrize("room", [1, 300])
def test_what_is_found_is_no_worse_than_any_uniform_plan_that_fits(
    tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the bound is what such a plan takes to the byte, and one of several forms takes more besides weights:
    here all layers matter alike."""
    text = "m (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, u) b = MatMul (x, v) c = MatMul (x, w) "
    model = tiny.model(
        text + "y = Sum (a, b, c) }", {name: tiny.normal(64, 64, seed=i) for i, name in enumerate("uvw")}
    )
    tiny.save(model, tmp_path)
    np.savez(tmp_path / "plain.npz", x=tiny.normal(64, 1, 64, seed=9))
    seen: list[tuple[BudgetDrafts, Solution]] = []
    real = BudgetDrafts._of
    monkeypatch.setattr(BudgetDrafts, "_of", lambda self, found: (seen.append((self, found)), real(self, found))[1])
    forms = ("uint2/32", "int3/32", "uint4/32", "int8")
    quantized(tmp_path, tmp_path / "o.onnx", budget="size=60%", formats=forms)
    drafts, before = seen[-1][0], size(tmp_path / "model.onnx")
    taken = {each: drafts._nbytes_of(drafts.space.plan(each)) for each in drafts.space.search.uniform}
    bound = sorted(taken.values())[1] + room
    seen.clear()
    quantized(tmp_path, tmp_path / "o.onnx", budget=f"size={bound / before:.9f}", formats=forms)
    search, found = seen[-1][0].space.search, seen[-1][1]
    assert size(tmp_path / "o.onnx") <= bound
    fitting = [each for each, nbytes in taken.items() if nbytes < bound]
    assert fitting
    assert found.harm <= min(search.measured(each).harm for each in fitting)


@pytest.mark.parametrize("most", [2.6, 3.37, 6.1])
def test_weights_take_no_more_bits_than_the_budget(folder: Path, tmp_path: Path, most: float) -> None:
    result = quantized(folder, tmp_path / "o.onnx", budget=f"bits={most}")
    assert 0.85 * most < bits(result.plan, result.output) <= most
    assert result.check is not None and result.check.kld >= 0


@pytest.mark.sweep
def test_a_searched_plan_beats_the_uniform_one_of_its_size(folder: Path, tmp_path: Path) -> None:
    uniform = quantized(folder, tmp_path / "u.onnx", recipe=onnxq.Recipe("int3", effort="quick"))
    most = bits(uniform.plan, uniform.output)
    found = quantized(folder, tmp_path / "o.onnx", recipe=onnxq.Recipe(effort="quick"), budget=f"bits={most:.4f}")
    assert found.check is not None and uniform.check is not None
    assert bits(found.plan, found.output) <= most + 1e-4
    assert found.check.sqnr > uniform.check.sqnr + 1
    labels = {choice.node: choice.label for choice in found.plan}
    assert len(set(labels.values())) > 1


@pytest.mark.sweep
def test_a_rank_is_given_to_the_layer_that_gains_by_it(folder: Path, tmp_path: Path) -> None:
    """The first layer's inputs lie in two directions: a rank of two makes up for all that its codes leave there."""
    r = np.random.default_rng(7)
    np.savez(tmp_path / "flat.npz", x=(r.standard_normal((64, 1, 2)) @ r.standard_normal((2, 64))).astype(np.float32))
    found = quantized(
        *(folder, tmp_path / "o.onnx"),
        data=tmp_path / "flat.npz",
        recipe=onnxq.Recipe(effort="quick", accuracy_level=0),  # rounded activations hide what a rank gains
        budget="bits=4.2",
        formats=("int3/32+mse", "int3/32+mse+rank2", "uint4/32+gptq"),
    )
    choices = list(found.plan)
    assert bits(found.plan, found.output) <= 4.2
    assert (choices[0].algorithm, choices[0].rank) == ("mse", 2)
    assert len({choice.label for choice in choices}) > 1
    assert sum(t.name.startswith("w0") for t in onnx.load(found.output).graph.initializer) > 3
    again = tmp_path / "again.onnx"
    (tmp_path / "plan.json").write_text(found.plan.to_json(), encoding="utf-8")
    onnxq.quantize(folder / "model.onnx", again, like=found.output, data=tmp_path / "flat.npz")
    loaded = onnxq.load_plan(tmp_path / "plan.json")
    assert [(c.label, c.algorithm, c.rank) for c in loaded] == [(c.label, c.algorithm, c.rank) for c in found.plan]
    assert onnx.load(again).graph == onnx.load(found.output).graph


@pytest.mark.parametrize("word", ["w4a16", "uint4"])
def test_an_algorithm_is_of_schemes_as_of_formats(folder: Path, word: str) -> None:
    place = targets.get("onnxq")
    job = open_job(folder / "model.onnx", onnxq.Recipe(word), "onnxq", folder / "plain.npz")
    plan = options.candidates(job, options.forms([f"{word}+hqq+rank3"], place, fast=False, has_data=True))[0]
    assert {(c.algorithm, c.rank) for c in plan} == {("hqq", 3)}
    ruled = dataclasses.replace(job, recipe=onnxq.Recipe(word, (onnxq.Rule("int4+rtn+rank1"),)))
    plan = options.candidates(ruled, options.forms([f"{word}+hqq+rank3"], place, fast=False, has_data=True))[0]
    assert {(c.algorithm, c.rank) for c in plan} == {(None, 0)}  # rules hold as ever


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        (("int3+gptq",), "needs --data"),
        (("int3+best",), "unknown algorithm 'best'"),
        (("int3+rank0",), "has no rank"),
        (("int3/5+mse",), "block size"),
    ],
)
def test_words_of_formats_that_cannot_be_are_refused(
    folder: Path, tmp_path: Path, formats: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BadRecipe, match=said):
        quantized(folder, tmp_path / "o.onnx", budget="bits=4", formats=formats, data=None)


@pytest.mark.sweep
def test_codes_of_the_plan_that_was_found_follow_its_layers(folder: Path, tmp_path: Path) -> None:
    recipe = onnxq.Recipe(effort="quick")
    found = quantized(folder, tmp_path / "o.onnx", recipe=recipe, budget="bits=3")
    assert any("gptaq" in note for note in found.notes)
    like = quantized(folder, tmp_path / "like.onnx", recipe="auto", like=found.output)
    assert like.output.read_bytes() == found.output.read_bytes()
    recipe = onnxq.Recipe(effort="quick", algorithm="gptq")
    named = quantized(folder, tmp_path / "n.onnx", recipe=recipe, budget="bits=3")
    assert not any("gptaq" in note for note in named.notes)


class Interacting:
    """Measures choices of which the second layer's does more harm than it does alone."""

    left = 100

    def measure(self, plans: object) -> None:
        """Nothing is measured elsewhere."""

    def figures(self, chosen: tuple[int, ...]) -> meter.Figures:
        return meter.Figures(float(chosen[0] + 9 * (chosen[1] == 2)), 20.0)


def test_within_a_tighter_bound_what_was_measured_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "plan", lambda _, chosen: tuple(chosen))
    units = [options.Unit(word, tuple(options.Option((), size, 0) for size in (8, 4, 2)), 1) for word in "ab"]
    alone = Sensitivity(0.0, [np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.1, 0.2])], 4)
    search = Search(Interacting(), onnxq.Plan("", "onnx"), units, alone, QUIET)
    bounds = [Bound([unit.costs for unit in units], 10)]
    first = search.least_harm(bounds)
    assert first is not None and first.chosen == (0, 2) and first.harm == 9
    search.measured((1, 1))
    again = search.least_harm(bounds)
    assert again is not None and again.chosen == (1, 1) and again.harm == 1


def test_without_data_inputs_are_made_up(folder: Path, tmp_path: Path) -> None:
    result = quantized(folder, tmp_path / "o.onnx", data=None, budget="bits=3.2")
    assert bits(result.plan, result.output) <= 3.2 and result.check is not None and not result.check.proves


@pytest.mark.sweep
def test_a_drop_of_a_metric_takes_the_smallest_file_that_keeps_it(folder: Path, tmp_path: Path) -> None:
    sizes = []
    for allowed in (0.01, 0.5):
        data = {
            "data": folder / "data.npz",
            "labels": "y",
            "metric": "nll",
            "formats": ("uint2/32", "uint4/32", "int8"),
        }
        found = quantized(folder, tmp_path / "o.onnx", budget=f"drop={allowed}", **data)
        assert found.score is not None and not found.score.higher
        assert found.score.drop <= allowed and found.score.evaluations <= EVALUATIONS
        sizes.append(size(found.output))
    assert sizes[0] > sizes[1]


def test_a_drop_without_a_metric_is_of_decisions(folder: Path, tmp_path: Path) -> None:
    found = quantized(folder, tmp_path / "o.onnx", budget="drop=5%")
    assert found.check is not None and found.check.flips <= 0.05
    assert size(found.output) < 0.3 * size(folder / "model.onnx")


def test_a_latency_is_kept_or_refused(folder: Path, tmp_path: Path) -> None:
    how = {"target": "ort-cpu", "formats": ("uint4/32", "float16", "w8a8")}
    found = quantized(folder, tmp_path / "o.onnx", budget="latency=9", **how)
    assert found.check is not None and found.check.sqnr > 40  # nothing has to be given up for such a time
    with pytest.raises(CheckFailed, match=r"no plan keeps --budget latency=0.0001: the fastest kernels take"):
        quantized(folder, tmp_path / "p.onnx", budget="latency=0.0001", **how)


def test_few_runs_suffice_for_many_layers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then neighbours are measured together, and layers' own errors tell them apart."""
    monkeypatch.setitem(space.RUNS, "quick", (0.0, 3, 3))
    result = quantized(folder, tmp_path / "o.onnx", budget="bits=3")
    assert bits(result.plan, result.output) <= 3
    assert result.check is not None and result.check.sqnr > 3


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": "size"}, "'size' is no bound; write size=25%"),
        ({"budget": "weight=3"}, "nothing is called 'weight'; bound one of size, bits"),
        ({"budget": "size=0"}, "size cannot be 0"),
        ({"budget": "size=120%"}, "size cannot be 1.2"),
        ({"budget": "bits=20%"}, "bits are no share"),
        ({"budget": "bits=3", "formats": ["int9"]}, "int9"),
        ({"budget": "bits=3", "formats": ["int4/x"]}, "invalid block size in 'int4/x'"),
        ({"budget": "bits=3", "formats": ["auto"]}, "'auto' is for whole models"),
        ({"budget": "bits=3", "formats": ["int4/32"]}, "no weight for which there is a choice"),
        ({"budget": "bits=3", "recipe": onnxq.Recipe("w8a16")}, "leave out 'w8a16'"),
        ({"budget": "bits=3", "check": False}, "leave out --plan, --like and --no-check"),
        ({"formats": ["int4"]}, "give --budget too"),
        ({"logits": ["z"]}, "no output 'z'; it has y"),
        ({"budget": "drop=0.1", "logits": ["none"]}, "give --metric or --evaluate"),
    ],
)
def test_what_is_no_budget_is_one_sentence(folder: Path, tmp_path: Path, how: dict[str, object], said: str) -> None:
    with pytest.raises(BadRecipe) as error:
        quantized(folder, tmp_path / "o.onnx", **how)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bound", ["bits=1.5", "size=5%"])
def test_what_cannot_be_reached_is_said_with_what_can(folder: Path, tmp_path: Path, bound: str) -> None:
    with pytest.raises(
        CheckFailed, match=r"no plan keeps --budget .*: with these formats .* at least; name shorter.*search' keeps"
    ):
        quantized(folder, tmp_path / "o.onnx", budget=bound)
    assert not (tmp_path / "o.onnx").exists()


def test_without_the_solver_it_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(BadRecipe, match=r"needs highspy: pip install 'onnxq\[search\]'"):
        quantized(folder, tmp_path / "o.onnx", budget="bits=3")


# -- onnxq search ------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_the_front_on_the_command_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.search.onnx").write_bytes(b"what a budget would be written to")
    line = ["search", str(folder / "model.onnx"), "-t", "onnxq", "--data", str(folder / "plain.npz"), "--points", "4"]
    line += ["--effort", "quick", "--report", "front.json", "-o", "plan.json", "--at", "bits=4"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert "plans that no other one beats" in done.output and "●" in done.output and "KL divergence" in done.output
    points = json.loads((tmp_path / "front.json").read_text())["points"]
    assert len(points) > 1
    pairs = list(itertools.pairwise(points))
    assert all(a["bytes"] < b["bytes"] and a["harm"] > b["harm"] for a, b in pairs)
    best = max((point for point in points if point["bits"] <= 4), key=lambda point: point["bits"])
    assert json.loads((tmp_path / "plan.json").read_text()) == best["plan"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["front.json", "model.search.onnx", "plan.json"]
    line = ["quantize", str(folder / "model.onnx"), "-t", "onnxq", "-s", "w4a16", "--plan", "plan.json", "-o", "o.onnx"]
    done = CliRunner().invoke(main, [*line, "--data", str(folder / "plain.npz")])
    assert done.exit_code == 0, done.output
    assert size(tmp_path / "o.onnx") == pytest.approx(best["bytes"], abs=4000)


def test_what_a_search_on_the_command_line_lacks(folder: Path) -> None:
    for more, said in ((["-o", "p.json"], "--at names"), (["--at", "latency=1"], "size=25% or bits=3.5")):
        done = CliRunner().invoke(main, ["search", str(folder / "model.onnx"), *more])
        assert done.exit_code == 1 and said in done.output and done.output.count("\n") == 1


def test_a_search_that_writes_nothing_needs_no_place_to_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc/self" if sys.platform == "linux" else "/")
    line = ["search", str(folder / "model.onnx"), "--data", str(folder / "plain.npz"), "--points", "2", "--json"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0 and json.loads(done.stdout)["points"], done.output
    done = CliRunner().invoke(main, [*line, "-o", "plan.json", "--at", "bits=4"])
    assert done.exit_code == 1 and "cannot be written to" in done.output


def test_the_model_that_is_searched_is_what_onnx_runs(folder: Path) -> None:
    onnx.checker.check_model(onnx.load(folder / "model.onnx"))
