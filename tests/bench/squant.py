"""What balanced rounding gains at the outputs of real convolutional networks: `python tests/bench/squant.py [MODEL …]`.

int8 weights, one scale a channel, everything else in float: SQNR of the outputs with plain rounding to nearest and with
squant, on four held-back samples of the shared models. The table of docs/algorithms.md is this script's output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
from shared import SHARED
from zoo_models import load_zoo

from onnxq import algorithms, targets
from onnxq.encoding import memo
from onnxq.model.load import load_model
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.passes.rewrite import rewrite
from onnxq.plan import COMPUTING, Plan, in_float
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.samples.trials import Trials
from onnxq.summaries.ranges import NO_RANGES
from onnxq.tuning.plan_bench import PlanBench


@contextmanager
def algorithm(word: str) -> Iterator[None]:
    """Use one algorithm for every operator."""
    chosen = algorithms.choose
    algorithms.choose = lambda *_: word
    memo.forget()
    try:
        yield
    finally:
        algorithms.choose = chosen


def main() -> None:
    zoo = load_zoo()
    if zoo is None:
        raise SystemExit(f"no shared models in {SHARED}; ONNXQ_SHARED says where they are")
    table = Table("model", "rtn dB", "squant dB", "gain dB", box=None)
    recipe, target = Recipe("w8a8"), targets.get("ort-cpu")
    for name in sys.argv[1:] or sorted(zoo.MODELS):
        model = load_model(zoo.model_path(name))
        prepare(model, opset=target.opset_for("w8a8"), widen=True)
        plan = make_plan(model, recipe, target, infer_types(model))
        if not any(choice.op == "Conv" for choice in plan):
            continue
        stored = plan.replacing(in_float(choice, "") for choice in plan.those(*COMPUTING))
        found = []
        for word in ("rtn", "squant"):
            with algorithm(word):
                found.append(bench(model, recipe, zoo.calibration(name, 4)).quality(stored).sqnr)
        table.add_row(name, f"{found[0]:.1f}", f"{found[1]:.1f}", f"{found[1] - found[0]:+.1f}")
    Console(width=100).print(table)


def bench(model: ir.Model, recipe: Recipe, feeds: list) -> PlanBench:
    def carry_out(plan: Plan) -> ir.Model:
        return rewrite(model, plan, NO_RANGES, recipe, targets.get("ort-cpu"))

    return PlanBench(model, carry_out, Trials.given(feeds, "calibration samples"))


if __name__ == "__main__":
    main()
