"""Weights beside a model: of one that lies in a store, each is fetched when somebody reads it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxq.files import mirror


class AdmittedTensor(ir.ExternalTensor):
    """An external tensor whose place was looked at as SECURITY.md says, when its model was read."""

    __slots__ = ()

    def _check_path_containment(self) -> None:
        """Nothing: onnx_ir refuses data that are links into a store of files, as in a cache of downloads, or have two
        names, as in environments that installers make of links."""


class RangedTensor(AdmittedTensor):
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


def admit(tensor: ir.ExternalTensor) -> None:
    """Make a tensor whose place was looked at one that is read, and fetched before that where it comes from a store;
    wherever it is referred to."""
    tensor.__class__ = AdmittedTensor if mirror.url_of(tensor.path) is None else RangedTensor
