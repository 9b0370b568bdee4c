"""Models made by onnxruntime.quantization: what the doctor says of each, and where their error comes from."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import shape_inference
from tiny import model, normal, save

from onnxq.checking.layers.by_layer import by_layer
from onnxq.checking.layers.result import ByLayer
from onnxq.cli import main
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Severity
from onnxq.doctor.mend import mend
from onnxq.samples.sampling import Sampling

quantization = pytest.importorskip("onnxruntime.quantization")

IMAGES = """g (float[1, 8, 12, 12] x) => (float[1, 16] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, f, b)
    r = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (r, h)
    s = Add (c, r)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
    p = GlobalAveragePool (m)
    l = Flatten (p)
    y = MatMul (l, w)
}"""
CONSTANTS = {"f": normal(16, 8, 3, 3), "b": normal(16), "h": normal(16, 16, 3, 3, seed=1), "w": normal(16, 16, seed=2)}
WORDS = """g (float[8, 64] x) => (float[8, 64] y) {
    a = MatMul (x, v)
    r = Relu (a)
    y = MatMul (r, w)
}"""
MATRICES = {"v": normal(64, 128, seed=4), "w": normal(128, 64, seed=5)}


class Images:
    """What onnxruntime's tool reads samples from."""

    def __init__(self, images: NDArray) -> None:
        self._rest: Iterator[NDArray] = iter(images)

    def get_next(self) -> dict[str, NDArray] | None:
        x = next(self._rest, None)
        return None if x is None else {"x": x}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The tool's advice on pre-processing is not the matter here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Sampling, NDArray]:
    x = normal(8, 1, 8, 12, 12, seed=3) * 4
    np.savez(tmp_path / "images.npz", x=x)
    proto = shape_inference.infer_shapes(model(IMAGES, CONSTANTS))
    return save(proto, tmp_path, "float.onnx"), Sampling(str(tmp_path / "images.npz")), x


@pytest.fixture
def words(tmp_path: Path) -> tuple[Path, Sampling]:
    np.savez(tmp_path / "words.npz", x=normal(4, 8, 64, seed=6))
    return save(model(WORDS, MATRICES), tmp_path, "words.onnx"), Sampling(str(tmp_path / "words.npz"))


def named(found: ByLayer) -> dict[str, float]:
    return {layer.a: layer.sqnr for layer in found.layers}


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
def test_static(tmp_path: Path, images: tuple[Path, Sampling, NDArray], form: str, kind: str) -> None:
    path, sampling, x = images
    out = tmp_path / "out.onnx"
    types = {"activation_type": quantization.QuantType[kind], "weight_type": quantization.QuantType.QInt8}
    quantization.quantize_static(path, out, Images(x), quant_format=quantization.QuantFormat[form], **types)
    layers = by_layer(path, out, sampling)
    assert not layers.notes and {"s", "y", "r"} <= set(named(layers))
    assert all(layer.local_sqnr is not None and layer.local_sqnr >= layer.sqnr - 1 for layer in layers.layers)
    assert min(named(layers).values()) > 15 and layers.first_apart is not None and layers.first_apart.a == "x"
    diagnosis = examine(out, sampling=sampling)
    assert diagnosis.kernels and not [each for each in diagnosis.findings if each.severity is Severity.ERROR]
    fell_back = [each for each in diagnosis.findings if each.rule == "islands-in-float" and "Conv ran" in each.message]
    ran = diagnosis.in_float.get("Conv", 0) + diagnosis.in_float.get("FusedConv", 0)
    assert ran == len(fell_back) and all("its activations are int8" in each.message for each in fell_back)
    if kind == "QUInt8":
        assert diagnosis.kernels["QLinearConv"] == 2 and not ran


def test_dynamic(tmp_path: Path, words: tuple[Path, Sampling]) -> None:
    path, sampling = words
    out = tmp_path / "out.onnx"
    quantization.quantize_dynamic(path, out)
    diagnosis = examine(out)
    assert diagnosis.kernels == {"DynamicQuantizeMatMul": 2} and "2 MatMulInteger" in diagnosis.quantized
    assert diagnosis.worst in (None, Severity.NOTE)
    layers = by_layer(path, out, sampling)
    assert list(named(layers)) == ["a", "r", "y"] and not layers.unpaired_a and not layers.unpaired_b
    assert [layer.op_b for layer in layers.layers] == ["MatMulInteger", "Relu", "MatMulInteger"]
    assert [layer.role for layer in layers.layers][:2] == ["adds", "passes"] and min(named(layers).values()) > 30


def test_four_bits(tmp_path: Path, words: tuple[Path, Sampling]) -> None:
    nbits = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    path, sampling = words
    quantizer = nbits.MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True)
    quantizer.process()
    out = save(quantizer.model.model, tmp_path, "out.onnx")
    diagnosis = examine(out)
    assert diagnosis.kernels == {"MatMulNBits": 2} and diagnosis.findings == ()
    assert {each.rule for each in examine(out, target="onnx").findings} == {"missing-domain"}
    layers = by_layer(path, out, sampling)
    assert [layer.role for layer in layers.layers] == ["adds", "passes", "adds"]
    assert all(15 < decibel < 40 for decibel in named(layers).values())


def test_four_bits_as_qdq(tmp_path: Path, words: tuple[Path, Sampling]) -> None:
    nbits = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    path, _ = words
    form = quantization.QuantFormat.QDQ
    quantizer = nbits.MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True, quant_format=form)
    quantizer.process()
    out = save(quantizer.model.model, tmp_path, "out.onnx")
    diagnosis = examine(out)
    # onnxruntime fuses no product with a Relu behind it that others read: its weight is unpacked in every run.
    places = {(each.rule, each.place) for each in diagnosis.findings}
    assert places == {("unpacked-in-every-run", "v_DQ_Q4_output"), ("level-4", "y")}
    assert diagnosis.kernels == {"MatMulNBits": 1} and diagnosis.in_float == {"MatMul": 1}


def test_the_page_runs(tmp_path: Path, images: tuple[Path, Sampling, NDArray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/doctor.md, on a model with a constant twice and one whose weights were rounded a little."""
    _, _, x = images
    save(model(IMAGES, CONSTANTS | {"again": CONSTANTS["h"]}), tmp_path)
    save(model(IMAGES, CONSTANTS | {"h": np.round(CONSTANTS["h"], 3)}), tmp_path, "model.w8a8.onnx")
    np.savez(tmp_path / "samples.npz", x=x)
    (tmp_path / "models").mkdir()
    save(model(IMAGES, CONSTANTS), tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    commands = [
        line for block in re.findall(r"^```sh\n([\s\S]*?)^```", page, re.MULTILINE) for line in block.splitlines()
    ]
    assert len(commands) == 6
    for command in commands:
        _, *words = shlex.split(command.partition(" > ")[0])
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, f"{command}: {done.output}"


def test_what_its_files_hold_for_nothing_is_mended(tmp_path: Path, images: tuple[Path, Sampling, NDArray]) -> None:
    path, sampling, x = images
    out = tmp_path / "out.onnx"
    quantization.quantize_static(path, out, Images(x))
    proto = onnx.load(out)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(CONSTANTS["h"], "forgotten"))
    done = mend(save(proto, tmp_path, "out.onnx"), tmp_path / "mended.onnx", sampling=sampling)
    assert done.rules == ("unused-initializers",) and done.check is not None and done.check.sqnr == 120
