"""What was made of weights, kept for whoever asks for the same again.

The parts of one weight (codes, scales, zero points) are written one after the other, each plan that is measured asks
for most weights as the one before did, and so does each method of calibration that is tried. So there is always a memo.
The usual one holds only what was made last. `remembering()` opens one that holds up to `MEMORY_BYTES` in memory; what
has not been asked for longest goes to a temporary file of at most `DISK_BYTES`, from which reading is many times faster
than encoding anew. Beyond that, what is dropped is made again.
"""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import onnx_ir as ir

from onnxq import algorithms
from onnxq.formats import Format, Granularity, QuantizedTensor

#: What may be held in memory, and in the temporary file, while plans are compared.
MEMORY_BYTES, DISK_BYTES = 1 << 28, 1 << 32
#: Where a tensor that is worked out from another one says from which, and how (`model.graph.lazily`).
DERIVED = "onnxq_derived"


@dataclass(frozen=True)
class _Place:
    """Where in the temporary file an encoding lies, and what is not written there. The owner's identity is in the key,
    so that it must live as long."""

    owner: object
    format: Format
    granularity: Granularity
    start: int


class Memo:
    """Results by key, each made once as long as there is room.

    Args:
        memory, disk: bytes that may be taken. What was made last stays in memory, whatever its size.

    Attributes:
        nbytes: what is in memory.
        made: how many results were made, and not found.
    """

    def __init__(self, memory: int = 0, disk: int = 0) -> None:
        self.memory, self.disk = memory, disk
        self.nbytes = self.made = 0
        self._held: OrderedDict[Hashable, tuple[object, QuantizedTensor]] = OrderedDict()
        self._places: dict[Hashable, _Place] = {}
        self._answers: dict[Hashable, tuple[object, bool]] = {}
        self._file: BinaryIO | None = None

    def result(self, key: Hashable, owner: object, make: Callable[[], QuantizedTensor]) -> QuantizedTensor:
        """What `make` makes, unless it is here.

        Args:
            owner: what the key identifies by its address.
        """
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key][1]
        if key in self._places:
            found = self._read(self._places[key])
        else:
            self.made += 1
            found = make()
        self._held[key] = owner, found
        self.nbytes += _nbytes(found)
        while self.nbytes > self.memory and len(self._held) > 1:
            self._drop_oldest()
        return found

    def has(self, key: Hashable) -> bool:
        """Whether this result need not be made any more."""
        return key in self._held or key in self._places

    def answer(self, key: Hashable, owner: object, find: Callable[[], bool]) -> bool:
        """The answer to a question about a weight, remembered where results are."""
        if not self.memory:
            return find()
        if key not in self._answers:
            self._answers[key] = owner, find()
        return self._answers[key][1]

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._places.clear()
        self._answers.clear()
        self.nbytes = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _drop_oldest(self) -> None:
        key, (owner, oldest) = self._held.popitem(last=False)
        self.nbytes -= _nbytes(oldest)
        if key not in self._places and self.disk:
            try:
                self._write(key, owner, oldest)
            except OSError:  # no room there: what was written can be read all the same
                self.disk = 0

    def _write(self, key: Hashable, owner: object, q: QuantizedTensor) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="onnxq-")  # noqa: SIM115 - closed by `clear`
        start = self._file.seek(0, 2)
        if start + _nbytes(q) > self.disk:
            return
        pickle.dump((q.codes, q.scales, q.zero_points, q.nested), self._file, pickle.HIGHEST_PROTOCOL)
        self._file.flush()
        self._places[key] = _Place(owner, q.format, q.granularity, start)

    def _read(self, place: _Place) -> QuantizedTensor:
        assert self._file is not None
        self._file.seek(place.start)
        return QuantizedTensor(place.format, place.granularity, *pickle.load(self._file))


_last = Memo()
_current = _last


def current() -> Memo:
    return _current


@contextlib.contextmanager
def remembering(memory: int | None = None, disk: int | None = None) -> Iterator[Memo]:
    """Within, no weight is encoded twice in the same way, as far as there is room."""
    global _current
    memory, disk = MEMORY_BYTES if memory is None else memory, DISK_BYTES if disk is None else disk
    before, _current = _current, Memo(memory, disk)
    try:
        yield _current
    finally:
        _current.clear()
        _current = before
        forget()


def forget() -> None:
    """Drop what was made last, where no more is remembered, and what algorithms keep for the next of the same kind."""
    _last.clear()
    algorithms.forget()


def identity(tensor: ir.TensorProtocol) -> Hashable:
    """The same for one tensor, and for tensors that were worked out from it in the same way; as long as it lives."""
    base, how = tensor.meta.get(DERIVED, (None, None))
    return id(tensor) if base is None else (identity(base), how)


def _nbytes(q: QuantizedTensor) -> int:
    return sum(part.nbytes for part in (q.codes, q.scales, q.zero_points) if part is not None)
