"""Linear4Bit: the packed layer as an object computes what its bytes say, for any size of groups and length of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import onnxq
from onnxq import layouts
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.linear4bit import Linear4Bit, kernel_block, save_layers
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe, Bug, OnnxqError
from onnxq.runtime import product

few = settings(max_examples=60, deadline=None, derandomize=True)


def weight(packed: NDArray, scales: NDArray, group: int) -> NDArray[np.float64]:
    """w[n, k] = scale[n, k // group] · (code − 8), the even k in the low nibble: the definition, one by one."""
    w = np.zeros((len(packed), 2 * packed.shape[1]))
    for n, k in np.ndindex(*w.shape):
        code = packed[n, k // 2] >> 4 if k % 2 else packed[n, k // 2] & 15
        w[n, k] = float(scales[n, k // group]) * (int(code) - 8)
    return w


def layer(n: int, k: int, group: int, *, dtype: Any = np.float16, bias: bool = False, seed: int = 0) -> Linear4Bit:
    rng = np.random.default_rng([seed, n, k, group])
    packed = rng.integers(0, 256, (n, k // 2), np.uint8)
    scales = (rng.uniform(0.5, 2, (n, -(-k // group))) * rng.choice([-1, 1], (n, 1)) / 8).astype(dtype)
    return Linear4Bit.new(packed, scales, group, rng.standard_normal(n).astype(np.float32) if bias else None)


def bound(x: NDArray, made: Linear4Bit, w: NDArray) -> NDArray:
    """Of sums of K float32 products in any order (Higham, section 4.2): K + 6 roundings of their magnitudes."""
    terms = np.abs(x.astype(np.float64)) @ np.abs(w).T + (0 if made.bias is None else np.abs(made.bias))
    return (made.inputs + 6) * 2.0**-24 * terms + 2.0**-140


@few
@given(
    n=st.integers(1, 40),
    half=st.integers(1, 160),
    group=st.integers(4, 330),
    rows=st.sampled_from([(), (1,), (3,), (2, 3), (0,), (17,)]),
    dtype=st.sampled_from([np.float16, np.float32, ml_dtypes.bfloat16]),
    bias=st.booleans(),
)
def test_forward_is_the_product_by_the_definition(
    n: int, half: int, group: int, rows: tuple[int, ...], dtype: Any, bias: bool
) -> None:
    made = layer(n, 2 * half, group, dtype=dtype, bias=bias)
    w = weight(made.packed, made.scales, group)
    np.testing.assert_array_equal(made.unpack(), w.astype(np.float32))
    x = np.random.default_rng(half).standard_normal((*rows, 2 * half)).astype(np.float32)
    wanted = x.astype(np.float64) @ w.T + (0 if made.bias is None else made.bias)
    for y in (made.forward(x), made.forward_unpack(x)):
        assert y.shape == wanted.shape and y.dtype == np.float32
        assert (np.abs(y - wanted) <= bound(x, made, w)).all()


@pytest.mark.parametrize(("k", "group"), [(130, 64), (192, 128), (4096, 128), (1024, 4), (11008, 64), (520, 100)])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_relative_error(k: int, group: int, rows: int) -> None:
    made = layer(48, k, group, bias=True)
    x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
    wanted = x.astype(np.float64) @ made.unpack().astype(np.float64).T + made.bias
    assert np.linalg.norm(made(x) - wanted) <= 1e-6 * np.linalg.norm(wanted)


def test_without_the_library_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "is_there", lambda: False)
    monkeypatch.setattr("onnxq.checkpoints.linear4bit._SLICE", 300)  # several slices of rows
    made = layer(21, 130, 64, bias=True)
    x = np.random.default_rng(1).standard_normal((4, 130))
    np.testing.assert_array_equal(made.forward(x), made.forward_unpack(x))
    wanted = x.astype(np.float32).astype(np.float64) @ weight(made.packed, made.scales, 64).T + made.bias
    assert np.linalg.norm(made.forward(x) - wanted) <= 1e-6 * np.linalg.norm(wanted)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_blocks_of_kernels_fill_any_group(group: int, k: int) -> None:
    block, length = kernel_block(group, k)
    assert 16 <= block <= 256 and block % 16 == 0
    assert length >= group and (group >= k or (length % block == 0 and length < group + 16))


def test_a_group_that_is_named_is_not_another() -> None:
    """192 inputs with two scales are 128 + 64 or 96 + 96: who does not say which is asked."""
    packed, scales = np.full((1, 96), 0x99, np.uint8), np.array([[1, 2]], np.float16)
    assert list(np.flatnonzero(np.diff(Linear4Bit.new(packed, scales, 128).unpack()[0]))) == [127]
    assert list(np.flatnonzero(np.diff(Linear4Bit.new(packed, scales, 96).unpack()[0]))) == [95]
    with pytest.raises(BadModel, match="2 scales for 192 inputs fit groups of 128 and of 96: name the size of a group"):
        Linear4Bit.new(packed, scales)
    with pytest.raises(BadModel, match="192 inputs in groups of 64 do not have 2 scales a row"):
        Linear4Bit.new(packed, scales, 64)


@pytest.mark.parametrize(
    ("k", "groups", "size"), [(130, 3, 64), (128, 2, 64), (96, 3, 32), (4100, 33, 128), (50, 1, 50), (768, 6, 128)]
)
def test_group_sizes_that_can_be_told(k: int, groups: int, size: int) -> None:
    assert layouts.group_size(k, groups) == size


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(("k", "group"), [(130, 64), (192, 96), (64, 4)])
def test_saved_and_loaded(tmp_path: Path, suffix: str, k: int, group: int) -> None:
    layers = {"a.up": layer(5, k, group, bias=True), "b": layer(7, k, group, dtype=np.float32)}
    path = tmp_path / f"w{suffix}"
    save_layers(path, layers)
    for name, made in layers.items():
        back = Linear4Bit.load(path, name)
        assert (back.group, back.outputs, back.inputs, back.nbytes) == (group, made.outputs, k, made.nbytes)
        np.testing.assert_array_equal(back.packed, made.packed)
        np.testing.assert_array_equal(back.scales, made.scales)
        assert back.scales.dtype == made.scales.dtype
        assert (back.bias is None) == (made.bias is None)
        np.testing.assert_array_equal(back.forward(np.ones(k)), made.forward(np.ones(k)))
    with pytest.raises(BadData, match=r"holds 'a.up', 'b': it has no layer 'c'"):
        Linear4Bit.load(path, "c")
    with pytest.raises(BadData, match="name one of its layers"):
        Linear4Bit.load(path)
    with pytest.raises(BadOutput, match="exists"):
        layers["b"].save(path)
    layers["b"].save(path, replace=True)
    assert Linear4Bit.load(path).outputs == 7


def test_tensors_of_others(tmp_path: Path) -> None:
    """Without group_size and without a prefix; and what does not fit says whose it is."""
    made = layer(3, 128, 64)
    tensors = {"weight_4bit": made.packed, "scales_4bit": made.scales, "bias": np.ones(3, np.float16)}
    back = Linear4Bit.load(tensors)
    assert back.group == 64 and back.bias is not None and back.bias.dtype == np.float32
    write_arrays(tmp_path / "w.npz", ((name, lambda x=x: x) for name, x in tensors.items()), replace=False)
    np.testing.assert_array_equal(Linear4Bit.load(tmp_path / "w.npz").unpack(), back.unpack())
    with pytest.raises(BadData, match=r"'weight_4bit' has no scales_4bit"):
        Linear4Bit.load({"weight_4bit": made.packed})
    with pytest.raises(BadData, match="no 4-bit layers"):
        Linear4Bit.load({"bias": np.ones(3)})
    with pytest.raises(BadModel, match=r"'x.group_size' is no single positive integer"):
        Linear4Bit.load({f"x.{key}": value for key, value in tensors.items()} | {"x.group_size": np.array([0])})


def test_of_a_float_weight() -> None:
    w = np.random.default_rng(0).standard_normal((8, 130)).astype(np.float32)
    for group in (4, 64, 130, 1000):
        made = onnxq.Linear4Bit.quantize(w, group, np.zeros(8))
        steps = np.abs(w.astype(np.float64) - made.unpack()) / np.abs(np.repeat(made.scales, made.group, 1)[:, :130])
        assert made.scales.dtype == np.float16 and steps.max() <= 1.01  # what is clipped is off by a whole step
    tiny = Linear4Bit.quantize(w * 1e-12, 64)  # scales that float16 does not hold are not zero
    assert np.isfinite(tiny.unpack()).all() and (tiny.scales != 0).all()
    with pytest.raises(BadModel, match="does not fit float16"):
        Linear4Bit.quantize(w * 1e8, 64)
    with pytest.raises(BadModel, match="holds nan"):
        Linear4Bit.quantize(np.full((2, 4), np.nan), 4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.zeros((2, 4)), np.ones((2, 1))), "weight_4bit is float64"),
        ((np.zeros(4, np.uint8), np.ones((2, 1))), r"are not \[out, in / 2\] and"),
        ((np.zeros((2, 4), np.uint8), np.full((2, 1), np.inf)), "not finite"),
        ((np.zeros((2, 4), np.uint8), np.ones((2, 2)), 4, np.ones(3)), r"a bias of shape \[3\] is none for 2 outputs"),
        ((np.zeros((2, 4), np.uint8), [["a"], ["b"]]), "the scales is an array of"),
        ((np.zeros((2, 4), np.uint8), np.ones((2, 2)), "four"), "'group' is of type str"),
        ((np.zeros((2, 4), np.uint8), np.ones((2, 2)), 0), "8 inputs in groups of 0 do not have 2 scales"),
    ],
)
def test_what_is_no_layer_is_refused(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(OnnxqError, match=sentence):
        Linear4Bit.new(*arguments)


def test_what_is_no_input_is_refused() -> None:
    made = layer(3, 128, 64)
    for x in (np.ones(127), np.ones((128, 2)), 3.0, [["a"]], np.ones(128, np.complex64), [[1.0], [1.0, 2.0]]):
        with pytest.raises(BadData):
            made.forward(x)  # type: ignore[arg-type]
    with pytest.raises(BadRecipe, match="a group of -3"):
        Linear4Bit.quantize(np.ones((2, 4)), -3)


shapes = st.lists(st.integers(0, 9), min_size=0, max_size=3)
types = st.sampled_from([np.uint8, np.int8, np.float16, np.float32, np.float64, np.bool_, "<U3", np.complex64])


@st.composite
def anything(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from([None, "text", [[1], [2, 3]], 3, [], object()]))
    x = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 200, draw(shapes)).astype(draw(types))
    return draw(st.sampled_from([x, x.T, np.flip(x), x.tolist()]))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(anything(), anything(), st.none() | st.integers(-2, 20), anything(), anything())
def test_any_call_answers_in_the_promised_shape_or_refuses(p: Any, s: Any, group: int | None, b: Any, x: Any) -> None:
    try:
        whole = layer(2, 8, 4)
        assert whole.forward(x).shape == whole.forward_unpack(x).shape == (*np.shape(x)[:-1], 2)
        made = Linear4Bit.new(p, s, group, b)
        y = made.forward(x)
    except Bug:
        raise
    except OnnxqError:
        return
    assert made.scales.shape == (made.outputs, -(-made.inputs // made.group))
    assert y.shape == (*np.shape(x)[:-1], made.outputs) and y.dtype == np.float32


def test_kernels_are_not_called_with_what_is_not_there() -> None:
    q = layouts.from_linear4bit(np.zeros((3, 16), np.uint8), np.ones((3, 1), np.float16))
    tiles, scales, x = layouts.onnxq_tiles(q), layouts.onnxq_scales(q), np.ones((2, 32), np.float32)
    for call in (
        lambda: product.multiply_int4(x[:, :31], tiles, scales, 17, 32),
        lambda: product.multiply_int4(x[0], tiles, scales, 3, 32),
        lambda: product.multiply_int4(x, tiles[:, :1], scales, 3, 32),
        lambda: product.multiply_int4(x, tiles, scales.astype(np.float64), 3, 32),
        lambda: product.multiply_int4(x, tiles, scales, 3, 8),
        lambda: product.multiply_int4(x, tiles, scales, 3, 32, np.ones(4, np.float32)),
        lambda: product.multiply_int4(x, tiles.view(np.int8), scales, 3, 32),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_layer_is_its_own_whatever_becomes_of_the_arrays_it_was_made_of() -> None:
    """The form for kernels is laid out once; the arrays may be a buffer for the next layer."""
    packed, scales, bias = np.full((32, 32), 0x9A, np.uint8), np.full((32, 1), 0.5, np.float32), np.ones(32, np.float32)
    made, x = Linear4Bit.new(packed, scales, 64, bias), np.linspace(-1, 1, 64, dtype=np.float32)
    y = made.forward(x)
    packed[:], scales[:], bias[:] = 0x88, 9, 7
    np.testing.assert_array_equal(made.forward(x), y)
    np.testing.assert_allclose(made.forward_unpack(x), y, rtol=1e-5)
    with pytest.raises(ValueError, match="read-only"):
        made.packed[:] = 0


def test_what_torch_has_of_a_layer_is_one() -> None:
    torch = pytest.importorskip("torch")
    w = torch.nn.Linear(64, 32).weight  # of which gradients are asked
    made = Linear4Bit.quantize(w, 64)
    np.testing.assert_array_equal(made.unpack(), Linear4Bit.quantize(w.detach().numpy(), 64).unpack())
    assert Linear4Bit.quantize(w.bfloat16(), 64).outputs == 32
    tensors = {"a.weight_4bit": torch.tensor(made.packed), "a.scales_4bit": torch.tensor(made.scales)}
    for size in (64, torch.tensor([64]), np.int32(64)):
        np.testing.assert_array_equal(Linear4Bit.load(tensors | {"a.group_size": size}).unpack(), made.unpack())
    x = torch.ones(2, 64, requires_grad=True)
    np.testing.assert_array_equal(made.forward(x), made.forward(np.ones((2, 64))))
    np.testing.assert_array_equal(made.forward(x.bfloat16()), made.forward(np.ones((2, 64))))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    made = layer(4, 64, 64)
    named = {"a.weight_4bit": made.packed, "a.scales_4bit": made.scales}
    with pytest.raises(BadData, match="names of tensors are texts"):
        Linear4Bit.load(named | {0: made.packed})
    with pytest.raises(BadModel, match="weight_4bit is int64"):
        Linear4Bit.load(named | {"a.weight_4bit": made.packed.tolist()}, group=64)
    with pytest.raises(BadModel, match="masked"):
        Linear4Bit.quantize(np.ma.masked_invalid([[1.0, np.nan]]))
    with pytest.raises(BadRecipe, match="not int by str"):
        save_layers(tmp_path / "x.npz", {"a": 3})
    with pytest.raises(OnnxqError):
        save_layers(3, {"a": made})
    (tmp_path / "x.safetensors").write_bytes(b"mine")
    with pytest.raises(BadOutput, match="cannot be the name of a tensor"):
        made.save(tmp_path / "x.safetensors", "\udc80", replace=True)
    assert (tmp_path / "x.safetensors").read_bytes() == b"mine"
