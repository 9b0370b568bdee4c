"""The operators as onnxruntime runs them: types, shapes, memory, and the same numbers without the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels
import ml_dtypes
import nodes
import numpy as np
import onnx
import pytest
from kernels import exact_bound, fast_bound, product, weight
from nodes import BFLOAT16, FLOAT, FLOAT16, activations
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.external_data_helper import set_external_data

import onnxq
from onnxq.errors import BadModel, MissingRuntime
from onnxq.runtime import native
from onnxq.runtime import session as runtime

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")


@pytest.fixture(params=[*kernels.isas(), ""], ids=[*kernels.isas(), "chosen"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kernel in turn, as its users force it; and the one that is chosen."""
    monkeypatch.setenv("ONNXQ_FORCE_ISA", request.param)
    return request.param


def run(model: onnx.ModelProto, **feed: NDArray) -> NDArray:
    return runtime_values(onnxq.session(model.SerializeToString(), quiet()), feed)


def quiet() -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what is refused is raised as well
    options.intra_op_num_threads = 2
    return options


def runtime_values(session: Any, feed: dict[str, NDArray]) -> NDArray:
    """The output, also in bfloat16, which onnxruntime does not give as numpy arrays."""
    values = {name: runtime._to_value(x) for name, x in feed.items()}
    return runtime._from_value(session.run_with_ort_values(None, values)[0])


@pytest.mark.pairwise
@pytest.mark.parametrize("scale", kernels.SCALES)
@pytest.mark.parametrize(("format", "zeros"), kernels.VARIANTS)
def test_formats(forced: str, format: str, scale: str, zeros: bool) -> None:
    w = weight(format, 50, 100, 32, scale=scale, zeros=zeros)
    x, bias = activations((5, 100)), activations((50,), seed=1)
    for exact, bound in ((True, exact_bound), (False, fast_bound)):
        for b in (None, bias):
            y = run(nodes.matmul(w, bias=b, activations="exact" if exact else "fast"), x=x)
            assert np.all(np.abs(y - product(x, w, b)) <= bound(x, w, b))


@pytest.mark.parametrize("format", kernels.DENSE)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_dense(forced: str, rows: int, format: str) -> None:
    w = weight(format, 50, 100, 32)
    x, bias = activations((rows, 100)), activations((50,), seed=1)
    for activations_, bound in (("exact", exact_bound), ("fast", fast_bound), (None, fast_bound)):
        for b in (None, bias):
            y = run(nodes.dense(w, bias=b, activations=activations_), x=x)
            assert np.all(np.abs(y - product(x, w, b)) <= bound(x, w, b))


@pytest.mark.parametrize("format", kernels.DENSE)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_dense_in_half_precision(forced: str, dtype: type, format: str) -> None:
    w = weight(format, 33, 70, 32)
    x, bias = activations((3, 70)).astype(dtype), activations((33,), seed=1).astype(dtype)
    type = {np.float16: FLOAT16, ml_dtypes.bfloat16: BFLOAT16}[dtype]
    y = run(nodes.dense(w, bias=bias, type=type), x=x)
    assert y.dtype == dtype
    wide, b = x.astype(np.float32), bias.astype(np.float32)
    wanted = product(wide, w, b)
    half_step = np.abs(wanted) * (2.0**-11 if dtype == np.float16 else 2.0**-8) + 2.0**-25
    assert np.all(np.abs(y.astype(np.float64) - wanted) <= fast_bound(wide, w, b) + half_step * 1.01)


@pytest.mark.parametrize("format", kernels.DENSE)
def test_a_dense_weight_may_be_computed_or_begin_anywhere(forced: str, tmp_path: Path, format: str) -> None:
    w, x = weight(format, 40, 96, 32), activations((20, 96))
    tiles = w.tiles.view(kernels.DENSE[format])
    y = run(nodes.dense(w, inputs=("weight",)), x=x, weight=tiles)
    assert np.all(np.abs(y - product(x, w)) <= fast_bound(x, w))
    model = nodes.dense(w)
    (tensor,) = model.graph.initializer
    raw = tensor.raw_data
    set_external_data(tensor, "m.data", offset=3, length=len(raw))
    tensor.ClearField("raw_data")
    (tmp_path / "m.data").write_bytes(b"odd" + raw)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.testing.assert_array_equal(onnxq.session(tmp_path / "m.onnx", quiet()).run(None, {"x": x})[0], y)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision(forced: str, dtype: type) -> None:
    """The type of x is that of y; in between all is float32, so one rounding is all that comes on top."""
    w = weight("nf4", 70, 200, 64)
    x, bias = activations((3, 200)).astype(dtype), activations((70,), seed=1).astype(dtype)
    type = {np.float16: FLOAT16, ml_dtypes.bfloat16: BFLOAT16}[dtype]
    y = run(nodes.matmul(w, bias=bias, type=type, activations="exact"), x=x)
    assert y.dtype == dtype
    wide, b = x.astype(np.float32), bias.astype(np.float32)
    wanted = product(wide, w, b)
    half_step = np.abs(wanted) * (2.0**-11 if dtype == np.float16 else 2.0**-8) + 2.0**-25
    assert np.all(np.abs(y.astype(np.float64) - wanted) <= exact_bound(wide, w, b) + half_step * 1.01)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (0, 40), (2, 3, 40), (2, 0, 5, 40), (1, 1, 1, 7, 40)], ids=str)
def test_batch_dimensions(forced: str, shape: tuple[int, ...]) -> None:
    w, x = weight("int4", 20, 40, 16), activations(shape)
    symbols = tuple(f"d{i}" for i in range(len(shape) - 1))
    for declared in (None, shape, (*symbols, 40)):
        model = nodes.matmul(w, x_shape=declared or (*[None] * (len(shape) - 1), 40), activations="exact")
        y = run(model, x=x)
        assert y.shape == (*shape[:-1], 20)
        flat = x.reshape(-1, 40)
        assert np.all(np.abs(y.reshape(-1, 20) - product(flat, w)) <= exact_bound(flat, w))


@pytest.mark.parametrize(
    "computed", [("weight",), ("scales",), ("zero_points",), ("weight", "scales", "zero_points", "bias")], ids=str
)
def test_weights_that_are_no_constants(computed: tuple[str, ...]) -> None:
    w, x = weight("int4", 33, 64, 32, zeros=True), activations((3, 64))
    bias = activations((33,), seed=2)
    arrays = nodes.tensors(w) | {"bias": bias}
    model = nodes.matmul(w, bias=bias, inputs=computed, activations="exact")
    y = run(model, x=x, **{name: arrays[name] for name in computed})
    assert np.all(np.abs(y - product(x, w, bias)) <= exact_bound(x, w, bias))


@pytest.mark.parametrize("type", [TensorProto.INT32, TensorProto.INT64], ids=["int32", "int64"])
@pytest.mark.parametrize("dtype", [None, FLOAT, FLOAT16, BFLOAT16], ids=["default", "float32", "float16", "bfloat16"])
def test_gather(dtype: int | None, type: int) -> None:
    w = weight("int4", 50, 40, 16, zeros=True)
    rows = np.array([[0, -1, 49], [-50, 16, 3]], np.int32 if type == TensorProto.INT32 else np.int64)
    y = run(nodes.gather(w, dtype=dtype, indices=type, shape=("a", "b")), i=rows)
    float_type = {FLOAT16: np.float16, BFLOAT16: ml_dtypes.bfloat16}.get(dtype or FLOAT, np.float32)
    assert y.dtype == float_type
    np.testing.assert_array_equal(y, w.decoded.astype(np.float32)[rows].astype(float_type))


def test_gather_of_nothing_and_of_one() -> None:
    w = weight("nf4", 20, 40, 16)
    assert run(nodes.gather(w), i=np.zeros(0, np.int64)).shape == (0, 40)
    one = run(nodes.gather(w, shape=()), i=np.array(-1, np.int64))
    np.testing.assert_allclose(one, w.decoded[19], rtol=2.0**-23)


def test_shapes_and_types_are_inferred() -> None:
    """What follows a node is optimized as if the node were one of onnxruntime's own."""
    w = weight("int4", 20, 40, 16)
    session = onnxq.session(nodes.matmul(w, x_shape=("batch", 3, 40)).SerializeToString())
    assert session.get_outputs()[0].shape == ["batch", 3, 20]
    session = onnxq.session(nodes.gather(w, shape=("batch", 7), dtype=FLOAT16).SerializeToString())
    assert (session.get_outputs()[0].shape, session.get_outputs()[0].type) == (["batch", 7, 40], "tensor(float16)")
    session = onnxq.session(nodes.matmul(w, x_shape=(None, 3, 40)).SerializeToString())
    assert all(isinstance(dim, str | None) or dim >= 0 for dim in session.get_outputs()[0].shape)  # unknown is no size


def test_with_and_without_the_library(tmp_path: Path) -> None:
    """One file: its function where no library is registered, the kernel where one is."""
    w, x, bias = weight("int8", 32, 96, 32), activations((4, 96)), activations((32,), seed=1)
    path = tmp_path / "model.onnx"
    onnx.save(nodes.matmul(w, bias=bias, functions=(nodes.int8_body(w),)), path)
    fast = runtime.Session(path, profile=True)
    plain = runtime.Session(path, profile=True, library=False)
    wanted = product(x, w, bias)
    assert np.all(np.abs(fast.run({"x": x})[0] - wanted) <= fast_bound(x, w, bias))
    assert np.all(np.abs(plain.run({"x": x})[0] - wanted) <= exact_bound(x, w, bias))
    assert "MatMulNBits" in {kernel.op for kernel in fast.kernels()}
    assert "MatMulNBits" not in {kernel.op for kernel in plain.kernels()}


def test_external_weights_stay_in_the_file(tmp_path: Path) -> None:
    """Memory of its own that a process takes for a model of 96 MB, beside its modules: less than a tenth of it."""
    w = weight("int4", 16, 64, 32)
    tiles = np.zeros((1024, 1536, 16, 4), np.uint8)
    arrays = {"weight": tiles, "scales": np.ones((1024, 384, 16), np.float16)}
    model = nodes.matmul(w, constants=arrays, K=12288, N=16384, x_shape=("M", 12288))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1024)
    code = (
        "import re, sys, numpy as np, onnxq\n"
        "own = lambda: int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "x = np.ones((1, 12288), np.float32)\n"
        "import ctypes, onnxruntime; make = onnxq.session\n"  # naming it imports what it needs
        "ctypes.CDLL(str(onnxq.ops_library())); before = own()\n"
        "session = make(sys.argv[1]); session.run(None, {'x': x}); print(own() - before)"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-P", "-c", code, tmp_path / "m.onnx"]  # -P: onnxq as installed, not from this folder
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shadow = tiles.nbytes / 8 if "ASAN_OPTIONS" in os.environ else 0  # AddressSanitizer keeps a byte for every eight
    assert int(done.stdout) < tiles.nbytes / 10 + shadow


@pytest.mark.pairwise
@pytest.mark.parametrize("start", [0, 1, 2, 3, 64])
@pytest.mark.parametrize("scale", kernels.SCALES)
def test_external_weights_may_begin_anywhere(forced: str, scale: str, start: int, tmp_path: Path) -> None:
    """Other writers do not align; what cannot be read in place is copied."""
    w, x, bias = weight("int4", 40, 96, 32, scale=scale, zeros=True), activations((3, 96)), activations((40,), seed=1)
    model, data = nodes.matmul(w, bias=bias), b"?" * start
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        set_external_data(tensor, "m.data", offset=len(data), length=len(raw))
        tensor.ClearField("raw_data")
        data += raw + b"?"
    (tmp_path / "m.data").write_bytes(data)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    y = onnxq.session(tmp_path / "m.onnx").run(None, {"x": x})[0]
    assert np.all(np.abs(y - product(x, w, bias)) <= fast_bound(x, w, bias))


def test_a_forced_name_that_does_not_exist_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nodes.matmul(weight("int4", 4, 32, 32)).SerializeToString()
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "sse9")
    with pytest.raises(BadModel, match=r"ONNXQ_FORCE_ISA = 'sse9' is not a kernel of this library; it has:.* scalar"):
        onnxq.session(model, quiet())
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "")
    onnxq.session(model)


def test_one_set_of_options_serves_many_sessions() -> None:
    options, model = quiet(), nodes.matmul(weight("int4", 4, 32, 32)).SerializeToString()
    assert onnxq.session(model, options) is not onnxq.session(model, options)


def test_without_the_library_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nodes.matmul(weight("int4", 4, 32, 32)).SerializeToString()
    monkeypatch.setattr(native, "path", lambda: None)
    with pytest.raises(MissingRuntime, match="install a C\\+\\+ compiler and reinstall onnxq"):
        onnxq.ops_library()
    with pytest.warns(RuntimeWarning, match="reinstall onnxq"), pytest.raises(BadModel, match="onnxruntime refuses"):
        onnxq.session(model, quiet())
