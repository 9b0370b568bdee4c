"""What a process reads of a store is what lies there, whatever it has read of it before; what it puts there replaces
nothing that came into being meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxq.errors import BadData, BadOutput
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


@pytest.mark.parametrize(
    ("said", "theirs", "left"),
    [
        (FileExistsError("/new"), b"theirs", b"theirs"),
        (
            OSError("PreconditionFailed: At least one of the pre-conditions you specified did not hold"),
            b"ours",
            b"ours",
        ),
        (OSError("A header you provided implies functionality that is not implemented"), None, b"ours"),
        (TypeError("put_file() got an unexpected keyword argument 'mode'"), None, b"ours"),
    ],
    ids=["another", "the same", "no such header", "no such option"],
)
def test_s3_takes_a_new_file_only_where_none_is(
    said: Exception, theirs: bytes | None, left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer to a file that is to be new, where somebody else was faster or it knows no such thing."""
    memory = fsspec.filesystem("memory")

    class Shop(type(memory)):  # type: ignore[misc]
        def put_file(self, here: str, there: str, **options: Any) -> None:
            if options.pop("mode", "") != "create":
                return super().put_file(here, there)
            if theirs is not None:
                self.pipe_file(there, theirs)
            raise said

    store = Shop(skip_instance_cache=True)
    store.store.pop("/shop/new", None)
    monkeypatch.setattr(storage, "_fs", lambda url: store)
    monkeypatch.setattr(storage, "_path", lambda url: "/shop/new")
    (tmp_path / "new").write_bytes(b"ours")
    if theirs == b"theirs":
        with pytest.raises(BadOutput, match=r"'s3://shop/new' came into being meanwhile; give --force to replace it"):
            storage.write(tmp_path / "new", "s3://shop/new", replace=False)
    else:
        storage.write(tmp_path / "new", "s3://shop/new", replace=False)
    assert store.cat_file("/shop/new") == left
    store.rm_file("/shop/new")
