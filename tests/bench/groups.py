"""What products of one input would gain as one node: `python tests/bench/groups.py [--threads 2]`.

q, k and v of an attention read the same input. Three nodes of target `onnxq` are timed in turns with one whose columns
are theirs side by side, which is the most that a node with three outputs can gain, and with that one and a Split, which
needs no new operator. All give the same numbers, which is seen before times are taken. Layers with weights of their own
follow each other in a run, so that caches hold them no better than in a model.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import onnxq
from onnxq.runtime.session import Session
from onnxq.runtime.timing import race

#: Columns of the input and of each product, rows, layers in a run, products of one input.
WIDTHS, ROWS, LAYERS, GROUP = (256, 1024, 2048), (1, 4, 16, 128), 4, 3
SCHEMES, WAYS = ("w4a16", "bf16"), ("three", "one", "one and Split")
SECONDS = 0.5


def write(path: Path, weights: list[NDArray[np.float32]], way: str) -> Path:
    """A float model of all layers, `weights` of shape `[K, GROUP · K]`; its outputs are theirs."""
    nodes, constants, outputs = [], [], []
    for i, w in enumerate(weights):
        parts = [f"y{i}_{j}" for j in range(GROUP)]
        if way == "three":
            for part, columns in zip(parts, np.split(w, GROUP, axis=1), strict=True):
                constants.append(numpy_helper.from_array(columns, f"w_{part}"))
                nodes.append(helper.make_node("MatMul", ["x", f"w_{part}"], [part]))
        else:
            constants.append(numpy_helper.from_array(w, f"w{i}"))
            nodes.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]))
        if way == "one and Split":
            nodes.append(helper.make_node("Split", [f"y{i}"], parts, axis=1, num_outputs=GROUP))
        outputs += [f"y{i}"] if way == "one" else parts
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weights[0].shape[0]])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "products", [x], values, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def sessions(width: int, scheme: str, threads: int, folder: Path) -> list[Session]:
    rng = np.random.default_rng(width)
    weights = [rng.standard_normal((width, GROUP * width), np.float32) * width**-0.5 for _ in range(LAYERS)]
    found = []
    for way in WAYS:
        model = write(folder / "float.onnx", weights, way)
        recipe = onnxq.Recipe(scheme, keep_slow=True)
        output = onnxq.quantize(model, folder / f"{way}.onnx", recipe, target="onnxq", force=True).output
        found.append(Session(output, threads=threads))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    table = Table("K", "scheme", "rows", "three, µs", "one: faster", "one and Split", box=None)
    for width in WIDTHS:
        for scheme in SCHEMES:
            with tempfile.TemporaryDirectory() as folder:
                of_ways = sessions(width, scheme, options.threads, Path(folder))
            for rows in ROWS:
                x = np.random.default_rng(rows).standard_normal((rows, width), np.float32)
                three, *others = (np.concatenate(each.run({"x": x}), axis=1) for each in of_ways)
                for other in others:
                    np.testing.assert_allclose(other, three, rtol=1e-5, atol=1e-5)
                found = race(of_ways, [{"x": x}] * len(WAYS), seconds=SECONDS).seconds
                ratios = [f"{found[0] / seconds:.2f}×" for seconds in found[1:]]
                table.add_row(str(width), scheme, str(rows), f"{1e6 * found[0] / LAYERS:.0f}", *ratios)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
