"""import-weights where a model reads one weight in several places, and the checkpoint has it once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXACT = ImportOptions(accuracy_level=0)


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


LM = """g (int64[M] i) => (float[M,48] y) {
    e = Gather("embed.weight", i)
    ["/up/MatMul"] h = MatMul(e, w)  ["/lm_head/HEAD"] y = OP(h, "HEADNAME")
}"""
#: Heads that exporters make of a tied table: its transpose, or a copy of it.
HEADS = {
    "transposed": ("MatMul", "MatMul", "onnx::MatMul_9"),
    "copied": ("Gemm", "Gemm <transB = 1>", "lm_head.weight"),
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("has_head", [False, True])
def test_the_head_of_a_tied_table_follows_it(tmp_path: Path, kind: str, has_head: bool) -> None:
    op, call, name = HEADS[kind]
    table, new, head = normal(48, 16), normal(48, 16, seed=1), normal(48, 16, seed=2)
    text = LM.replace("HEADNAME", name).replace("HEAD", op).replace("OP", call)
    own = {"embed.weight": table, "w": normal(16, 16, seed=3), name: np.ascontiguousarray(table.T)}
    if kind == "copied":
        own[name] = table.copy()
    tensors = {"embed.weight": new, "up.weight": normal(16, 16, seed=4)} | (
        {"lm_head.weight": head} if has_head else {}
    )
    path = save(tmp_path / "w.safetensors", tensors)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    assert not done.match.missing and not done.match.unused
    (y,) = Session(done.output).run({"i": np.arange(48)})
    wanted = new @ tensors["up.weight"].T @ (head if has_head else new).T
    np.testing.assert_allclose(y, wanted, atol=1e-5)


@pytest.mark.parametrize("has_head", [False, True])
def test_the_head_of_a_blank_model_is_the_tied_table(tmp_path: Path, has_head: bool) -> None:
    text = LM.replace("HEADNAME", "onnx::MatMul_9").replace("HEAD", "MatMul").replace("OP", "MatMul")
    own = {"embed.weight": np.zeros((48, 16)), "w": np.zeros((16, 16)), "onnx::MatMul_9": np.zeros((16, 48))}
    model = tiny.save(tiny.model(text, {name: x.astype(np.float32) for name, x in own.items()}), tmp_path)
    tensors = {"embed.weight": normal(48, 16), "up.weight": normal(16, 16, seed=4)}
    tensors |= {"lm_head.weight": normal(48, 16, seed=2)} if has_head else {}
    done = import_weights(model, save(tmp_path / "w.safetensors", tensors), tmp_path / "q.onnx")
    assert not done.match.missing
    (y,) = Session(done.output).run({"i": np.arange(48)})
    head = tensors["lm_head.weight" if has_head else "embed.weight"]
    np.testing.assert_allclose(y, tensors["embed.weight"] @ tensors["up.weight"].T @ head.T, atol=1e-5)
