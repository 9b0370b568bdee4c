"""Which compiled library is taken, and what is said where there is none."""

import os
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest

import onnxq
from onnxq.errors import OnnxqError
from onnxq.runtime import native


@pytest.fixture(autouse=True)
def unread() -> Iterator[None]:
    """Nothing that was found before counts, and what a test finds does not stay."""
    cached = (native.library, native.path, native._find)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The package lies in an empty folder, and none is installed."""
    monkeypatch.delenv("ONNXQ_LIBRARY", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "runtime" / "native.py"))

    def missing(name: str) -> None:
        raise native.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(native.importlib.metadata, "distribution", missing)
    return tmp_path


def test_a_missing_library_is_said_once(nothing_installed: Path) -> None:
    with pytest.warns(RuntimeWarning, match="without its compiled library .no C.. compiler was found.: encoding"):
        assert native.library() is None
    assert native.library() is None  # a second warning would be an error
    assert native.path() is None and native.cuda_path() is None


def test_a_library_of_another_version_is_said_to_be_one(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = _built()
    (nothing_installed / built.name).symlink_to(built)
    monkeypatch.setattr(native, "ABI_VERSION", 1)
    with pytest.warns(RuntimeWarning, match=f"{built.name}' was compiled for another version of onnxq"):
        assert native.library() is None


def test_a_file_beside_the_package_that_is_no_library_is_said_to_be_none(nothing_installed: Path) -> None:
    (nothing_installed / "libonnxq_native.so").write_bytes(b"not a library")
    with pytest.warns(RuntimeWarning, match="libonnxq_native.so' is not onnxq's compiled library"):
        assert native.library() is None


def test_the_sources_of_a_checkout_use_the_installed_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = Path(str(Distribution.from_name("onnxq").locate_file("onnxq")))
    if not list(installed.glob("*onnxq_native*")):
        pytest.skip("no onnxq with a compiled library is installed")
    monkeypatch.delenv("ONNXQ_LIBRARY", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "runtime" / "native.py"))
    assert native.path() is not None and native.path().parent == installed


def test_another_build_can_be_named(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = _built()
    monkeypatch.setenv("ONNXQ_LIBRARY", str(built))
    assert native.path() == built


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("mine.so", lambda path: None, "cannot be read: No such file"),
        ("mine.so", lambda path: path.write_bytes(b"not a library"), "is not onnxq's compiled library"),
        ("\udcffmine.so", lambda path: path.write_bytes(b"not a library"), "is not onnxq's compiled library"),
        ("mine.so", os.mkfifo, "is not a file"),
    ],
    ids=["missing", "no library", "a name that is no text", "pipe"],
)
def test_a_wrong_name_is_refused(
    name: str, make: Callable[[Path], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(name))
    monkeypatch.setenv("ONNXQ_LIBRARY", name)
    with pytest.raises(OnnxqError, match=rf"ONNXQ_LIBRARY: '.*mine.so' {said}"):
        native.library()


def _built() -> Path:
    """The library as any other test finds it."""
    folders = [Path(onnxq.__file__).parent, Path(str(Distribution.from_name("onnxq").locate_file("onnxq")))]
    found = [file for folder in folders for file in sorted(folder.glob("*onnxq_native*"))]
    if not found:
        pytest.skip("the compiled library was not built")
    return found[0]
