"""Every kernel of attention that this machine has, every shape near a boundary, against numpy in float64.

Kernels are called through the C ABI on arrays that end at an unreadable page.
"""

from __future__ import annotations

import kernels
import numpy as np
import pytest
from attention import attention, bound, kernel_for, reference
from guard import guarded
from numpy.typing import NDArray

from onnxq.runtime import native

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

#: Others take one of these: see the last test.
KERNELS = [isa for isa in kernels.isas() if kernel_for(isa, 16) == isa]
every_isa = pytest.mark.parametrize("isa", KERNELS)

#: (heads, S, T, D, E): tiles, chunks and panels that are not full, one row, and more tokens than are looked at at once.
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 1, 300, 64, 64),
    (1, 3, 17, 33, 5),
    (2, 5, 31, 8, 40),
    (1, 7, 33, 16, 16),
    (3, 8, 16, 32, 32),
    (1, 9, 257, 20, 33),
    (2, 12, 32, 64, 17),
    (1, 13, 255, 31, 64),
    (2, 31, 64, 48, 96),
    (1, 33, 600, 24, 15),
    (1, 40, 513, 7, 129),
    (1, 65, 40, 256, 256),
    (1, 16, 20, 300, 24),
    (1, 9, 20, 24, 300),
    (1, 9, 20, 24, 600),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def operands(*shape: int) -> tuple[NDArray[np.float32], ...]:
    """q, k and v."""
    heads, rows, tokens, numbers, outputs = shape
    rng = np.random.default_rng(shape)
    shapes = (heads, rows, numbers), (heads, tokens, numbers), (heads, tokens, outputs)
    return tuple(rng.standard_normal(each).astype(np.float32) for each in shapes)


def causal(rows: int, tokens: int) -> NDArray[np.float32]:
    """A row sees the tokens up to its own; the last row sees all."""
    return np.where(np.arange(tokens) <= np.arange(rows)[:, None] + tokens - rows, 0, -np.inf).astype(np.float32)


@every_shape
@every_isa
def test_shapes(isa: str, shape: tuple[int, ...]) -> None:
    _, rows, tokens, numbers, _ = shape
    q, k, v = operands(*shape)
    scale = numbers**-0.5
    rng = np.random.default_rng(1)
    seen = causal(rows, tokens)
    seen[:, 0] = 0  # where there are more rows than tokens, each sees one
    added = [rng.standard_normal(each).astype(np.float32) for each in ((1, tokens), (rows, 1))]
    masks = [None, seen, *added]
    for i, mask in enumerate(masks):
        for exact in (False, True):
            y = attention(
                isa,
                (q, k, v),
                mask,
                scale=scale,
                exact=exact,
                turned=(i + rows) % 2 == 0,
                threads=1 + i % 3,
                place=guarded,
            )
            off = np.abs(y - reference(q, k, v, mask, scale)[0])
            assert np.all(off <= bound(q, k, v, mask, scale, exact=exact))


@every_shape
@every_isa
def test_joined_heads_give_the_same_bits(isa: str, shape: tuple[int, ...]) -> None:
    """Heads that lie side by side in a row are the same numbers elsewhere."""
    heads = 3
    q, k, v = operands(heads, *shape[1:])
    for mask in (None, causal(shape[1], shape[2])):
        for exact in (False, True):
            wanted = attention(isa, (q, k, v), mask, exact=exact)
            for threads in (1, 2):
                y = attention(isa, (q, k, v), mask, exact=exact, joined=True, threads=threads, place=guarded)
                np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@every_isa
def test_fast_is_within_one_percent(isa: str, spread: float) -> None:
    """The promise of `activations = fast`: from weights that are all alike to some that take nearly all."""
    q, k, v = operands(2, 40, 200, 64, 64)
    q *= np.float32(spread)
    wanted, _ = reference(q, k, v, causal(40, 200), 0.125)
    y = attention(isa, (q, k, v), causal(40, 200), scale=0.125)
    assert np.linalg.norm(y - wanted) / np.linalg.norm(wanted) <= 0.01
    if spread > 1:
        assert isa != "amx" or np.any(y != attention(isa, (q, k, v), causal(40, 200), scale=0.125, exact=True))


@pytest.mark.parametrize("rows", [1, 3, 40])
@every_isa
def test_scores_of_any_size(isa: str, rows: int) -> None:
    """Scores beyond what exp holds, whose largest come first, last, or in between; weights stay weights."""
    q, k, v = operands(1, rows, 700, 16, 16)
    for place in (3, 300, 699):
        far = k.copy()
        far[:, place] = 300 * q[0, 0] / np.linalg.norm(q[0, 0])
        wanted, _ = reference(q, far, v)
        y = attention(isa, (q, far, v))
        assert np.all(np.isfinite(y))
        np.testing.assert_allclose(y[0, 0], wanted[0, 0], rtol=0.02, atol=0.02)
        np.testing.assert_allclose(attention(isa, (q, far, v), exact=True), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [2, 40])
@every_isa
def test_what_no_row_may_see(isa: str, rows: int) -> None:
    """Tokens of mask -inf count nothing, wherever they stand and whatever v holds; of a row that sees none comes NaN,
    as of the body; a large negative number in the place of -inf leaves a row that has nothing else the mean of all."""
    q, k, v = operands(1, rows, 600, 16, 16)
    for hidden in (slice(0, 290), slice(100, 599), slice(256, 512)):
        mask = np.zeros((rows, 600), np.float32)
        mask[:, hidden] = -np.inf
        seen = mask[0] == 0
        wanted, _ = reference(q, k[:, seen], v[:, seen])
        np.testing.assert_allclose(attention(isa, (q, k, v), mask), wanted, rtol=0.05, atol=0.05)
    mask = np.zeros((rows, 600), np.float32)
    mask[0] = -np.inf
    y = attention(isa, (q, k, v), mask)
    assert np.all(np.isnan(y[0, 0]))
    assert np.all(np.isfinite(y[0, 1:]))
    for low in (np.finfo(np.float32).min, np.float32(-1e35)):
        mask[0] = low
        y = attention(isa, (q, k, v), mask)
        np.testing.assert_allclose(y[0, 0], v[0].mean(0), atol=0.01)
        # All rows but that one see only the first tokens.
        mask[1:, 37:] = low
        some = attention(isa, (q, k, v), mask)
        np.testing.assert_allclose(some[0, 0], v[0].mean(0), atol=0.01)
        np.testing.assert_allclose(some[0, 1:], reference(q, k[:, :37], v[:, :37])[0][0, 1:], rtol=0.05, atol=0.05)
        mask[1:] = 0


@every_isa
def test_rows_do_not_see_each_other(isa: str) -> None:
    q, k, v = operands(2, 40, 70, 24, 24)
    wanted = attention(isa, (q, k, v))
    for bad in (np.inf, np.nan):
        spoilt = q.copy()
        spoilt[0, 5, 3] = bad
        y = attention(isa, (spoilt, k, v))
        assert np.all(np.isnan(y[0, 5]))
        np.testing.assert_array_equal(np.delete(y[0], 5, 0), np.delete(wanted[0], 5, 0))
        np.testing.assert_array_equal(y[1], wanted[1])


@every_isa
def test_threads_do_not_change_the_result(isa: str) -> None:
    for rows in (1, 40):
        q, k, v = operands(3, rows, 300, 24, 24)
        one = attention(isa, (q, k, v))
        for threads in (2, 5, 16):
            np.testing.assert_array_equal(attention(isa, (q, k, v), threads=threads), one)


def test_each_isa_has_a_kernel_and_no_better_one_is_taken() -> None:
    order = kernels.isas()
    for isa in order:
        assert order.index(kernel_for(isa, 16)) >= order.index(isa)
    assert kernel_for("scalar", 16) == "scalar"
    assert {"amx", "avx512", "avx2", "scalar"}.intersection(order) == set(KERNELS)
    assert kernel_for(order[0], 16, outputs=100_000) == "scalar"
