"""GGUF files: what is written is what the gguf package reads, and what is damaged is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq import formats
from onnxq.checkpoints.encode_arrays import decode_file
from onnxq.checkpoints.gguf_file import Gguf, write_gguf
from onnxq.errors import BadData, BadModel, BadOutput
from onnxq.formats import Granularity, QuantizedTensor

W = np.random.default_rng(0).standard_normal((3, 5, 256)).astype(np.float32)
TYPES = [word for word in formats.names() if formats.get(word).gguf]
METADATA = {"general.name": "mäuse", "a.count": -(1 << 40), "a.share": 0.1, "a.flag": True}


def written(path: Path, **options: object) -> dict[str, QuantizedTensor | np.ndarray]:
    tensors = {word: formats.quantize(W, word) for word in TYPES} | {
        "float32": W[0],
        "vector": W[0, 0, :7],
        "int64": np.arange(6).reshape(2, 3),
    }
    write_gguf(path, [(name, lambda tensor=tensor: tensor) for name, tensor in tensors.items()], METADATA, **options)
    return tensors


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_the_gguf_package_reads_what_is_written(tmp_path: Path, alignment: int) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "w.gguf"
    tensors = written(path, alignment=alignment)
    reader = gguf.GGUFReader(path)
    read = {tensor.name: tensor for tensor in reader.tensors}
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        found = read[name]
        assert tuple(found.shape[::-1]) == tensor.shape and found.data_offset % alignment == 0
        if isinstance(tensor, QuantizedTensor):
            floats = gguf.quants.dequantize(found.data, found.tensor_type).reshape(tensor.shape)
            np.testing.assert_array_equal(floats, tensor.dequantize())
            if tensor.format.stored_scales is not None:  # which the package only decodes
                continue
            # By the format's own rule: the very bytes that ggml makes of these weights.
            bytes_of_ggml = gguf.quants.quantize(W, found.tensor_type)
            np.testing.assert_array_equal(
                found.data.view(np.uint8).reshape(-1), bytes_of_ggml.view(np.uint8).reshape(-1)
            )
        else:
            np.testing.assert_array_equal(np.asarray(found.data).reshape(tensor.shape), tensor)
    assert {key: reader.fields[key].contents() for key in METADATA} == METADATA


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_what_was_written_comes_back(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "w.gguf"
    tensors = written(path, alignment=alignment)
    read = Gguf(path)
    assert METADATA.items() <= read.metadata.items() and list(read) == list(tensors)
    for name, wanted in tensors.items():
        got = read[name]
        if isinstance(wanted, QuantizedTensor) and isinstance(got, QuantizedTensor):
            np.testing.assert_array_equal(got.codes, wanted.codes)
            got, wanted = got.dequantize(), wanted.dequantize()
        elif isinstance(wanted, QuantizedTensor):
            wanted = wanted.codes  # float16, bfloat16
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_what_gguf_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    refused = {
        "rows of whole blocks of 32": formats.quantize(W[0, :, :33], "q4_0"),
        "GGUF has no nf4": formats.quantize(W, "nf4"),
        "along the last axis": formats.quantize(W[0, :, :5].T.repeat(32, 0), "q4_0", Granularity(0, 32)),
        "of type complex64": W.astype(np.complex64),
        "has 5 axes": W.reshape(1, 1, *W.shape),
    }
    for words, tensor in refused.items():
        with pytest.raises(BadModel, match=words):
            write_gguf(path, [("w", lambda tensor=tensor: tensor)])
    with pytest.raises(BadModel, match="two tensors 'w'"):
        write_gguf(path, [("w", lambda: W), ("w", lambda: W)])
    with pytest.raises(ValueError, match="no multiple of 8"):
        write_gguf(path, [], alignment=12)
    with pytest.raises(ValueError, match="the metadata 'a' is None"):
        write_gguf(path, [], {"a": None})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())
    path.write_text("mine")
    with pytest.raises(BadOutput, match="came into being"):
        write_gguf(path, [("w", lambda: W)])
    assert path.read_text() == "mine"


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_damaged_files_are_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("g") / "w.gguf"
    word = data.draw(st.sampled_from(["q5_1", "q4_k", "tq1_0"]))
    write_gguf(path, [("a", lambda: formats.quantize(W[0], word)), ("b", lambda: W[0, 0])], METADATA)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, min(300, len(raw) - 1)))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        tensors = Gguf(path)
    except BadData:
        return
    for tensor in tensors.values():
        assert np.prod(tensor.shape) <= len(raw) * 2


@pytest.mark.parametrize("word", TYPES)
def test_tensors_of_no_rows_are_of_no_rows(word: str, tmp_path: Path) -> None:
    """As files of strangers may have them."""
    path = tmp_path / "w.gguf"
    write_gguf(path, [("a", lambda: formats.quantize(np.ones((1, 256), np.float32), word))])
    raw = bytearray(path.read_bytes())
    at = raw.index(struct.pack("<IQQ", 2, 256, 1))
    raw[at : at + 20] = struct.pack("<IQQ", 2, 256, 0)
    path.write_bytes(raw)
    assert Gguf(path)["a"].shape == dict(decode_file(path))["a"]().shape == (0, 256)
