"""Every kernel of recurrent layers that this machine has, against numpy in float64.

Kernels are called through the C ABI on arrays that end at an unreadable page.
"""

from __future__ import annotations

import kernels
import numpy as np
import pytest
import recurrent
from guard import guarded
from numpy.typing import NDArray
from recurrent import GRU, LINEAR_BEFORE_RESET, LSTM, RNN, Layer, Made, kernel_for, layer, reference, run

from onnxq.runtime import native

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

#: Others take one of these: see the last test.
KERNELS = [isa for isa in kernels.isas() if kernel_for(isa) == isa]
every_isa = pytest.mark.parametrize("isa", KERNELS)
every_cell = pytest.mark.parametrize("cell", [LSTM, GRU, LINEAR_BEFORE_RESET, RNN], ids=["lstm", "gru", "late", "rnn"])
every_bits = pytest.mark.parametrize("bits", [15, 8])

#: (steps, sequences, inputs, numbers of the state, directions): tiles and fours that are not full, more rows than a
#: kernel computes together, more steps than are projected at once.
SHAPES = [
    (1, 1, 1, 1, 1),
    (1, 1, 130, 16, 1),
    (2, 1, 3, 17, 2),
    (3, 2, 16, 33, 1),
    (4, 5, 31, 5, 2),
    (2, 13, 20, 64, 1),
    (55, 1, 9, 20, 2),
    (30, 2, 4, 15, 1),
]


def states(of: Layer, steps: int, batch: int, seed: int = 0) -> tuple[NDArray[np.float32], ...]:
    """x, h and c."""
    rng = np.random.default_rng([steps, batch, of.h, seed])
    shapes = (steps, batch, of.weight.shape[1]), (of.directions, batch, of.h), (of.directions, batch, of.h)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def require_near(made: Made, wanted: Made, bound: Made) -> None:
    for name in ("y", "h", "c"):
        got, exact, most = (getattr(each, name) for each in (made, wanted, bound))
        if exact is not None:
            assert got.shape == exact.shape
            assert np.all(np.abs(got - exact) <= most), name


@pytest.mark.pairwise
@every_bits
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@every_cell
@every_isa
def test_shapes(isa: str, cell: int, shape: tuple[int, ...], bits: int) -> None:
    steps, batch, inputs, hidden, directions = shape
    of = layer(cell, inputs, hidden, directions)
    x, h, c = states(of, steps, batch)
    lengths = [max(0, steps - i) for i in range(batch)]
    for given, short in (((), None), ((h, c), None), ((h, c), lengths)):
        for threads in (1, 3):
            made = run(isa, of, x, *given, lengths=short, bits=bits, threads=threads, place=guarded)
            require_near(made, *reference(of, x, *given, lengths=short, bits=bits, after=made))


@every_cell
@every_isa
def test_directions_and_clips(isa: str, cell: int) -> None:
    """What goes into activation functions is clipped; a layer may be a backward one alone, or both backward."""
    for backward in (0, 1, 2, 3):
        of = layer(cell, 12, 20, 1 + backward // 2, backward=backward, clip=0.3)
        x, h, c = states(of, 7, 2)
        made = run(isa, of, 3 * x, h, c)
        require_near(made, *reference(of, 3 * x, h, c, after=made))
        of.clip = np.inf
        assert np.any(np.abs(made.y - run(isa, of, 3 * x, h, c).y) > 0.01)


@every_bits
@every_isa
def test_all_kernels_take_the_same_codes(isa: str, bits: int) -> None:
    """What codes are made of one step does not depend on the kernel: results differ by roundings of gates alone."""
    for cell in (LSTM, GRU, LINEAR_BEFORE_RESET, RNN):
        of = layer(cell, 70, 40)
        x, h, c = states(of, 1, 3)
        assert np.max(np.abs(run(isa, of, x, h, c, bits=bits).y - run("scalar", of, x, h, c, bits=bits).y)) < 2.0**-18


@every_cell
@every_isa
def test_parts_of_the_state_are_cut_for_threads(isa: str, cell: int) -> None:
    """A recurrence that is long to read is cut into parts, behind each of which threads wait."""
    of = layer(cell, 40, 520 if cell != RNN else 1040, 1)
    x, h, c = states(of, 3, 1)
    one = run(isa, of, x, h, c)
    require_near(one, *reference(of, x, h, c, after=one))
    for threads in (2, 5):
        many = run(isa, of, x, h, c, threads=threads)
        np.testing.assert_array_equal(one.y, many.y)
        np.testing.assert_array_equal(one.h, many.h)
    some = run(isa, of, x, h, c, lengths=[2], threads=4)
    require_near(some, *reference(of, x, h, c, lengths=[2], after=some))


@every_isa
def test_sequences_are_cut_for_threads(isa: str) -> None:
    of = layer(LSTM, 9, 20, 2)
    x, h, c = states(of, 9, 17)
    one = run(isa, of, x, h, c)
    for threads in (2, 3, 8, 40):
        np.testing.assert_array_equal(one.y, run(isa, of, x, h, c, threads=threads).y)


@every_bits
@every_cell
@every_isa
def test_large_and_small_numbers(isa: str, cell: int, bits: int) -> None:
    """States far beyond 1, inputs far apart, zeros and subnormal numbers: the bound holds; gates stay gates."""
    of = layer(cell, 24, 20)
    x, h, c = states(of, 3, 1)
    for factor in (0.0, 1e-42, 1e-20, 1e6, 1e30):
        made = run(isa, of, x * np.float32(factor), h * 50, c, bits=bits)
        assert np.all(np.isfinite(made.y))
        if factor < 1e20:  # beyond that, errors of gates that are shut fill the bound
            require_near(made, *reference(of, x * np.float32(factor), h * 50, c, bits=bits, after=made))


@every_cell
@every_isa
def test_a_sequence_does_not_see_another(isa: str, cell: int) -> None:
    """NaN stays in its sequence, from its step on, whichever number it is."""
    of = layer(cell, 21, 20)
    x, h, c = states(of, 4, 5)
    wanted = run(isa, of, x, h, c)
    for bad, place in ((np.nan, 0), (np.nan, 20)):
        spoilt = x.copy()
        spoilt[2, 3, place] = bad
        made = run(isa, of, spoilt, h, c)
        assert np.all(np.isnan(made.y[2:, 0, 3]))
        np.testing.assert_array_equal(made.y[:2], wanted.y[:2])
        np.testing.assert_array_equal(np.delete(made.y, 3, 2), np.delete(wanted.y, 3, 2))
    spoilt = x.copy()
    spoilt[1, 0, 4] = np.inf
    np.testing.assert_array_equal(run(isa, of, spoilt, h, c).y[:, :, 1:], wanted.y[:, :, 1:])
    h[0, 2, 7] = np.nan
    assert np.all(np.isnan(run(isa, of, x, h, c).y[:, 0, 2]))


@every_isa
def test_gates_over_the_whole_range(isa: str) -> None:
    """One number of a state whose gate is the input itself: sigmoid and tanh to 2^-20, everywhere."""
    of = layer(RNN, 1, 1)
    of.weight.codes[:], of.weight.scales[:] = 127, 1 / 127  # type: ignore[index]
    of.recurrence.codes[:], of.both[:] = 0, 0
    points = np.concatenate([np.linspace(-20, 20, 4001), [-1e4, -88.5, -1e-7, 0, 1e-7, 88.5, 1e4, 3e38]])
    x = points.astype(np.float32).reshape(1, -1, 1)
    made = run(isa, of, x)
    assert np.max(np.abs(made.y.reshape(-1) - np.tanh(x.astype(np.float64).reshape(-1)))) < recurrent.GATE


def test_each_isa_has_a_kernel_and_no_better_one_is_taken() -> None:
    order = kernels.isas()
    for isa in order:
        assert order.index(kernel_for(isa)) >= order.index(isa)
    assert kernel_for("scalar") == "scalar"
    assert {"avx512_vnni", "avx_vnni", "avx2", "neon_dot", "scalar"}.intersection(order) == set(KERNELS)
