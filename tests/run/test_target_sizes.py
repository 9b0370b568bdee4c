"""What a runtime takes with fixed sizes only is written all the same, and told by the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from tiny import normal

from onnxq.cli import main
from onnxq.targets import rules
from onnxq.targets.rules import findings

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("sizes", "how"), [("n, 4", "--dim_param n --dim_value 1"), ("?, 4", "--input_name x --input_shape 1,…")]
)
def test_what_qnn_refuses_until_sizes_are_fixed_is_told_by_the_exit_code(sizes: str, how: str, tmp_path: Path) -> None:
    """By the one command as by the other, and until they are."""
    text = f"g (float[{sizes}] x) => (float[{sizes}] y) {{ y = MatMul (x, w) }}"
    path, output = tiny.save(tiny.model(text, {"w": normal(4, 4)}), tmp_path), tmp_path / "q.onnx"
    np.savez(tmp_path / "d.npz", x=normal(32, 1, 4))
    run = lambda *words: CliRunner().invoke(main, [*map(str, words)])  # noqa: E731
    done = run("quantize", path, "--data", tmp_path / "d.npz", "-t", "qnn", "-s", "w8a8", "-o", output, "--keep-slow")
    assert done.exit_code == 3 and output.exists(), done.output
    assert "its runtime refuses it as it is: for qnn: 'x': QNN loads fixed sizes only: fix " in done.stderr
    assert how in done.stderr and "QNN loads" not in done.stdout  # once
    assert run("check", output, "-t", "qnn").exit_code == 1
    model = onnx.load(output)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, output)
    assert run("check", output, "-t", "qnn").exit_code == 0


def test_all_open_sizes_are_told_at_once() -> None:
    def said(inputs: str) -> str:
        model = tiny.read(tiny.model(f"g ({inputs}) => (float[a, b] y) {{ y = Relu (x) }}"))
        (sentence,) = rules.sentences([each for each in findings(model, "qnn") if each.rule == "fixed_sizes"], "qnn")
        return sentence

    both = said("float[n, t] x, float[n, u] z, float[2, 2] c")
    assert both.startswith("for qnn: 'x', 'z': QNN loads fixed sizes only: fix size 'n', size 't' and size 'u', one ")
    assert both.count("--dim_param n --dim_value 1 MODEL FIXED") == 1
    assert "fix size 'n' by 'python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param n" in said("float[n] x")
    assert "fix all sizes of 'x' by 'python" in said("float[?, 3] x") and "--input_name x" in said("float[] x")
    assert "size 'n' and all sizes of 'x', one after the other" in said("float[n, ?] x")
