"""What `python -m onnxq.bench_kernels` times is what it says: products by weights of their own, checked before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from onnxq.bench_kernels import __main__ as bench
from onnxq.bench_kernels import attention, products
from onnxq.bench_kernels.__main__ import FORMATS
from onnxq.bench_kernels.contenders import MOST, Contender, check, contenders
from onnxq.runtime import native

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

COPIES = 3


def test_attention_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each kernel, with a mask and without; one that computes something else ends the measurement."""
    found = list(attention.lines(attention.QUICK[:1], 0.01, 1))
    names = ["ours fast", "ours exact", "nodes", "MultiHeadAttention"]
    assert [(cells[1], cells[2]) for cells in found] == [(mask, name) for mask in ("none", "causal") for name in names]
    monkeypatch.setitem(MOST, "fast", 1e-9)
    with pytest.raises(SystemExit, match=r"ours fast .*: relative error"):
        list(attention.lines(attention.QUICK, 0.01, 1))


@pytest.mark.parametrize(
    ("format", "make"),
    [
        *(
            ("int8", make)
            for make in (lambda w: products.ours(w, "fast", COPIES), lambda w: products.matmul(w, COPIES))
        ),
        ("int4", lambda w: products.matmul_nbits(w, 4, COPIES)),
        ("nf4", lambda w: products.matmul_bnb4(w, COPIES)),
        *((word, lambda w: products.ours(w, "fast", COPIES)) for word in products.DENSE),
    ],
    ids=["ours", "float", "level 4", "Bnb4", *products.DENSE],
)
def test_no_two_copies_are_alike(format: str, make: Callable[[products.Weight], onnx.ModelProto]) -> None:
    """onnxruntime keeps equal weights once, and would find them in the cache."""
    w = products.random_weight(format, 32, 64, 64, np.random.default_rng(0))
    tensors = [tensor.raw_data for tensor in make(w).graph.initializer]
    assert len(set(tensors)) == len(tensors) >= COPIES


@pytest.mark.parametrize(("format", "block"), FORMATS)
def test_every_contender_is_checked(format: str, block: int) -> None:
    x = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
    for contender in contenders(format, block, (256, 512), 1):
        assert contender.copies > 1
        check(contender, x)

        def swapped(x: np.ndarray, of: Contender = contender) -> list[np.ndarray]:
            first, *others = of.run(x)
            return [others[0], first, *others[1:]]

        wrong = Contender("wrong", contender.accuracy, swapped, contender.weight, contender.copies, contender.clock)
        with pytest.raises(SystemExit, match="relative error"):
            check(wrong, x)


def test_a_file_that_is_there_stays_unless_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before anything is measured."""
    monkeypatch.setattr(bench, "sweep", lambda *_: [])
    (tmp_path / "r.md").write_text("mine")
    words = ["--sweep", "--quick", "--output"]
    for output, says in ((tmp_path / "r.md", "exists; give --force"), (tmp_path / "no" / "r.md", "does not exist")):
        done = CliRunner().invoke(bench.main, [*words, str(output)])
        assert done.exit_code == 1 and says in done.output
    assert (tmp_path / "r.md").read_text() == "mine"
    assert CliRunner().invoke(bench.main, [*words, str(tmp_path / "r.md"), "--force"]).exit_code == 0
    assert (tmp_path / "r.md").read_text() != "mine"
