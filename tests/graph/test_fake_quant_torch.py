"""Fake quantization against torch's own, and the autograd functions against the numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import fake_quant
from onnxq.fake_quant import AffineGrid

torch = pytest.importorskip("torch")
each_axis = pytest.mark.parametrize("axis", [None, 0, 1], ids=lambda axis: f"axis={axis}")
each_kind = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])


def numbers(seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((16, 12)) + 0.3).astype(np.float32)


def grid_for(x: NDArray, symmetric: bool, axis: int | None, bits: int = 4) -> AffineGrid:
    return fake_quant.fit(x * np.float32(0.4), bits, symmetric=symmetric, axis=axis)


def away_from_ends(x: NDArray, grid: AffineGrid) -> NDArray[np.bool_]:
    """torch asks whether the rounded code is in range, we, as LSQ does, whether x/s + z is: they differ half a step."""
    v = x / grid.spread(x, grid.scale) + grid.spread(x, grid.zero_point)
    return (np.abs(v - grid.qmin) > 0.5) & (np.abs(v - grid.qmax) > 0.5)


def tensors(x: NDArray, grid: AffineGrid) -> tuple[Any, Any, Any]:
    scale = torch.from_numpy(np.atleast_1d(grid.scale).copy() if grid.axis is not None else np.array(grid.scale))
    zero = torch.from_numpy(np.array(grid.zero_point)).to(torch.float32)
    return torch.from_numpy(x.copy()).requires_grad_(), scale, zero


@each_axis
@each_kind
def test_forward_and_backward_are_torch_s(symmetric: bool, axis: int | None) -> None:
    x, given = numbers(), numbers(1)
    grid = grid_for(x, symmetric, axis)
    t, scale, zero = tensors(x, grid)
    if axis is None:
        y = torch.fake_quantize_per_tensor_affine(t, float(grid.scale), int(grid.zero_point), grid.qmin, grid.qmax)
    else:
        y = torch.fake_quantize_per_channel_affine(t, scale, zero.to(torch.int32), axis, grid.qmin, grid.qmax)
    y.backward(torch.from_numpy(given))
    # torch multiplies by 1/s where we divide, so that results differ in the last digit.
    np.testing.assert_allclose(fake_quant.forward(x, grid), y.detach().numpy(), rtol=1e-6)
    same = away_from_ends(x, grid)
    np.testing.assert_array_equal(fake_quant.backward(given, x, grid)[same], t.grad.numpy()[same])


@each_kind
@pytest.mark.parametrize("axis", [None, 0])
def test_the_scale_s_gradient_is_torch_s(symmetric: bool, axis: int | None) -> None:
    x, given = numbers(), numbers(1)
    grid = grid_for(x, symmetric, axis)
    given = np.where(away_from_ends(x, grid), given, np.float32(0))
    t, scale, zero = tensors(x, grid)
    scale = scale.reshape(-1).requires_grad_()
    if axis is None:
        y = torch._fake_quantize_learnable_per_tensor_affine(t, scale, zero.reshape(1), grid.qmin, grid.qmax, 1.0)
    else:
        y = torch._fake_quantize_learnable_per_channel_affine(t, scale, zero, axis, grid.qmin, grid.qmax, 1.0)
    y.backward(torch.from_numpy(given))
    _, got = fake_quant.backward_lsq(given, x, grid)
    np.testing.assert_allclose(got.reshape(-1), scale.grad.numpy(), rtol=1e-4, atol=1e-4)


@each_axis
@each_kind
def test_the_autograd_functions_are_the_numpy_ones(symmetric: bool, axis: int | None) -> None:
    from onnxq.fake_quant.torch_functions import FakeQuantize, LearnedScale, fake_quantize

    x, given = numbers(), numbers(1)
    grid = grid_for(x, symmetric, axis)
    of_x, of_scale = fake_quant.backward_lsq(given, x, grid)
    for function in ("plain", "grid", "learned"):
        t, scale, zero = tensors(x, grid)
        scale.requires_grad_(function == "learned")
        if function == "plain":
            y = FakeQuantize.apply(t, scale, zero, grid.qmin, grid.qmax, axis)
        elif function == "grid":
            y = fake_quantize(t, grid)
        else:
            y = LearnedScale.apply(t, scale, zero, grid.qmin, grid.qmax, 0.5, axis)
        y.backward(torch.from_numpy(given))
        np.testing.assert_array_equal(y.detach().numpy(), fake_quant.forward(x, grid))
        np.testing.assert_array_equal(t.grad.numpy(), of_x)
    np.testing.assert_allclose(scale.grad.numpy(), of_scale * 0.5, rtol=1e-4, atol=1e-5)


def test_a_layer_trains_through_it() -> None:
    """A regression whose weights are rounded to 3 bits in every step gets better, scale and weights together."""
    from onnxq.fake_quant.torch_functions import LearnedScale

    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x @ torch.randn(8, 2)
    w = torch.randn(8, 2, requires_grad=True)
    scale = torch.tensor(0.7, requires_grad=True)
    steps = torch.optim.SGD([w, scale], lr=0.05)
    losses = []
    for _ in range(200):
        steps.zero_grad()
        loss = ((x @ LearnedScale.apply(w, scale, torch.tensor(0.0), -3, 3, 0.1) - y) ** 2).mean()
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    assert min(losses[-50:]) < 0.2 * losses[0]
    assert float(scale.detach()) > 0


@each_kind
def test_blocks_are_those_of_numpy(symmetric: bool) -> None:
    """12 numbers in blocks of 5: the last one is short."""
    from onnxq.fake_quant.torch_functions import LearnedScale, fake_quantize

    x, given = numbers(), numbers(1)
    grid = fake_quant.fit(x * np.float32(0.4), 4, symmetric=symmetric, axis=1, block=5)
    t, scale, zero = (torch.from_numpy(np.array(a)) for a in (x, grid.scale, grid.zero_point.astype(np.float32)))
    t.requires_grad_()
    scale.requires_grad_()
    y = LearnedScale.apply(t, scale, zero, grid.qmin, grid.qmax, 0.5, -1, 5)
    np.testing.assert_array_equal(y.detach().numpy(), fake_quant.forward(x, grid))
    np.testing.assert_array_equal(fake_quantize(t, grid).detach().numpy(), y.detach().numpy())
    y.backward(torch.from_numpy(given))
    of_x, of_scale = fake_quant.backward_lsq(given, x, grid)
    np.testing.assert_array_equal(t.grad.numpy(), of_x)
    np.testing.assert_allclose(scale.grad.numpy(), 0.5 * of_scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axis", "block"), [(None, None), (0, None), (1, 5)])
def test_learned_offsets_are_those_of_numpy(axis: int | None, block: int | None) -> None:
    from onnxq.fake_quant.torch_functions import LearnedOffset

    x, given = numbers(), numbers(1)
    grid = fake_quant.fit_offset(x * np.float32(0.4), 4, axis=axis, block=block)
    t, scale, offset = (torch.from_numpy(np.array(a)).requires_grad_() for a in (x, grid.scale, grid.offset))
    y = LearnedOffset.apply(t, scale, offset, grid.qmin, grid.qmax, 1.0, axis, block)
    np.testing.assert_allclose(y.detach().numpy(), fake_quant.forward_offset(x, grid), rtol=1e-6, atol=1e-7)
    y.backward(torch.from_numpy(given))
    of_x, of_scale, of_offset = fake_quant.backward_offset(given, x, grid)
    np.testing.assert_array_equal(t.grad.numpy(), of_x)
    np.testing.assert_allclose(scale.grad.numpy(), of_scale, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(offset.grad.numpy(), of_offset, rtol=1e-4, atol=1e-4)
