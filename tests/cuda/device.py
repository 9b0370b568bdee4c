"""Products and gathers on a device: a GPU, or the emulation of one, through the same C ABI."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from abi import FORMATS, PATHS, SCALES, TYPES, Gather, Matmul, Weight
from bench_gpu import load_cublas
from numpy.typing import NDArray

POISON = 0xFF  # every byte of it: NaN in each float type


class DeviceError(Exception):
    """What the library answered."""


class Device:
    """Arrays are copied to the device for each call and the poisoned output back."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.emulated = hasattr(library, "onnxq_emulate")
        self.stream = ctypes.c_void_p(None)
        self.cublas = ctypes.c_void_p(1) if self.emulated else self._cublas()  # the emulation has one for any handle

    def _cublas(self) -> ctypes.c_void_p:
        """A handle of the cuBLAS that PyTorch or NVIDIA's own package brought; null where none did."""
        load_cublas()
        made = ctypes.c_void_p()
        try:
            self.call("cublas_create", ctypes.byref(made), self.stream)
        except DeviceError:
            return ctypes.c_void_p(None)
        return made

    def schedule(self, mode: int = 0, multiprocessors: int = 0, shared_bytes: int = 0) -> None:
        """How the emulation runs threads (bits: 1 copies at once, 2 last thread first) and how large its GPU is."""
        self.library.onnxq_emulate(mode, multiprocessors, shared_bytes)

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, f"onnxq_cuda_{name}")
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error is not None:
            raise DeviceError(error.decode())

    @contextmanager
    def memory(self, *arrays: NDArray | None) -> Iterator[list[int | None]]:
        """Addresses of copies of the arrays on the device; the emulation reads them where they are."""
        if self.emulated:
            yield [None if a is None else a.ctypes.data for a in arrays]
            return
        made: list[int | None] = []
        try:
            for array in arrays:
                address = ctypes.c_void_p()
                if array is not None:
                    self.call("malloc", ctypes.byref(address), ctypes.c_int64(max(1, array.nbytes)))
                    self.copy(address.value, array.ctypes.data, array.nbytes)
                made.append(address.value)
            yield made
        finally:
            for each in made:
                if each is not None:
                    self.call("free", ctypes.c_void_p(each))

    def copy(self, to: int | None, source: int | None, size: int) -> None:
        self.call("copy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_int64(size), self.stream)
        self.call("synchronize", self.stream)

    def matmul(
        self,
        w: Weight,
        x: NDArray,
        *,
        path: str = "auto",
        bias: NDArray | None = None,
        exact: bool = False,
        y: NDArray | None = None,
    ) -> NDArray:
        (m, k), n = x.shape, len(w.codes)
        if path == "dequantize" and not self.cublas:
            pytest.skip("there is no cuBLAS")
        if y is None:
            y = np.empty((m, n), x.dtype)
            y.view(np.uint8)[...] = POISON
        with self.memory(x, w.tiles, w.scale_tiles, w.zero_tiles, bias, y) as (px, pw, ps, pz, pb, py):
            p = Matmul(
                m, n, k, w.block, FORMATS[w.format], TYPES[x.dtype], SCALES[w.scales.dtype], exact, PATHS[path],
                px, pw, ps, pz, pb, py,
            )  # fmt: skip
            self.call("matmul", ctypes.byref(p), self.stream, self.cublas)
            if not self.emulated:
                self.copy(y.ctypes.data, py, y.nbytes)
        return y

    def gather(self, w: Weight, indices: NDArray, dtype: np.dtype) -> NDArray:
        n, k = w.codes.shape
        y = np.empty((*indices.shape, k), dtype)
        y.view(np.uint8)[...] = POISON
        with self.memory(indices, w.tiles, w.scale_tiles, w.zero_tiles, y) as (pi, pw, ps, pz, py):
            p = Gather(
                indices.size, n, k, w.block, FORMATS[w.format], TYPES[np.dtype(dtype)], SCALES[w.scales.dtype],
                indices.itemsize, 0, pi, pw, ps, pz, py,
            )  # fmt: skip
            self.call("gather", ctypes.byref(p), self.stream)
            if not self.emulated:
                self.copy(y.ctypes.data, py, y.nbytes)
        return y
