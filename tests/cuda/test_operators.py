"""The operators as onnxruntime runs them: on its CUDA provider, and with emulated kernels on the processor's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from abi import BFLOAT16, Weight, random_weight, random_x
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.runtime import library, native
from onnxq.runtime.ort import installed

ort = pytest.importorskip("onnxruntime")

Open = Callable[[onnx.ModelProto], Any]


@pytest.fixture(params=["emulated", "gpu"])
def open_session(request: pytest.FixtureRequest) -> Open:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if request.param == "gpu":
        request.getfixturevalue("gpu")
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            pytest.skip("this onnxruntime has no CUDA provider")
        return lambda model: onnxq.session(model.SerializeToString(), options, ["CUDAExecutionProvider"])
    options.register_custom_ops_library(str(request.getfixturevalue("emulated_library")))
    return lambda model: ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def make(
    op: str,
    w: Weight,
    fed: list[tuple[str, int, list[str | int]]],
    output: int,
    bias: NDArray | None,
    **attributes: Any,
) -> onnx.ModelProto:
    arrays = {"weight": w.tiles, "scales": w.scale_tiles, "zero_points": w.zero_tiles, "bias": bias}
    names = {name: name if array is not None else "" for name, array in arrays.items()}
    weight = [names["weight"], names["scales"], names["zero_points"]]
    inputs = ["x", *weight, names["bias"]] if op == "MatMulNBits" else [*weight, "x"]
    n, k = w.codes.shape
    given = {"K": k, "N": n, "block_size": w.block, "format": w.format} | attributes
    node = helper.make_node(op, inputs, ["y"], "the/node", domain="onnxq", **given)
    values = [helper.make_tensor_value_info(*each) for each in fed]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items() if array is not None]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", output, None)], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("onnxq", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def matmul(
    w: Weight, type: int = TensorProto.FLOAT16, bias: NDArray | None = None, **attributes: Any
) -> onnx.ModelProto:
    k = attributes.get("K", w.codes.shape[1])
    return make("MatMulNBits", w, [("x", type, ["a", "b", k])], type, bias, **attributes)


def assert_near(y: NDArray, wanted: NDArray, relative: float) -> None:
    assert y.shape == wanted.shape
    error = np.linalg.norm(y.astype(np.float64) - wanted)
    assert error <= relative * np.linalg.norm(wanted)


@pytest.mark.parametrize("format", ["int4", "int8", "nf4", "fp4", "mxfp4"])
@pytest.mark.parametrize("type", [np.float16, np.float32], ids=["float16", "float32"])
def test_matmul(open_session: Open, format: str, type: type) -> None:
    affine = format in ("int4", "int8")
    w = random_weight(40, 96, format, 32, asymmetric=affine, scale=np.uint8 if format == "mxfp4" else np.float16)
    number = {np.float16: TensorProto.FLOAT16, np.float32: TensorProto.FLOAT}[type]
    bias = np.linspace(-3, 3, 40).astype(type)
    session = open_session(matmul(w, number, bias))
    for shape in ((1, 1), (2, 3), (4, 20), (0, 1)):
        x = random_x(shape[0] * shape[1], 96, np.dtype(type)).reshape(*shape, 96)
        (y,) = session.run(None, {"x": x})
        assert_near(y, x.astype(np.float64) @ w.values.T + bias.astype(np.float64), 0.005)


def test_bfloat16(open_session: Open) -> None:
    w, x = random_weight(33, 64), random_x(3, 64, BFLOAT16).reshape(1, 3, 64)
    session = open_session(matmul(w, TensorProto.BFLOAT16))
    fed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), TensorProto.BFLOAT16)
    (y,) = session.run_with_ort_values(None, {"x": fed})
    assert y.data_type() == "tensor(bfloat16)" and y.shape() == [1, 3, 33]


def test_exact_and_fast_differ_as_they_should(open_session: Open) -> None:
    w, x = random_weight(64, 256), random_x(4, 256, np.dtype(np.float32)).reshape(1, 4, 256)
    wanted = x.astype(np.float64) @ w.values.T
    (exact,) = open_session(matmul(w, TensorProto.FLOAT, activations="exact")).run(None, {"x": x})
    (fast,) = open_session(matmul(w, TensorProto.FLOAT)).run(None, {"x": x})
    assert_near(exact, wanted, 2e-6)
    assert_near(fast, wanted, 0.01)
    assert not np.array_equal(exact, fast)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_gather(open_session: Open, dtype: int) -> None:
    w = random_weight(37, 75, "nf4", 64)
    session = open_session(make("GatherNBits", w, [("x", TensorProto.INT64, ["a", "b"])], dtype, None, dtype=dtype))
    indices = np.array([[0, 36, -1], [5, -37, 16]])
    (y,) = session.run(None, {"x": indices})
    assert y.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    assert_near(y, w.values[indices], 1e-3)


def refusal(run: Callable[[], object]) -> str:
    with pytest.raises(Exception) as refused:  # onnxruntime's exceptions share no base class
        run()
    return str(refused.value)


def test_wrong_nodes_are_refused_in_a_sentence(open_session: Open) -> None:
    w = random_weight(32, 64)
    assert "block_size must be a multiple of 16 from 16 to 256, not 40" in refusal(
        lambda: open_session(matmul(w, block_size=40))
    )
    assert "format is 'int3'" in refusal(lambda: open_session(matmul(w, format="int3")))
    x = random_x(1, 96, np.dtype(np.float16)).reshape(1, 1, 96)
    session = open_session(matmul(w, K=96))
    assert "weight has shape [2, 8, 16, 4]; K = 96" in refusal(lambda: session.run(None, {"x": x}))
    short = open_session(matmul(w, bias=np.zeros(31, np.float16)))
    x = random_x(1, 64, np.dtype(np.float16)).reshape(1, 1, 64)
    assert "bias has shape [31], but must be [32]" in refusal(lambda: short.run(None, {"x": x}))


@pytest.mark.parametrize(
    ("attributes", "x", "reason"),
    [
        ({"dtype": 11}, np.zeros((1, 2), np.int64), "dtype must be 1"),
        ({"dtype": 7}, np.zeros((1, 2), np.int64), "dtype must be 1"),
        ({}, np.zeros((1, 2), np.float32), "indices must be int32 or int64"),
        ({}, np.zeros((1, 2), np.uint8), "indices must be int32 or int64"),
        ({"K": 65}, np.zeros((1, 2), np.int64), "weight has shape"),
        ({"dtype": TensorProto.FLOAT16}, np.zeros((1, 2), np.int64), "Type|type"),  # y is declared as float32
    ],
    ids=str,
)
def test_what_the_processor_refuses_the_gpu_refuses(
    open_session: Open, attributes: dict[str, int], x: NDArray, reason: str
) -> None:
    """tests/native/test_refusals.py asks the same of the processor's operators."""
    fed = ("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["a", "b"])
    model = make("GatherNBits", random_weight(32, 64), [fed], TensorProto.FLOAT, None, **attributes)
    assert re.search(reason, refusal(lambda: open_session(model).run(None, {"x": x})))


@pytest.mark.parametrize("x", [np.float16(3.0), np.zeros((2, 63), np.float16)], ids=["scalar", "narrow"])
def test_activations_of_another_shape(open_session: Open, x: Any) -> None:
    fed = ("x", TensorProto.FLOAT16, [None] * np.ndim(x))
    arguments = ("MatMulNBits", random_weight(32, 64), [fed], TensorProto.FLOAT16, None)
    message = refusal(lambda: open_session(make(*arguments)).run(None, {"x": np.array(x)}))
    assert "whose last dimension must be K = 64" in message


def test_the_gpu_library_is_registered_where_onnxruntime_has_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, found = tmp_path / "libonnxq_native.so", tmp_path / "libonnxq_cuda.so"
    monkeypatch.setattr(native, "path", lambda: built)
    monkeypatch.setattr(native, "cuda_path", lambda: found)
    providers: list[str] = ["CPUExecutionProvider"]
    monkeypatch.setattr(installed.require(), "get_available_providers", lambda: providers)
    assert library.ops_library() == built
    providers.insert(0, "CUDAExecutionProvider")
    assert library.ops_library() == found
    monkeypatch.setattr(native, "cuda_path", lambda: None)
    assert library.ops_library() == built


@pytest.mark.skipif(native.cuda_path() is None, reason="libonnxq_cuda was not built: no CUDA compiler")
def test_without_a_gpu_the_gpu_library_computes_on_the_processor() -> None:
    w, x = random_weight(32, 64), random_x(3, 64, np.dtype(np.float32)).reshape(1, 3, 64)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(native.cuda_path()))
    model = matmul(w, TensorProto.FLOAT).SerializeToString()
    (y,) = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert_near(y, x.astype(np.float64) @ w.values.T, 0.01)
