"""A bench on which it is known which plans are worse on which samples."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import tiny

from onnxq.plan import Choice, Method, Plan
from onnxq.samples.trials import Trial, Trials
from onnxq.tuning.plan_bench import PlanBench

#: Each of eight rows of a weight meets the inputs of one label.
SAMPLES = tuple(Trial(f"row {i}", {"x": np.eye(8, dtype=np.float32)[[i]]}) for i in range(8))


def plan(spoiled: int) -> Plan:
    """The plan that spoils so many rows, the first ones."""
    return Plan("w8a8", "ort-cpu", {str(i): Choice(str(i), "MatMul", Method.STORED) for i in range(spoiled)})


def bench() -> PlanBench:
    return PlanBench(_model(0), lambda plan: _model(len(plan.choices)), Trials(SAMPLES))


def _model(spoiled: int) -> ir.Model:
    w = tiny.normal(8, 16)
    w[:spoiled] *= 1 + 0.05 * np.arange(1, spoiled + 1)[:, None]
    return tiny.read(tiny.model("g (float[N, 8] x) => (float[N, 16] y) { y = MatMul(x, w) }", {"w": w}))
