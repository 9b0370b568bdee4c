"""Which models are opened without rules of onnxruntime's optimizer that are wrong for float8, and what that takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import tiny
from onnx import TensorProto, helper

from onnxq.runtime.ort.wrong_rules import wrong_rules

E4M3, UINT8 = TensorProto.FLOAT8E4M3FN, TensorProto.UINT8
ROUND = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
CALL = "y = f.round (x, s, z)"
BODY = f'<domain: "f", opset_import: ["": 21]> round (x, s, z) => (y) {{ {ROUND} }}'
NESTED = f"""{BODY}
<domain: "f", opset_import: ["": 21, "f": 1]> outer (x, s, z) => (y) {{ {CALL} }}"""
MADE = f'<domain: "f", opset_import: ["": 21]> round (x, s, u) => (y) {{ z = Cast <to = {E4M3}> (u) {ROUND} }}'
BRANCH = f"""c = IsNaN (s)
    y = If (c) <then_branch = g () => (y) {{ {ROUND} }}, else_branch = h () => (k) {{ k = Identity (x) }}>"""


def model(nodes: str, zero: int | None, functions: str = "") -> onnx.ModelProto:
    """`s` and `z` are constants; without a type for it the zero point is what an input says."""
    text = f"g (float[4] x{', uint8 u' * (zero is None)}) => (float[4] y) <float s = {{0.5}}> {{ {nodes} }}"
    made = tiny.model(text, functions=functions, opset=21)
    if zero is not None:
        made.graph.initializer.append(helper.make_tensor("z", zero, [], b"\0", raw=True))
    return made


@pytest.mark.parametrize(
    ("nodes", "functions"), [(ROUND, ""), (BRANCH, ""), (CALL, BODY), ("y = f.outer (x, s, z)", NESTED)]
)
def test_types_are_known_wherever_the_node_stands(nodes: str, functions: str, tmp_path: Path) -> None:
    for zero, is_wrong in ((E4M3, True), (UINT8, False)):
        made = model(nodes, zero, functions)
        onnx.save(made, tmp_path / "model.onnx")
        assert bool(wrong_rules(made.SerializeToString())) is is_wrong
        assert bool(wrong_rules(tmp_path / "model.onnx")) is is_wrong


def test_a_zero_point_of_which_nobody_says_the_type_may_be_one() -> None:
    cast = f"z = Cast <to = {E4M3}> (u) {ROUND}"
    for nodes, functions in ((cast, ""), (CALL.replace("z)", "u)"), MADE)):
        assert wrong_rules(model(nodes, None, functions).SerializeToString())
    assert not wrong_rules(model(ROUND.replace(", z", ""), UINT8).SerializeToString())
    said = ROUND.replace(", z", "").replace("Linear (x", f"Linear <output_dtype = {E4M3}> (x")
    assert wrong_rules(model(said, UINT8).SerializeToString())


def test_what_is_no_model_has_none(tmp_path: Path) -> None:
    (tmp_path / "none.onnx").write_bytes(b"\xffQuantizeLinear")
    for what in (b"", b"\xffQuantizeLinear", tmp_path, tmp_path / "none.onnx", "\0"):
        assert wrong_rules(what) == ()


@pytest.mark.parametrize("nodes", ["y = Relu (x)", ROUND])
def test_a_program_that_runs_models_reads_no_library_for_graphs(nodes: str, tmp_path: Path) -> None:
    onnx.save(model(nodes, UINT8), tmp_path / "model.onnx")
    script = "import sys, onnxq; onnxq.session(sys.argv[1]); print(*{'onnx', 'onnx_ir', 'sympy'} & sys.modules.keys())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.split() == (["onnx"] if nodes == ROUND else [])
