"""What a process reads of a store is what lies there, whatever it has read of it before."""

from __future__ import annotations

from typing import Any

import pytest

from onnxq.errors import BadData
from onnxq.files import mirror, storage

fsspec = pytest.importorskip("fsspec")


def test_a_folder_whose_files_change_is_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own library remembers lists of folders, as that for S3 does."""
    memory, listed = fsspec.filesystem("memory"), {}

    class Remembers(type(memory)):  # type: ignore[misc]
        def find(self, path: str, *rest: Any, **options: Any) -> Any:
            return listed.setdefault(path, super().find(path, *rest, **options))

        def invalidate_cache(self, path: str | None = None) -> None:
            listed.clear()

    store = Remembers(skip_instance_cache=True)
    monkeypatch.setattr(storage, "_fs", lambda url: store)
    for names in (["a.npy"], ["a.npy", "b.npy"], ["b.npy"]):
        memory.store.clear()
        for name in names:
            memory.pipe_file(f"/replaced/{name}", b"x")
        found = mirror.local("memory://replaced", BadData)
        assert sorted(file.name for file in found.iterdir()) == names
