"""Nodes that cannot be computed are refused with a sentence, through onnxruntime's status; nothing crashes."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import nodes
import numpy as np
import onnx
import pytest
from kernels import weight
from nodes import FLOAT16, activations
from onnx import TensorProto

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

W = weight("int4", 20, 64, 32, zeros=True)
NF4 = weight("nf4", 20, 64, 32)
TILES, SCALES, ZEROS = W.tiles, W.by_tile(W.scales), W.by_tile(W.zeros)
X = activations((2, 64))
HUGE = 2**31 - 1

ATTRIBUTES: list[tuple[dict[str, Any], str]] = [
    ({"K": None}, "attribute K must be a whole number from 1"),
    ({"K": 0}, "attribute K must be"),
    ({"K": -64}, "attribute K must be"),
    ({"K": 2**31}, "attribute K must be"),
    ({"K": 64.0}, "attribute K must be"),
    ({"K": "64"}, "attribute K must be"),
    ({"N": None}, "attribute N must be"),
    ({"N": -1}, "attribute N must be"),
    ({"N": 2**62}, "attribute N must be"),
    ({"block_size": None}, "block_size must be a multiple of 16 from 16 to 256, not 0"),
    ({"block_size": 8}, "block_size must be a multiple of 16"),
    ({"block_size": 40}, "not 40"),
    ({"block_size": 512}, "not 512"),
    ({"block_size": -32}, "not -32"),
    ({"block_size": -(2**63)}, "block_size must be"),
    ({"format": None}, "attribute format is ''"),
    ({"format": "int5"}, "is 'int5', but must be one of int4, int8, nf4, fp4, mxfp4, e2m1"),
    ({"format": 4}, "attribute format is ''"),
    ({"format": "int4\0"}, "attribute format"),
    ({"activations": "quick"}, "is 'quick', but must be fast or exact"),
    # Sizes that the tensors do not have, up to those whose product overflows.
    ({"K": 65}, r"weight has shape \[2, 8, 16, 4\]; K = 65, N = 20 and block_size = 32 ask for \[2, 12, 16, 4\]"),
    ({"N": 33}, r"ask for \[3, 8, 16, 4\]"),
    ({"K": HUGE, "N": HUGE}, r"ask for \[134217728, 268435456, 16, 4\]"),
    ({"block_size": 64}, r"scales has shape \[2, 2, 16\].* ask for \[2, 1, 16\]"),
    ({"format": "int8"}, "weight has shape"),
    ({"format": "nf4"}, "only integer formats have them"),
]
CONSTANTS: list[tuple[dict[str, Any], str]] = [
    ({"weight": TILES[:1]}, r"weight has shape \[1, 8, 16, 4\]"),
    ({"weight": TILES[:, :-1]}, "weight has shape"),
    ({"weight": TILES[:0]}, "weight has shape"),
    ({"weight": TILES.reshape(-1)}, r"weight has shape \[1024\]"),
    ({"weight": TILES.reshape(2, 8, 64)}, "weight has shape"),
    ({"weight": np.array(3, np.uint8)}, r"weight has shape \[\]"),
    ({"weight": TILES.astype(np.int8)}, "the/node|Input1"),  # onnxruntime's own sentence
    ({"scales": SCALES[:, :1]}, "scales has shape"),
    ({"scales": SCALES.reshape(-1)}, "scales has shape"),
    ({"scales": SCALES[:0]}, "scales has shape"),
    ({"scales": SCALES.astype(np.float64)}, "scales must be float32, float16 or uint8"),
    ({"scales": SCALES.astype(np.int32)}, "scales must be"),
    ({"scales": np.full(SCALES.shape, "1", object)}, "scales must be|Input2"),
    ({"zero_points": ZEROS[:1]}, "zero_points has shape"),
    ({"zero_points": ZEROS[..., :8]}, "zero_points has shape"),
    ({"zero_points": ZEROS.astype(np.float32)}, "the/node|Input3"),
    ({"bias": np.zeros(19, np.float32)}, r"bias has shape \[19\], but must be \[20\]"),
    ({"bias": np.zeros((1, 20), np.float32)}, "bias has shape"),
    ({"bias": np.zeros(0, np.float32)}, "bias has shape"),
    ({"bias": np.zeros(20, np.float16)}, "the/node|Input4"),
]


def refusal(model: onnx.ModelProto, **feed: Any) -> str:
    """Of the session or of its run, whichever comes first."""
    try:
        session = onnxq.session(model.SerializeToString(), _quiet())
    except BadModel as error:
        return str(error)
    with pytest.raises(Exception) as error:  # onnxruntime's exceptions share no base class
        session.run(None, feed)
    return str(error.value)


@pytest.mark.parametrize(("attributes", "reason"), ATTRIBUTES, ids=lambda value: str(value)[:40])
def test_attributes(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadModel, match=reason):
        onnxq.session(nodes.matmul(W, **attributes).SerializeToString(), _quiet())


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", range(len(CONSTANTS)), ids=lambda i: f"{next(iter(CONSTANTS[i][0]))}-{i}")
def test_tensors(case: int, constant: bool) -> None:
    """The same sentence whether a tensor is in the file or an input of the graph."""
    constants, reason = CONSTANTS[case]
    inputs = () if constant else tuple(constants)
    model = nodes.matmul(W, constants=constants, inputs=inputs)
    assert re.search(reason, refusal(model, x=X, **({} if constant else constants)))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.float32(1), r"x has shape \[\], whose last dimension must be K = 64"),
        (np.zeros((2, 63), np.float32), r"x has shape \[2, 63\]"),
        (np.zeros((64, 2), np.float32), r"x has shape \[64, 2\]"),
        (np.zeros((2, 0), np.float32), r"x has shape \[2, 0\]"),
    ],
    ids=["scalar", "narrow", "turned", "empty"],
)
def test_activations(x: Any, reason: str) -> None:
    shape = [None] * np.ndim(x)
    with pytest.raises(Exception, match=reason):
        onnxq.session(nodes.matmul(W, x_shape=tuple(shape)).SerializeToString(), _quiet()).run(None, {"x": np.array(x)})


@pytest.mark.parametrize("type", [TensorProto.DOUBLE, TensorProto.INT8, TensorProto.STRING, TensorProto.UINT8])
def test_types_of_activations(type: int) -> None:
    with pytest.raises(BadModel, match="refuses the model"):
        onnxq.session(nodes.matmul(W, type=type).SerializeToString(), _quiet())


@pytest.mark.parametrize("count", [0, 1, 2])
def test_missing_inputs(count: int) -> None:
    model = nodes.matmul(NF4)
    del model.graph.node[0].input[count:]
    assert refusal(model, x=X)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_blank_inputs(index: int) -> None:
    model = nodes.matmul(NF4)
    model.graph.node[0].input[index] = ""
    assert refusal(model, x=X)


@pytest.mark.parametrize("index", [20, -21, 2**31 - 1, -(2**31), 2**62, -(2**63)], ids=str)
def test_indices_outside_of_the_table(index: int) -> None:
    reason = refusal(nodes.gather(W), i=np.array([0, index], np.int64))
    assert f"index {index} is outside of the table's 20 rows" in reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dtype": 11}, "dtype must be 1"),
        ({"indices": TensorProto.FLOAT}, "indices must be int32 or int64"),
        ({"indices": TensorProto.UINT8}, "indices must be"),
        ({"K": 65}, "weight has shape"),
        ({"format": "q9"}, "must be one of"),
    ],
    ids=str,
)
def test_gather(arguments: dict[str, Any], reason: str) -> None:
    type = arguments.get("indices", TensorProto.INT64)
    indices = np.zeros(2, {TensorProto.FLOAT: np.float32, TensorProto.UINT8: np.uint8}.get(type, np.int64))
    model = nodes.gather(W, **arguments)
    if arguments.get("dtype"):
        model.graph.output[0].type.tensor_type.elem_type = 1
    assert re.search(reason, refusal(model, i=indices))


def test_a_type_the_node_does_not_give() -> None:
    """float16 is promised to whoever reads y, and dtype says float32."""
    model = nodes.gather(W)
    model.graph.output[0].type.tensor_type.elem_type = FLOAT16
    assert refusal(model, i=np.zeros(2, np.int64))


def test_names_of_any_length() -> None:
    """A refusal names its node."""
    for name in ("", "é" * 500, "%s%n%d"):
        model = nodes.matmul(W, block_size=8)
        model.graph.node[0].name = name
        with pytest.raises(BadModel, match="block_size"):
            onnxq.session(model.SerializeToString(), _quiet())


def _quiet() -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


DENSE = weight("bfloat16", 20, 64, 32)
BITS = DENSE.tiles.view(np.uint16)


@pytest.mark.parametrize(
    ("attributes", "constants", "reason"),
    [
        ({"K": None}, {}, "attribute K must be a whole number from 1"),
        ({"N": 0}, {}, "attribute N must be"),
        ({"activations": "quick"}, {}, "is 'quick', but must be fast or exact"),
        ({"K": 65}, {}, r"weight has shape \[2, 32, 16, 2\]; K = 65, N = 20 .* ask for \[2, 48, 16, 2\]"),
        ({"K": HUGE, "N": HUGE}, {}, "ask for"),
        ({}, {"weight": BITS[:1].view(ml_dtypes.bfloat16)}, r"weight has shape \[1, 32, 16, 2\]"),
        ({}, {"bias": np.zeros(19, np.float32)}, r"bias has shape \[19\], but must be \[20\]"),
    ],
    ids=str,
)
def test_dense(attributes: dict[str, Any], constants: dict[str, Any], reason: str) -> None:
    model = nodes.dense(DENSE, constants=constants, **attributes).SerializeToString()
    with pytest.raises(BadModel, match=reason):
        onnxq.session(model)


def test_dense_weights_of_another_type() -> None:
    """A kernel takes bfloat16 or float16, and no other is registered."""
    model = nodes.dense(DENSE, constants={"weight": BITS.view(np.int16)}).SerializeToString()
    with pytest.raises(BadModel, match="onnxruntime refuses"):
        onnxq.session(model)
