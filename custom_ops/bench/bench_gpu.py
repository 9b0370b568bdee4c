"""The GPU through the library's C ABI: memory, streams, graphs, times. No other package is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORMATS = {"int4": 0, "int8": 1, "nf4": 2, "fp4": 3, "mxfp4": 4}
FLOAT16 = 10
SCALES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint8): 2}
PATHS = {"auto": 0, "gemv": 1, "tensor": 2, "dequantize": 3, "direct": 4}


class Matmul(ctypes.Structure):
    """custom_ops/cuda/problem.h"""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("M", "N", "K")),
        *((name, ctypes.c_int32) for name in ("block", "format", "type", "scale_type", "exact", "path")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scales", "zero_points", "bias", "y")),
    )


class Product(ctypes.Structure):
    """custom_ops/cuda/matmul.h"""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "stride", "y_stride")),
        *((name, ctypes.c_int32) for name in ("type", "y_type", "exact", "beta")),
        *((name, ctypes.c_void_p) for name in ("x", "w", "y")),
    )


class Gpu:
    """The first GPU, and one stream of it."""

    def __init__(self, library: Path) -> None:
        load_cublas()
        self.library = ctypes.CDLL(str(library))
        if self.library.onnxq_cuda_devices() == 0:
            raise SystemExit("There is no NVIDIA GPU here, so there is nothing to measure.")
        name, numbers = ctypes.create_string_buffer(256), (ctypes.c_int64 * 3)()
        self.call("describe", name, 256, numbers)
        self.name, self.multiprocessors, self.l2_bytes = name.value.decode(), int(numbers[0]), int(numbers[1])
        self.stream = ctypes.c_void_p()
        self.call("stream", ctypes.byref(self.stream))
        self.first, self.last = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("event", ctypes.byref(self.first))
        self.call("event", ctypes.byref(self.last))
        self.cublas: ctypes.c_void_p | None = ctypes.c_void_p()
        try:
            self.call("cublas_create", ctypes.byref(self.cublas), self.stream)
        except RuntimeError as error:
            print(f"{error} Nothing is compared with float16, and large M take our own kernel.")
            self.cublas = None
        self.memory: list[ctypes.c_void_p] = []

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, f"onnxq_cuda_{name}")
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error is not None:
            raise RuntimeError(error.decode())

    def room(self, size: int) -> int:
        """The address of `size` bytes that stay until `forget`, all of them 0xFF: NaN in every float type."""
        made = ctypes.c_void_p()
        self.call("malloc", ctypes.byref(made), ctypes.c_int64(max(1, size)))
        self.memory.append(made)
        self.poison(made.value or 0, size)
        return made.value or 0

    def upload(self, array: NDArray) -> int:
        array = np.ascontiguousarray(array)
        address = self.room(array.nbytes)
        self.copy(address, array.ctypes.data, array.nbytes)
        return address

    def copy(self, to: int, source: int, size: int) -> None:
        self.call("copy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_int64(size), self.stream)
        self.call("synchronize", self.stream)

    def poison(self, address: int, size: int) -> None:
        self.call("fill", ctypes.c_void_p(address), 0xFF, ctypes.c_int64(size), self.stream)
        self.call("synchronize", self.stream)

    def forget(self) -> None:
        for each in self.memory:
            self.call("free", each)
        self.memory.clear()

    def matmul(self, p: Matmul) -> None:
        self.call("matmul", ctypes.byref(p), self.stream, self.cublas)

    def seconds(self, launches: Sequence[Callable[[], None]], repeats: int) -> float:
        """Median time of one of `launches`, all of which are one graph that is replayed."""
        for launch in launches[:2]:  # loads the kernels, which must not happen while a graph is captured
            launch()
        self.call("synchronize", self.stream)
        graph = ctypes.c_void_p()
        self.call("capture", self.stream)
        for launch in launches:
            launch()
        self.call("captured", self.stream, ctypes.byref(graph))
        times = []
        for i in range(repeats + 3):
            self.call("record", self.first, self.stream)
            self.call("replay", graph, self.stream)
            self.call("record", self.last, self.stream)
            milliseconds = ctypes.c_float()
            self.call("elapsed", ctypes.byref(milliseconds), self.first, self.last)
            if i >= 3:
                times.append(milliseconds.value * 1e-3 / len(launches))
        self.call("free_graph", graph)
        return float(np.median(times))

    def copy_bandwidth(self, size: int = 1 << 30) -> float:
        """Bytes read and written a second by copies inside the GPU's memory: the ceiling of everything here."""
        a, b = self.room(size), self.room(size)

        def launch() -> None:
            self.call("copy", ctypes.c_void_p(b), ctypes.c_void_p(a), ctypes.c_int64(size), self.stream)

        seconds = self.seconds([launch] * 4, 9)
        self.forget()
        return 2 * size / seconds

    def sets(self, size: int) -> int:
        """How many weights of so many bytes overflow the L2 cache four times."""
        return max(2, math.ceil(4 * self.l2_bytes / size))


def load_cublas() -> None:
    """Makes the cuBLAS that PyTorch or NVIDIA's own package brought part of the process, where our library finds it."""
    for name in ("libcublas.so.13", "libcublas.so.12"):
        places = [Path(name)]
        found = importlib.util.find_spec("nvidia")
        for folder in found.submodule_search_locations or () if found else ():
            places += sorted(Path(folder).glob(f"*/lib/{name}"))
        for place in places:
            try:
                lt = place.with_name(place.name.replace("cublas", "cublasLt"))
                if place.parent != Path(".") and lt.exists():
                    ctypes.CDLL(str(lt), mode=ctypes.RTLD_GLOBAL)
                ctypes.CDLL(str(place), mode=ctypes.RTLD_GLOBAL)
                return
            except OSError:
                continue
