"""Types of ggml that are no formats of onnxq: read as the gguf package decodes them, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onnxq.checkpoints import gguf_foreign, schemes
from onnxq.checkpoints.checkpoint import open_folder_or_file
from onnxq.checkpoints.gguf_file import Gguf
from onnxq.errors import BadData
from onnxq.formats import QuantizedTensor

gguf = pytest.importorskip("gguf")
#: Where the float16 scale of a block lies; IQ1_M spreads its over four words, NVFP4 has none.
SCALES = {29: None, 40: None}


def written(number: int, path: Path) -> np.ndarray:
    """A file of random blocks, and what the package says they are."""
    word, block, each = gguf_foreign.BLOCKS[number]
    rng = np.random.default_rng(number)
    raw = rng.integers(0, 256, (3, 512 // block, each)).astype(np.uint8)
    if number not in SCALES:
        raw[..., :2] = rng.uniform(0.01, 0.1, (3, 512 // block, 1)).astype("<f2").view(np.uint8)
    elif number == 29:  # the four highest nibbles of the scales: 0x2…, a small float16
        raw[..., 49::2] = raw[..., 49::2] & 15
        raw[..., 55] |= 0x20
    else:
        raw[..., :4] = rng.integers(0x20, 0x40, raw[..., :4].shape)
    kind = gguf.GGMLQuantizationType[word]
    flat = raw.reshape(3, -1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", flat, raw_dtype=kind)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return np.asarray(gguf.quants.dequantize(flat, kind))


@pytest.mark.parametrize("number", gguf_foreign.BLOCKS)
def test_as_the_package_decodes_it(tmp_path: Path, number: int) -> None:
    if gguf_foreign.BLOCKS[number][0] not in gguf.GGMLQuantizationType.__members__:
        pytest.skip("an older gguf")
    wanted = written(number, tmp_path / "w.gguf")
    assert np.isfinite(wanted).all()
    found = Gguf(tmp_path / "w.gguf")["blk.0.ffn_up.weight"]
    is_exact = gguf_foreign.format_of(number) is not None
    assert isinstance(found, QuantizedTensor) == is_exact
    np.testing.assert_array_equal(found.dequantize() if isinstance(found, QuantizedTensor) else found, wanted)
    (layer,) = schemes.layers_of(open_folder_or_file(tmp_path / "w.gguf"))
    assert layer.aliases == ("model.layers.0.mlp.up_proj",)
    stored = layer.open()
    assert not stored.is_float
    np.testing.assert_array_equal(stored.floats(), wanted)


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(16, tmp_path / "w.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(BadData, match="is of ggml's IQ2_XXS, which the package gguf decodes: install gguf"):
        Gguf(tmp_path / "w.gguf")["blk.0.ffn_up.weight"]
