"""Files of weights: what is told of tensors without reading them, and types that an `.npz` has no word for."""

from __future__ import annotations

import functools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny

from onnxq.checkpoints import gguf_file, schemes
from onnxq.checkpoints.checkpoint import open_folder_or_file, outline
from onnxq.checkpoints.encode_arrays import encode_arrays, write_weights
from onnxq.checkpoints.matching import leftovers
from onnxq.checkpoints.own_arrays import as_prepared
from onnxq.checkpoints.tensors import CODES, open_checkpoint
from onnxq.errors import BadData


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_types_and_shapes_are_known_without_reading(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of tens of thousands of tensors is looked through many times before any is read. A file is mapped
    once, as each map takes a descriptor for as long as its array lives."""
    arrays = {f"{i}.weight": tiny.normal(8, 8, seed=i) for i in range(20)} | {"index": np.arange(3)}
    write_weights(tmp_path / f"w{suffix}", [(name, functools.partial(lambda x: x, x)) for name, x in arrays.items()])
    mapped, opened = list[object](), list[str]()
    memmap = np.memmap

    class Counted(memmap):  # type: ignore[misc, valid-type]
        def __new__(cls, *args: object, **options: object) -> object:
            mapped.append(args)
            return memmap(*args, **options)

    monkeypatch.setattr(np, "memmap", Counted)
    checkpoint = open_folder_or_file(tmp_path / f"w{suffix}")
    file = type(next(iter(checkpoint.shards.values())))
    read = file.__getitem__
    monkeypatch.setattr(file, "__getitem__", lambda self, name: opened.append(name) or read(self, name))
    assert {name: tuple(outline(checkpoint, name)) for name in arrays} == {
        name: (x.shape, x.dtype.kind) for name, x in arrays.items()
    }
    assert len(schemes.layers_of(checkpoint)) == 20 and leftovers.vanished(checkpoint, ["index"], ()) == []
    model = tiny.model("g (float[n] x) => (float[n] y) { y = Relu (x) }", {})
    as_prepared(tiny.read(model), checkpoint, lambda: tiny.read(model))
    assert not {*opened} & {*arrays}
    for name, x in arrays.items():
        np.testing.assert_array_equal(checkpoint[name], x)
    assert len(mapped) == (suffix == ".safetensors")


def test_codes_are_not_unpacked_for_their_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_arrays({"w": tiny.normal(8, 64)}, tmp_path / "w.gguf", "q8_0")
    checkpoint = open_folder_or_file(tmp_path / "w.gguf")
    monkeypatch.setattr(gguf_file.Gguf, "__getitem__", lambda *_: pytest.fail("it was read"))
    assert outline(checkpoint, "w") == ((8, 64), CODES)


@pytest.mark.parametrize("change", ["word", "json", "bits"])
def test_types_that_fit_no_array_are_told(change: str, tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    write_weights(path, [("a", lambda: np.ones((2, 3), ml_dtypes.bfloat16))])
    np.testing.assert_array_equal(open_checkpoint(path)["a"], np.ones((2, 3), ml_dtypes.bfloat16))
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored}
    said = {"word": b'{"a": "F32"}', "json": b"[", "bits": b'{"a": "F8_E4M3"}'}[change]
    np.savez(path, **arrays | {"onnxq.types.json": np.frombuffer(said, np.uint8)})
    with pytest.raises(BadData, match=r"is damaged: '(a' is of type uint16|onnxq\.types\.json' names no types)"):
        open_checkpoint(path)["a"]
