"""onnxruntime-node, and onnxruntime-web's WebAssembly, compute what Python's does, own operators by their bodies.

Needs node, and a folder `node_modules` with both packages, which `ONNXQ_NODE_MODULES` names.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
from javascript import MODULES, needs_node, node

import onnxq
from onnxq.bundles.export import export
from onnxq.output import write
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

pytestmark = [pytest.mark.usefixtures("quick"), needs_node]
TEXT = """g (float[n, 8, 12, 12] x, int64[n] ids) => (float[n, 10] y) {
    c = Conv<pads = [1, 1, 1, 1]>(x, k)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)
    e = Gather(table, ids)  s = Add(f, e)  a = MatMul(s, w)  b = Relu(a)  y = MatMul(b, v) }"""
SHAPES = {"k": (64, 8, 3, 3), "table": (32, 64), "w": (64, 128), "v": (128, 10)}
CONSTANTS = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
DATA = [{"x": tiny.normal(2, 8, 12, 12, seed=seed), "ids": np.array([seed, 31])} for seed in range(8)]
#: What is quantized, and for which target.
FILES = [
    ("w8a8", "ort-cpu"),
    ("w8a8-dynamic", "ort-cpu"),
    ("w4a16", "ort-cpu"),
    ("nf4", "ort-cpu"),
    ("w8a16", "onnx"),
    ("fp16", "onnx"),
    ("w4a16", "onnxq"),
    ("w8a8", "onnxq"),
    ("bf16", "onnxq"),
]


def quantized(folder: Path, scheme: str, target: str) -> Path:
    model, output = tiny.save(tiny.model(TEXT, CONSTANTS), folder), folder / "small.onnx"
    recipe = Recipe(scheme, min_sqnr=-np.inf, keep_slow=True)
    onnxq.quantize(model, output, recipe, target=target, data=DATA if scheme == "w8a8" else None, check=False)
    return output


def feeds(folder: Path) -> Path:
    words = {"x": "float32", "ids": "int64"}
    table = {name: [words[name], x.shape, x.reshape(-1).tolist()] for name, x in DATA[3].items()}
    (folder / "feeds.json").write_text(json.dumps(table))
    return folder / "feeds.json"


@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
@pytest.mark.parametrize(("scheme", "target"), FILES)
def test_the_same_outputs(scheme: str, target: str, package: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, scheme, target)
    (wanted,) = Session(small, library=False).run(DATA[3])
    _, dims, numbers = node("run_model.cjs", small, feeds(tmp_path), package)["y"]
    assert tiny.sqnr(wanted, np.reshape(numbers, dims)) > 25  # other processors and versions round elsewhere


@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_data_in_several_files(package: str, tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", tiny.model(TEXT, CONSTANTS)
    write.save(tiny.read(model), path, shard_size="layer")
    assert len(write.own_data(path)) == 4
    (wanted,) = Session(path).run(DATA[3])
    _, dims, numbers = node("run_model.cjs", path, feeds(tmp_path), package)["y"]
    assert tiny.sqnr(wanted, np.reshape(numbers, dims)) > 100


def test_the_lines_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path), tmp_path / "b", check=False).output
    (block,) = re.findall(r"^```js\n([\s\S]*?)^```", (folder / "README.md").read_text(), re.MULTILINE)
    assert MODULES is not None
    (tmp_path / "node_modules").symlink_to(MODULES)  # `import` looks for packages beside the script alone
    (tmp_path / "lines.mjs").write_text(f"{block}console.log(JSON.stringify(session.inputNames));\n")
    monkeypatch.chdir(folder)
    assert node(tmp_path / "lines.mjs") == ["x", "ids"]
