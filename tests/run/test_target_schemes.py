"""Every scheme on every target whose runtime is not here: a network stays what it is, and nothing would be refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from sweeps import at_night

from onnxq import Recipe, quantize, targets
from onnxq.checking.rules import check_rules
from onnxq.schemes import SCHEMES
from onnxq.targets import rules

DIGITS = Path(__file__).parents[2] / "models/digits_cnn.onnx"
pytestmark = pytest.mark.usefixtures("quick")


#: Each scheme on every other target; `night` takes the rest.
CASES = [
    (at_night if (i + j) % 2 else pytest.param)(target, scheme)
    for i, scheme in enumerate(sorted(set(SCHEMES) - {"auto"}))
    for j, target in enumerate(name for name in targets.names() if name not in tiny.HERE)
]


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "scheme"), CASES)
def test_every_scheme_on_every_target(tmp_path: Path, target: str, scheme: str) -> None:
    needs_data = scheme == "w8a16" or targets.get(target).rounds_activations(scheme)
    data = DIGITS.with_name("digits_cnn_calibration.npz") if needs_data else None
    recipe = Recipe(scheme, min_sqnr=-np.inf)
    done = quantize(DIGITS, tmp_path / "q.onnx", recipe, target=target, data=data, limit=16)
    assert done.check is not None and done.check.sqnr > (12 if "4" in scheme else 22)
    domains = {node.domain for node in onnx.load(done.output).graph.node}
    assert domains <= {"", *targets.get(target).domains}
    if target in rules.names():
        assert {finding.rule for finding in check_rules(done.output, target) if finding.refuses} <= {"fixed_sizes"}
