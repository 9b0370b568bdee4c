"""The samples in docs/samples, and the lines of a bundle, compiled and run: the numbers are those of Python.

C++ needs a compiler and onnxruntime's headers (Debian: libonnxruntime-dev, or a folder in `ONNXQ_ORT_HEADERS`); the
library is that of the installed Python package. Java needs onnxruntime's jar, which `ONNXQ_ORT_JAR` names. C# needs
Mono (Debian: mono-mcs) and the sources of onnxruntime's binding, whose folder `ONNXQ_ORT_CSHARP` names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import csharp_binding
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.bundles.export import export
from onnxq.recipe import Recipe
from onnxq.runtime import native
from onnxq.runtime.session import Session

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
]
SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
PLACES = [os.environ.get("ONNXQ_ORT_HEADERS", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
HEADERS = next((place for place in PLACES if place and Path(place, "onnxruntime_cxx_api.h").exists()), None)
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
JAR = os.environ.get("ONNXQ_ORT_JAR", "")
CSHARP = os.environ.get("ONNXQ_ORT_CSHARP", "")
needs_mono = pytest.mark.skipif(
    shutil.which("mcs") is None or not CSHARP, reason="needs Mono (mono-mcs), and ONNXQ_ORT_CSHARP"
)
needs_headers = pytest.mark.skipif(
    HEADERS is None or COMPILER is None, reason="needs a C++ compiler and onnxruntime's headers (libonnxruntime-dev)"
)
TEXT = """g (float[n, 64] x, int64[n] ids) => (float[n, 48] y) {
    e = Gather(table, ids)  s = Add(x, e)  a = MatMul(s, w)  b = Relu(a)  y = MatMul(b, v) }"""
SHAPES = {"table": (32, 64), "w": (64, 128), "v": (128, 48)}
CONSTANTS = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
#: What the samples make up.
FEED = {"x": np.sin(np.arange(64, dtype=np.float32))[None], "ids": np.array([0])}


def quantized(folder: Path, scheme: str) -> Path:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), folder)
    recipe = Recipe(scheme, min_sqnr=-np.inf, keep_slow=True)
    data = [FEED] if scheme == "w8a8" else None
    onnxq.quantize(model, folder / "small.onnx", recipe, target="onnxq", data=data, check=False)
    return folder / "small.onnx"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized(tmp_path_factory.mktemp("small"), "nf4")  # whose body computes with floats


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with onnxruntime's shared library under the names that linker and loader look for."""
    folder = tmp_path_factory.mktemp("onnxruntime")
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("the installed onnxruntime has no shared library of its own")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(found[-1])
    return folder


def compiled(source: Path, runtime: Path, program: Path) -> Path:
    link = [f"-L{runtime}", "-lonnxruntime", f"-Wl,-rpath,{runtime}"]
    command = [str(COMPILER), "-std=c++17", "-Wall", "-Wextra", f"-I{HEADERS}", str(source), *link, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(text: str) -> NDArray:
    name, shape, numbers = re.fullmatch(r"(\w+) \[([\d, ]+)\] (.*)\n", text).groups()  # type: ignore[union-attr]
    assert name == "y"
    return np.array(numbers.split(), np.float32).reshape([int(n) for n in shape.split(",")])


def require_the_same(small: Path, *program: object) -> None:
    """With the library and without."""
    for library, more in ((True, [onnxq.ops_library()]), (False, [])):
        (wanted,) = Session(small, library=library).run(FEED)
        assert tiny.sqnr(wanted, printed(run(*program, small, *more))) > 100
    done = subprocess.run([*map(str, program), small, "no.so"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no.so" in done.stderr


@needs_headers
def test_cpp(small: Path, runtime: Path, tmp_path: Path) -> None:
    program = compiled(SAMPLES / "run_model.cc", runtime, tmp_path / "run_model")
    require_the_same(small, program)
    wanted, other = (Session(small, library=library).run(FEED)[0] for library in (True, False))
    assert tiny.sqnr(wanted, other) < 100  # or nobody could tell which of them ran


@needs_headers
def test_the_cpp_lines_of_a_bundle(small: Path, runtime: Path, tmp_path: Path) -> None:
    folder = export(small, tmp_path / "b", check=False).output
    (block,) = re.findall(r"^```cpp\n([\s\S]*?)^```", (folder / "README.md").read_text(), re.MULTILINE)
    include, _, lines = block.partition("\n")
    source = tmp_path / "lines.cc"
    source.write_text(f"{include}\nint main() {{\n{lines}\nreturn static_cast<int>(session.GetInputCount()) - 2;\n}}\n")
    run(compiled(source, runtime, tmp_path / "lines"), cwd=folder)


@pytest.mark.skipif(shutil.which("java") is None or not Path(JAR).is_file(), reason="needs java, and ONNXQ_ORT_JAR")
def test_java(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "w8a8"))
    model.ir_version = 9  # as onnxruntime 1.17 reads it
    onnx.save(model, tmp_path / "m.onnx")
    require_the_same(tmp_path / "m.onnx", "java", "-cp", JAR, SAMPLES / "RunModel.java")


@pytest.fixture(scope="module")
def binding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return csharp_binding.build(Path(CSHARP), tmp_path_factory.mktemp("binding"))


def compiled_csharp(source: Path, binding: Path, program: Path) -> Path:
    """Beside the binding, where Mono looks for it."""
    program = binding.parent / program
    run("mcs", "-langversion:7", f"-r:{binding}", f"-out:{program}", source)
    return program


@needs_mono
def test_csharp(small: Path, runtime: Path, binding: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{runtime}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    program = compiled_csharp(SAMPLES / "RunModel.cs", binding, Path("RunModel.exe"))
    require_the_same(small, "mono", program)


@needs_mono
def test_the_csharp_lines_of_a_bundle(
    small: Path, runtime: Path, binding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{runtime}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    folder = export(small, tmp_path / "b", check=False).output
    (block,) = re.findall(r"^```csharp\n([\s\S]*?)^```", (folder / "README.md").read_text(), re.MULTILINE)
    include, _, lines = csharp_binding.older(block).partition("\n")
    source = tmp_path / "Lines.cs"
    count = "return session.InputMetadata.Count - 2;"
    source.write_text(f"{include}\nstatic class Lines {{ static int Main() {{\n{lines}\n{count}\n}} }}\n")
    run("mono", compiled_csharp(source, binding, Path("Lines.exe")), cwd=folder)
