"""Weights of a model that lies in a store: each is fetched when somebody reads it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxq.files import mirror


class RangedTensor(ir.ExternalTensor):
    """An external tensor whose part of the file is fetched first."""

    __slots__ = ()

    def _load(self) -> None:
        ensure(self)
        super()._load()  # type: ignore[no-untyped-call]

    def tofile(self, file: Any) -> None:
        ensure(self)
        super().tofile(file)


def ensure(tensor: ir.ExternalTensor) -> None:
    """Fetch what a tensor holds, where it lies in a store."""
    start = tensor.offset or 0
    mirror.ensure(tensor.path, start, start + (tensor.length or tensor.nbytes))


def let_fetch(tensor: ir.ExternalTensor) -> None:
    """Make a tensor of a file that comes from a store a `RangedTensor`, wherever it is referred to."""
    if mirror.url_of(tensor.path) is not None:
        tensor.__class__ = RangedTensor
