"""The operator Recurrent as onnxruntime runs it, by the library and by its body, against onnxruntime's own layers."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from recurrent import GRU, LINEAR_BEFORE_RESET, LSTM, RNN, Layer, kernel_for, layer
from recurrent_nodes import DIRECTIONS, constants, feed, own, standard

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

KERNELS = [isa for isa in kernels.isas() if kernel_for(isa) == isa]
#: Between results of which one has activations of 15 bits, or of 8, where sums are of some dozens of numbers.
NEAR = {"exact": 2e-3, "fast": 0.1}


@pytest.fixture(params=[*KERNELS, ""], ids=[*KERNELS, "chosen"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", request.param)
    return request.param


def options() -> Any:
    made = ort.SessionOptions()
    made.log_severity_level = 4  # what is refused is raised as well
    made.intra_op_num_threads = 2
    return made


def by_library(model: onnx.ModelProto, fed: dict[str, NDArray]) -> list[NDArray]:
    return onnxq.session(model.SerializeToString(), options()).run(None, fed)


def by_runtime(model: onnx.ModelProto, fed: dict[str, NDArray]) -> list[NDArray]:
    return ort.InferenceSession(model.SerializeToString(), options()).run(None, fed)


def layer_of(cell: int, direction: str, clip: float = np.inf) -> Layer:
    backward, count = DIRECTIONS[direction]
    return layer(cell, 9, 21, count, backward=backward, clip=clip)


@pytest.mark.pairwise
@pytest.mark.parametrize("activations", ["exact", "fast"])
@pytest.mark.parametrize("clip", [np.inf, 0.7])
@pytest.mark.parametrize(
    "words", [(), ("bias",), ("bias", "h", "c"), ("bias", "lens", "h", "c"), ("h",), ("lens",), ("c",)], ids=str
)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", [LSTM, GRU, LINEAR_BEFORE_RESET, RNN], ids=["lstm", "gru", "late", "rnn"])
def test_everything_a_layer_may_say(
    forced: str, cell: int, direction: str, words: tuple[str, ...], clip: float, activations: str
) -> None:
    of = layer_of(cell, direction, clip)
    words = tuple(word for word in words if cell == LSTM or word != "c")
    fed = feed(of, 6, 3, words)
    model = own(of, direction, words, activations=activations)
    wanted = by_runtime(standard(of, direction, words), fed)
    for y, of_body, exact in zip(by_library(model, fed), by_runtime(model, fed), wanted, strict=True):
        np.testing.assert_allclose(
            of_body, exact, rtol=0, atol=1e-6
        )  # folded weights are those of the standard's layer
        np.testing.assert_allclose(y, exact, rtol=0, atol=NEAR[activations])
        assert np.any(y != exact)


@pytest.mark.parametrize(
    "outputs",
    [("y", "", ""), ("", "last_h", ""), ("", "", "last_c"), ("y", "", "last_c"), ("y", "last_h", "")],
    ids=str,
)
def test_outputs_that_nobody_asks_for(outputs: tuple[str, ...]) -> None:
    of = layer_of(LSTM, "bidirectional")
    fed = feed(of, 5, 2, ("bias", "h", "c"))
    all_of_it = dict(
        zip(("y", "last_h", "last_c"), by_library(own(of, "bidirectional", ("bias", "h", "c")), fed), strict=True)
    )
    model = own(of, "bidirectional", ("bias", "h", "c"), outputs=outputs)
    for made in (by_library(model, fed), by_runtime(model, fed)):
        for name, y in zip([name for name in outputs if name], made, strict=True):
            np.testing.assert_allclose(y, all_of_it[name], rtol=0, atol=NEAR["exact"])


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("cell", [LSTM, LINEAR_BEFORE_RESET])
def test_no_step_and_no_sequence(cell: int, steps: int) -> None:
    """Without a step states are zeros, as onnxruntime gives; without a sequence there is nothing."""
    of = layer_of(cell, "forward")
    words = ("bias", "h", "c") if cell == LSTM else ("bias", "h")
    for y in by_library(own(of, "forward", words), feed(of, 0, 3, words)):
        assert y.shape[-2:] == (3, 21)
        assert not np.any(y)
    for y in by_library(own(of, "forward", words), feed(of, steps, 0, words)):
        assert y.shape[-2:] == (0, 21)


def test_weights_may_be_computed(forced: str) -> None:
    of = layer_of(LSTM, "forward")
    fed = feed(of, 4, 2, ("bias",))
    wanted = by_library(own(of), fed)
    names = (*constants(of), "bias")
    given = constants(of) | {"bias": of.both}
    for y, exact in zip(by_library(own(of, inputs=names), fed | given), wanted, strict=True):
        np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize("start", [0, 1, 3, 64])
def test_external_weights_may_begin_anywhere(forced: str, start: int, tmp_path: Path) -> None:
    of = layer_of(GRU, "forward")
    model, fed, data = own(of), feed(of, 3, 1, ("bias",)), b"?" * start
    wanted = by_library(model, fed)
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        set_external_data(tensor, "m.data", offset=len(data), length=len(raw))
        tensor.ClearField("raw_data")
        data += raw + b"?" * (1 if start else -len(raw) % 64)
    (tmp_path / "m.data").write_bytes(data)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for y, exact in zip(onnxq.session(tmp_path / "m.onnx").run(None, fed), wanted, strict=True):
        np.testing.assert_array_equal(y, exact)


def test_in_a_branch(forced: str) -> None:
    """Weights lie in the graph around it."""
    of = layer_of(LSTM, "forward")
    model, fed = own(of), feed(of, 4, 1, ("bias",))
    inner = [model.graph.node[0], helper.make_node("Identity", ["y"], ["then"])]
    other = helper.make_node("Neg", ["x"], ["otherwise"])
    info = helper.make_tensor_value_info
    branches = {
        "then_branch": helper.make_graph(inner, "a", [], [info("then", 1, None)]),
        "else_branch": helper.make_graph([other], "b", [], [info("otherwise", 1, None)]),
    }
    node = helper.make_node("If", ["yes"], ["result"], **branches)
    made = helper.make_graph(
        [node],
        "g",
        [info("yes", TensorProto.BOOL, []), *model.graph.input],
        [info("result", 1, None)],
        model.graph.initializer,
    )
    whole = helper.make_model(made, functions=model.functions, opset_imports=model.opset_import, ir_version=10)
    wanted = by_library(own(of), fed)[0]
    np.testing.assert_array_equal(by_library(whole, fed | {"yes": np.array(True)})[0], wanted)
    np.testing.assert_array_equal(by_library(whole, fed | {"yes": np.array(False)})[0], -fed["x"])


def test_many_threads_on_one_session(forced: str) -> None:
    """A session keeps nothing from run to run."""
    of = layer(LSTM, 9, 21, 2)
    session = onnxq.session(own(of, "bidirectional", ("bias", "h", "c")).SerializeToString(), options())
    fed = [feed(of, 1 + 7 * i, 1 + i % 3, ("bias", "h", "c"), seed=i) for i in range(8)]
    alone = [session.run(None, each) for each in fed]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for made, wanted in zip(pool.map(lambda each: session.run(None, each), fed), alone, strict=True):
                for y, exact in zip(made, wanted, strict=True):
                    np.testing.assert_array_equal(y, exact)


# --- what cannot be right ---------------------------------------------------------------------------------------------

OF = layer(LSTM, 9, 21)
PARTS = constants(OF)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cell": None}, "attribute cell is '', but must be LSTM, GRU or RNN"),
    ({"cell": "lstm"}, "attribute cell is 'lstm'"),
    ({"cell": "GRU"}, r"weight has shape \[1, 2, 3, 4, 16, 4\], but must have \[1, 2, 3, 3, 16, 4\]"),
    ({"direction": "sideways"}, "attribute direction is 'sideways'"),
    ({"direction": "bidirectional"}, "weight has shape"),
    ({"hidden_size": None}, "hidden_size and input_size must be whole numbers from 1 to 65536"),
    ({"hidden_size": 0}, "hidden_size and input_size"),
    ({"hidden_size": -21}, "hidden_size and input_size"),
    ({"hidden_size": 65537}, "hidden_size and input_size"),
    ({"hidden_size": 2**62}, "hidden_size and input_size"),
    ({"hidden_size": 20}, r"recurrence has shape \[1, 2, 6, 4, 16, 4\], but must have \[1, 2, 5, 4, 16, 4\]"),
    ({"hidden_size": 22}, r"bias has shape \[1, 168\], but must have \[1, 176\]"),
    ({"hidden_size": 40}, "weight has shape"),
    ({"input_size": 13}, "weight has shape"),
    ({"input_size": 2**31}, "hidden_size and input_size"),
    ({"activations": "quick"}, "is 'quick', but must be fast or exact"),
    ({"clip": -1.0}, "attribute clip must be a number above 0"),
    ({"clip": 0.0}, "attribute clip"),
    ({"clip": float("nan")}, "attribute clip"),
]
TENSORS: list[tuple[dict[str, NDArray], str]] = [
    ({"weight": PARTS["weight"][:, :1]}, r"weight has shape \[1, 1, 3, 4, 16, 4\]"),
    ({"weight": PARTS["weight"][0]}, "weight has shape"),
    ({"weight": PARTS["weight"][:0]}, "weight has shape"),
    ({"weight": np.array(3, np.uint8)}, r"weight has shape \[\]"),
    ({"weight": PARTS["weight"].astype(np.int8)}, "the/node|Input1"),  # onnxruntime's own sentence
    ({"weight_scales": PARTS["weight_scales"].reshape(-1)}, "weight_scales has shape"),
    ({"weight_scales": PARTS["weight_scales"].astype(np.float64)}, "the/node|Input2"),
    ({"recurrence": PARTS["recurrence"][:, :, :-1]}, "recurrence has shape"),
    ({"recurrence_scales": PARTS["recurrence_scales"][..., :8]}, "recurrence_scales has shape"),
    ({"bias": OF.both[:, :-1]}, r"bias has shape \[1, 167\], but must have \[1, 168\]"),
    ({"bias": OF.both[0]}, "bias has shape"),
    ({"bias": OF.both[:0]}, "bias has shape"),
]


def refusal(model: onnx.ModelProto, fed: dict[str, Any]) -> str:
    """Of the session or of its run, whichever comes first."""
    try:
        session = onnxq.session(model.SerializeToString(), options())
    except BadModel as error:
        return str(error)
    with pytest.raises(Exception) as error:  # onnxruntime's exceptions share no base class
        session.run(None, fed)
    return str(error.value)


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=lambda value: str(value)[:30])
def test_refused_attributes(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadModel, match=reason):
        onnxq.session(own(OF, body=False, **given).SerializeToString(), options())


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", range(len(TENSORS)))
def test_refused_tensors(case: int, constant: bool) -> None:
    changed, reason = TENSORS[case]
    model = own(OF, changed=changed, inputs=() if constant else tuple(changed), body=False)
    fed = feed(OF, 3, 2, ())
    assert re.search(reason, refusal(model, fed if constant else fed | changed))


FED: list[tuple[str, NDArray, str]] = [
    ("x", np.zeros((3, 2, 8), np.float32), r"x has shape \[3, 2, 8\], but must be float32 of three dimensions"),
    ("x", np.zeros((3, 9), np.float32), "x has shape|rank"),
    ("initial_h", np.zeros((1, 3, 21), np.float32), r"initial_h has shape \[1, 3, 21\], but must have \[1, 2, 21\]"),
    ("initial_c", np.zeros((1, 2, 20), np.float32), "initial_c has shape"),
    ("sequence_lens", np.array([3, 4], np.int32), "sequence_lens holds a number that is below 0 or above .* 3"),
    ("sequence_lens", np.array([-1, 3], np.int32), "sequence_lens holds"),
    ("sequence_lens", np.array([3], np.int32), r"sequence_lens has shape \[1\]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "reason"), FED, ids=lambda value: str(value)[:20])
def test_refused_activations(name: str, x: NDArray, reason: str) -> None:
    words = ("bias", "lens", "h", "c")
    model = own(OF, "forward", words, body=False)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    assert re.search(reason, refusal(model, feed(OF, 3, 2, words) | {name: x}))


@pytest.mark.parametrize("count", range(5))
def test_missing_inputs(count: int) -> None:
    model = own(OF, body=False)
    del model.graph.node[0].input[count:]
    assert refusal(model, feed(OF, 3, 2, ()))
    model = own(OF, body=False)
    model.graph.node[0].input[count] = ""
    assert refusal(model, feed(OF, 3, 2, ()))


def test_any_bytes_are_some_weight(forced: str) -> None:
    """Codes and scales that no encoder writes: numbers come out, or none that are finite, and nothing crashes."""
    rng = np.random.default_rng(0)
    for scale in (1.0, -3.0, np.inf, np.nan, 1e38):
        changed = {
            name: rng.integers(0, 256, x.shape).astype(x.dtype) for name, x in PARTS.items() if x.dtype == np.uint8
        }
        changed |= {name: np.full_like(x, scale) for name, x in PARTS.items() if x.dtype == np.float32}
        y = by_library(own(OF, changed=changed, body=False), feed(OF, 4, 2, ("bias",)))[0]
        assert y.shape == (4, 1, 2, 21)
        if abs(scale) < 10:
            codes = [numpy_helper.to_array(each) for each in own(OF, changed=changed).graph.initializer]
            assert len(codes) == 5
            np.testing.assert_allclose(y, by_runtime(own(OF, changed=changed), feed(OF, 4, 2, ("bias",)))[0], atol=1.0)
