"""What only the emulation can show: races, splits of K, the sizes of GPUs, and reads behind the end of an array."""

from __future__ import annotations

import ctypes
import mmap

import abi
import numpy as np
import pytest
from abi import FORMATS, TYPES, Weight, random_weight, random_x
from device import Device
from numpy.typing import NDArray

EAGER, BACKWARDS = 1, 2
HALF = np.dtype(np.float16)


@pytest.fixture
def emulation(emulated: ctypes.CDLL) -> Device:
    return Device(emulated)


@pytest.mark.parametrize("format", FORMATS)
def test_results_do_not_depend_on_when_copies_arrive_or_who_runs_first(emulation: Device, format: str) -> None:
    """A barrier or a wait too few changes the answer in at least one of these orders."""
    w = random_weight(96, 800, format, 32, asymmetric=format in ("int4", "int8"))
    for m in (1, 3, 9, 20, 40):
        x = random_x(m, 800, HALF)
        answers = []
        for mode in (0, EAGER, BACKWARDS, EAGER | BACKWARDS):
            emulation.schedule(mode)
            answers.append(emulation.matmul(w, x, path="tensor"))
        wanted = x.astype(np.float64) @ w.values.T
        assert np.linalg.norm(answers[0] - wanted) < 2e-3 * np.linalg.norm(wanted)
        assert all(np.array_equal(answers[0], other) for other in answers[1:])


def cut(
    emulation: Device, m: int, n: int, k: int, type: np.dtype, format: str, block: int, gpu: tuple[int, int]
) -> dict[str, int]:
    """How a product is cut for a GPU of so many multiprocessors, with so many bytes of shared memory a block."""
    p = abi.Matmul(m, n, k, block, FORMATS[format], TYPES[type], 0, 0, 0)
    if format in ("int4", "int8"):
        p.zero_points = 1
    out = (ctypes.c_int32 * 7)()
    emulation.library.onnxq_emulated_cut(ctypes.byref(p), *gpu, out)
    return dict(zip(("warps_n", "splits", "columns", "stages", "row_bytes", "shared_bytes", "path"), out, strict=True))


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
@pytest.mark.parametrize("format", ["int4", "int8", "nf4"])
def test_splits_of_k_add_up_in_the_same_order_always(emulation: Device, format: str, splits: int) -> None:
    n, k, m = 32, 4096, 3
    w, x = random_weight(n, k, format, 64), random_x(m, k, HALF)
    sizes = {cut(emulation, m, n, k, HALF, format, 64, (sm, 99 << 10))["splits"]: sm for sm in range(1, 20)}
    chosen = min(sizes, key=lambda each: abs(each - splits))
    emulation.schedule(0, sizes[chosen], 99 << 10)
    y = emulation.matmul(w, x, path="tensor")
    wanted = x.astype(np.float64) @ w.values.T
    assert np.linalg.norm(y - wanted) < 1e-3 * np.linalg.norm(wanted)
    emulation.schedule(EAGER | BACKWARDS, sizes[chosen], 99 << 10)
    assert np.array_equal(y, emulation.matmul(w, x, path="tensor"))


GPUS = {"sm_80": (108, 163 << 10), "sm_86": (84, 99 << 10), "sm_89": (142, 99 << 10), "sm_90": (132, 227 << 10)}


@pytest.mark.parametrize("gpu", GPUS)
def test_every_shape_fits_every_gpu(emulation: Device, gpu: str) -> None:
    for format in FORMATS:
        for type in TYPES:
            for block in (16, 32, 48, 128, 256):
                for m in (1, 2, 4, 8, 9, 16, 32, 33, 64, 1000):
                    for n, k in ((1, 1), (48, 4096), (4096, 4096), (11008, 4096), (4096, 14336)):
                        shape = cut(emulation, m, n, k, type, format, block, GPUS[gpu])
                        assert shape["shared_bytes"] <= GPUS[gpu][1], (format, type, block, m, n, k)
                        assert 1 <= shape["splits"] <= 16 and shape["columns"] in (8, 16, 32, 64)


def test_rows_of_x_lie_in_banks_of_their_own(emulation: Device) -> None:
    """A quarter of a warp reads 8 × 16 bytes at once: two rows of x, four lanes of each."""
    for type, step, reads in ((HALF, 16, 1), (np.dtype(np.float32), 32, 2)):
        for m in (1, 4, 16, 32, 64):
            row_bytes = cut(emulation, m, 4096, 4096, type, "int4", 32, GPUS["sm_90"])["row_bytes"]
            for read in range(reads):
                starts = [r * row_bytes + t * step + 16 * read for r in (0, 1) for t in range(4)]
                banks = [(start + byte) // 4 % 32 for start in starts for byte in range(0, 16, 4)]
                assert len(set(banks)) == 32


def test_a_small_gpu_computes_the_same(emulation: Device) -> None:
    """Where 64 columns do not fit into shared memory, fewer are taken."""
    w, x = random_weight(64, 256, "nf4", 64), random_x(64, 256, HALF)
    wanted = x.astype(np.float64) @ w.values.T
    for shared in (227 << 10, 99 << 10):
        emulation.schedule(0, 4, shared)
        y = emulation.matmul(w, x, path="tensor")
        assert np.linalg.norm(y - wanted) < 1e-3 * np.linalg.norm(wanted)


def at_the_end_of_a_page(array: NDArray) -> NDArray:
    """A copy whose last byte lies before a page that nobody may touch."""
    page = mmap.PAGESIZE
    size = -(-max(1, array.nbytes) // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    made = np.frombuffer(memory, np.uint8, array.nbytes, size - array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.parametrize("path", ["gemv", "tensor", "dequantize", "direct"])
@pytest.mark.parametrize("format", ["int4", "int8", "mxfp4"])
@pytest.mark.parametrize(("n", "k", "block"), [(16, 64, 32), (33, 80, 16), (47, 129, 128), (17, 48, 48)])
def test_nothing_is_read_or_written_behind_its_end(
    emulation: Device, path: str, format: str, n: int, k: int, block: int
) -> None:
    scale = np.uint8 if format == "mxfp4" else np.float32
    w = random_weight(n, k, format, block, scale=scale, asymmetric=format != "mxfp4")
    guarded = Weight(
        format, block, w.codes, w.scales, w.zero_points,
        at_the_end_of_a_page(w.tiles), at_the_end_of_a_page(w.scale_tiles),
        None if w.zero_tiles is None else at_the_end_of_a_page(w.zero_tiles),
    )  # fmt: skip
    emulation.schedule()
    for m in (1, 3, 12):
        for dtype in (HALF, np.dtype(np.float32)):
            x = at_the_end_of_a_page(random_x(m, k, dtype) / 64)
            bias = at_the_end_of_a_page(np.zeros(n, dtype))
            y = at_the_end_of_a_page(np.full((m, n), np.nan, dtype))
            emulation.matmul(guarded, x, path=path, bias=bias, y=y)
            assert np.all(np.isfinite(y))
    indices = at_the_end_of_a_page(np.array([n - 1, 0], np.int64))
    assert np.all(np.isfinite(emulation.gather(guarded, indices, HALF).astype(np.float32)))
