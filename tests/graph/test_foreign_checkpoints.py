"""Checkpoints that the code of other projects made (tests/zoo/foreign_checkpoints.py) decode to what that code says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.checkpoints import schemes
from onnxq.checkpoints.checkpoint import Checkpoint, open_folder_or_file
from onnxq.checkpoints.matching.forms import exact_forms, rounded_forms
from onnxq.checkpoints.stored import Stored
from onnxq.errors import BadModel
from onnxq.formats import QuantizedTensor

with np.load(Path(__file__).parents[2] / "models" / "foreign_checkpoints.npz") as file:
    FILES = dict(file)
CASES = sorted(name.removesuffix(".wanted") for name in FILES if name.endswith(".wanted"))
#: What each is, where its name does not begin with it.
FORMATS = {
    "awq": "uint4",
    "gptq4_ordered": "uint4",
    "gptq3_symmetric": "int4",
    "gptq8_symmetric": "int8",
    "compressed_nvfp4": "nvfp4",
    "compressed_mxfp4": "mxfp4",
    "compressed_fp8": "float8_e4m3",
    "bitsandbytes_nf4_nested": "nf4_dq_bnb",
    "bitsandbytes_fp4": "fp4",
    "hqq4": "uniform4",
    "mlx6": "uniform6",
    "torchao_int4": "int4",
}


def folder_of(case: str, path: Path) -> Path:
    (path / "model.safetensors").write_bytes(FILES[f"{case}.safetensors"].tobytes())
    (path / "config.json").write_bytes(FILES[f"{case}.config"].tobytes())
    return path


def only_layer(checkpoint: Checkpoint) -> Stored:
    (layer,) = schemes.layers_of(checkpoint)
    assert set(checkpoint) <= set(layer.tensors)  # each tensor is accounted for
    return layer.open()


@pytest.mark.parametrize("case", CASES)
def test_what_others_packed_is_what_they_unpack(tmp_path: Path, case: str) -> None:
    stored = only_layer(open_folder_or_file(folder_of(case, tmp_path)))
    found, wanted = stored.floats(), FILES[f"{case}.wanted"]
    if case == "compressed_nvfp4":  # which is given back in bfloat16
        assert np.abs(found - wanted).max() <= np.abs(wanted).max() * 2**-8
        found = wanted
    elif case.startswith(("hqq", "bitsandbytes_int8")):  # (q − z) · s, and 1 / 127 as a factor: one more rounding
        np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=3e-7 * np.abs(wanted).max())
    else:
        np.testing.assert_array_equal(found, wanted)
    assert stored.format is None or stored.format.name == FORMATS.get(case, stored.format.name)
    assert (stored.order is not None) == ("ordered" in case)


@pytest.mark.parametrize("case", CASES)
def test_exact_forms_are_exact_and_others_near(tmp_path: Path, case: str) -> None:
    stored = only_layer(open_folder_or_file(folder_of(case, tmp_path)))
    if stored.format is None:
        return
    q = stored.read()
    assert isinstance(q, QuantizedTensor)
    wanted, forms = q.dequantize(), list(exact_forms(stored))
    assert forms
    for form in forms:
        made = form.make(q)
        assert (made.format.name, made.granularity.block) == (form.word, form.block)
        np.testing.assert_allclose(made.dequantize(), wanted, rtol=2e-7)  # half the scale times twice the code
    for form in rounded_forms(stored):
        try:
            error = form.make(q).dequantize() - wanted
        except BadModel:
            continue
        assert np.square(error).sum() < 1e-4 * np.square(wanted).sum()


def parts_of(case: str, path: Path) -> tuple[dict[str, NDArray], Checkpoint]:
    checkpoint = open_folder_or_file(folder_of(case, path))
    return {name: np.array(checkpoint[name]) for name in checkpoint}, checkpoint


def of_parts(parts: dict[str, NDArray], config: Mapping[str, Any] = MappingProxyType({})) -> Checkpoint:
    return Checkpoint(Path("w"), dict.fromkeys(parts, parts), config=config)


def broken(parts: dict[str, NDArray], config: Mapping[str, Any] = MappingProxyType({})) -> str:
    """What opening the layer says."""
    (layer,) = schemes.layers_of(of_parts(parts, config))
    with pytest.raises(BadModel) as refusal:
        layer.open()
    return str(refusal.value)


@pytest.mark.parametrize("case", ["gptq4", "awq", "compressed_pack4", "bitsandbytes_nf4_nested", "hqq4", "mlx4"])
def test_each_part_that_is_missing_misfits_or_is_no_number_is_refused(tmp_path: Path, case: str) -> None:
    """One sentence each, or a layer that still makes sense without the part."""
    parts, whole = parts_of(case, tmp_path)
    said = []
    for name, x in parts.items():
        changes: list[Any] = [x[..., :-1] if x.ndim else x.reshape(1).repeat(3), x.reshape(-1)[:0], None]
        changes += [np.zeros(x.shape, np.complex64), np.zeros(x.shape, np.int16), x[None]]
        if x.dtype.kind == "f":
            changes.append(np.full_like(x, np.nan))
        for changed in changes:
            rest = {n: y for n, y in parts.items() if n != name}
            left = rest if changed is None else rest | {name: np.ascontiguousarray(changed)}
            for layer in schemes.layers_of(of_parts(left, whole.config)):
                try:
                    stored = layer.open()
                except BadModel as error:
                    said.append(str(error))
                else:
                    assert stored.floats().shape == stored.shape == (32, 64)
    assert len(said) > 4
    for sentence in said:
        assert "\n" not in sentence and "layer" in sentence


def spoiled(r: random.Random, x: NDArray) -> NDArray:
    """A tensor of another type, shape or content."""
    types = (np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, ml_dtypes.bfloat16, np.bool_)
    ways: list[Callable[[], Any]] = [
        lambda: x[..., :-1],
        lambda: x[:0],
        lambda: x.astype(r.choice(types)),
        lambda: x.T,
        lambda: np.concatenate([x, x]),
        lambda: np.frombuffer(r.randbytes(x.nbytes), x.dtype).reshape(x.shape),
        lambda: np.full(x.shape, r.choice([-1, 0, 1, 127, 2**31 - 1]), np.int64).astype(x.dtype),
        lambda: x[None],
        lambda: x.reshape(-1),
    ]
    with np.errstate(all="ignore"):
        try:
            return np.ascontiguousarray(r.choice(ways)())
        except (ValueError, TypeError, IndexError):
            return x


def test_whatever_is_spoiled_is_one_sentence_or_a_layer(tmp_path: Path) -> None:
    whole = {case: parts_of(case, tmp_path) for case in CASES}
    settings: list[Any] = [None, -1, 0, 1, 3, 32, 1e9, 1 << 70, "x", [], {}, True, {"group_0": {"weights": 3}}]
    refused = 0
    for seed in range(1500):
        r = random.Random(seed)
        parts, checkpoint = whole[CASES[seed % len(CASES)]]
        parts, config = dict(parts), dict(checkpoint.config)
        for name in r.sample(list(parts), min(len(parts), r.randrange(1, 3))):
            parts[name] = spoiled(r, parts[name])
        if seed % 4 == 0:
            config[r.choice([*config, "bits", "group_size", "config_groups", "layer"])] = r.choice(settings)
        made = Checkpoint(Path("w"), dict.fromkeys(parts, parts), config=config, metadata=checkpoint.metadata)
        for layer in schemes.layers_of(made):
            try:
                stored = layer.open()
                w = stored.floats()
            except BadModel as error:
                refused += "\n" not in str(error)
                continue
            assert w.shape == stored.shape and np.isfinite(w).all()
            for form in exact_forms(stored):
                q = stored.read()
                assert isinstance(q, QuantizedTensor) and form.make(q).shape == stored.shape
    assert refused > 500


def test_what_scales_and_settings_may_not_be(tmp_path: Path) -> None:
    nan = np.array(np.nan, np.float32)
    gptq, _ = parts_of("gptq4", tmp_path)
    scales = np.where(np.arange(32) == 3, nan, gptq["layer.scales"]).astype(np.float16)
    assert "not finite" in broken(gptq | {"layer.scales": scales})
    index = np.zeros(64, np.int32)
    assert "groups of unlike sizes" in broken(gptq | {"layer.g_idx": index}, {"group_size": 32})
    assert "names groups without scales" in broken(gptq | {"layer.g_idx": index + 9}, {"group_size": 32})
    assert "do not fit each other" in broken(gptq | {"layer.qweight": np.zeros((8, 8), np.int32)})
    assert "laid out as marlin; save" in broken(gptq, {"checkpoint_format": "marlin"})
    assert "version gemv" in broken(parts_of("awq", tmp_path)[0], {"quant_method": "awq", "version": "gemv"})
    bnb, _ = parts_of("bitsandbytes_nf4", tmp_path)
    key = "layer.weight.quant_state.bitsandbytes__nf4"
    for said in (b"{}", b'{"shape": [1e9, 2], "blocksize": 64}', b"\xff", b'{"shape": [-32, 64], "blocksize": 64}'):
        assert "does not describe a matrix" in broken(bnb | {key: np.frombuffer(said, np.uint8)})
    levels = np.linspace(-1, 1, 16, dtype=np.float32)
    assert "other numbers than those of nf4" in broken(bnb | {"layer.weight.quant_map": levels})
    fp8, _ = parts_of("compressed_fp8", tmp_path)
    codes = np.full((32, 64), np.nan, ml_dtypes.float8_e4m3fn)
    assert "not finite" in broken(fp8 | {"layer.weight": codes})


def test_zero_points_of_version_1_and_2(tmp_path: Path) -> None:
    """Version 1 stores one less, and 0 as all ones; version 2 stores them as they are."""
    parts, _ = parts_of("gptq4", tmp_path)
    parts["layer.qzeros"] = np.full_like(parts["layer.qzeros"], -1)
    for version, zero in (("gptq", 0), ("gptq_v2", 15)):
        q = only_layer(of_parts(parts, {"quant_method": "gptq", "checkpoint_format": version})).read()
        assert isinstance(q, QuantizedTensor) and q.zero_points is not None and (q.zero_points == zero).all()


SQUARES = {"weight_block_size": [128, 128]}
KIND = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("weight_scale_inv", SQUARES),
        ("weight_scale_inv", {}),
        ("weight_scale", {"config_groups": {"a": {"weights": KIND}}}),
        ("weight_scale", {"config_groups": {"a": {"weights": KIND}, "b": {"weights": {"group_size": 32}}}}),
    ],
)
def test_squares_whose_last_ones_are_halves(part: str, config: dict[str, Any]) -> None:
    """960 inputs are seven squares of 128 and a half, though eight of 120 would be as many; 192 outputs likewise."""
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(192, 960)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(0.5, 2, (2, 8)).astype(np.float32)
    stored = only_layer(of_parts({"layer.weight": codes, f"layer.{part}": scales}, config))
    wide = np.repeat(np.repeat(scales, 128, 0)[:192], 128, 1)[:, :960]
    np.testing.assert_array_equal(stored.floats(), codes.astype(np.float32) * wide)


def test_the_configuration_is_believed_before_a_power_of_two() -> None:
    codes, scales = np.ones((192, 960), ml_dtypes.float8_e4m3fn), np.ones((2, 8), np.float32)
    parts = {"layer.weight": codes, "layer.weight_scale_inv": scales}
    assert only_layer(of_parts(parts, {"weight_block_size": [96, 120]})).granularity.block == 120
    assert "960 inputs do not fall into 8 groups of 64" in broken(parts, {"weight_block_size": [128, 64]})
    assert "192 outputs do not fall into 2 groups of 64" in broken(parts, {"weight_block_size": [64, 128]})


def test_groups_that_nothing_tells_the_length_of_are_powers_of_two() -> None:
    """And where g_idx does, its first input may belong to the last group, which is shorter."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 1 << 31, (120, 32), np.int32)
    parts = {"layer.qweight": packed, "layer.qzeros": np.zeros((8, 4), np.int32)}
    parts["layer.scales"] = rng.uniform(0.5, 2, (8, 32)).astype(np.float16)
    assert only_layer(of_parts(parts)).granularity.block == 128
    index = (np.arange(960)[::-1] // 128).astype(np.int32)
    stored = only_layer(of_parts(parts | {"layer.g_idx": index}))
    assert stored.granularity.block == 128 and stored.order is not None


def test_torchao_says_the_length_of_groups() -> None:
    said = '{"_type": "IntxUnpackedToInt8Tensor", "_data": {"block_size": [1, 120]}}'
    parts = {
        "layer._weight_qdata": np.ones((4, 960), np.int8),
        "layer._weight_scale": np.ones((4, 8), np.float32),
    }
    made = Checkpoint(Path("w"), dict.fromkeys(parts, parts), metadata={"layer.weight": said})
    assert only_layer(made).granularity.block == 120
