"""A llama-like decoder of any size, written to disk without ever being in memory: for tests of memory and time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


def write_llama(
    folder: Path,
    *,
    layers: int,
    width: int,
    hidden: int,
    vocabulary: int,
    heads: int = 16,
    dtype: type = np.float32,
    written: int | None = None,
) -> Path:
    """`folder`/llama.onnx with weights in llama.onnx.data; inputs: ids int64 [batch, seq].

    Weights repeat one block of normally distributed numbers, each from another place on: what matters is how many bytes
    there are, and that no two weights are equal.

    Args:
        dtype: of the weights, float32 or float16.
        written: bytes of each weight that are really there; the rest is a hole in the file, which reads as zeros.
    """
    rng = np.random.default_rng(0)
    block = (rng.standard_normal(1 << 20) * width**-0.5).astype(dtype)
    kind = TensorProto.FLOAT16 if dtype == np.float16 else TensorProto.FLOAT
    size = block.itemsize
    path, initializers, nodes = folder / "llama.onnx", [], []
    with open(folder / "llama.onnx.data", "wb") as data:

        def weight(name: str, *shape: int) -> str:
            count, offset = int(np.prod(shape)), data.tell()
            own = np.roll(block, 7919 * len(initializers))
            for start in range(0, count if written is None else min(count, written // size), block.size):
                data.write(own[: min(block.size, count - start)].tobytes())
            data.truncate(offset + size * count)
            data.seek(offset + size * count)
            tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "llama.onnx.data"), ("offset", offset), ("length", size * count)):
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            return name

        def small(name: str, values: object, dtype: type) -> str:
            initializers.append(onnx.numpy_helper.from_array(np.array(values, dtype), name))
            return name

        def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
            nodes.append(helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes))
            return output

        def norm(x: str, name: str) -> str:
            mean = add("ReduceMean", [add("Mul", [x, x], f"{name}/square"), "last"], f"{name}/mean")
            root = add("Sqrt", [add("Add", [mean, "epsilon"], f"{name}/shifted")], f"{name}/root")
            return add("Mul", [add("Div", [x, root], f"{name}/unit"), weight(f"{name}.scale", width)], name)

        def split_heads(x: str) -> str:
            y = add("Reshape", [x, "heads"], f"{x}/heads")
            return add("Transpose", [y], f"{x}/split", perm=[0, 2, 1, 3])

        small("last", [-1], np.int64)
        small("epsilon", 1e-5, dtype)
        small("heads", [0, 0, heads, width // heads], np.int64)
        small("merged", [0, 0, width], np.int64)
        small("root", (width / heads) ** -0.5, dtype)
        x = add("Gather", [weight("embedding", vocabulary, width), "ids"], "x")
        for i in range(layers):
            p = f"layers.{i}"
            h = norm(x, f"{p}/norm1")
            q, k, v = (
                split_heads(add("MatMul", [h, weight(f"{p}.{n}.weight", width, width)], f"{p}/{n}")) for n in "qkv"
            )
            k = add("Transpose", [k], f"{p}/kt", perm=[0, 1, 3, 2])
            scores = add("Mul", [add("MatMul", [q, k], f"{p}/scores"), "root"], f"{p}/scaled")
            mixed = add("MatMul", [add("Softmax", [scores], f"{p}/softmax", axis=-1), v], f"{p}/mixed")
            mixed = add("Transpose", [mixed], f"{p}/mixed_t", perm=[0, 2, 1, 3])
            mixed = add("Reshape", [mixed, "merged"], f"{p}/merged")
            out = add("MatMul", [mixed, weight(f"{p}.o.weight", width, width)], f"{p}/o")
            x = add("Add", [x, out], f"{p}/x1")
            h = norm(x, f"{p}/norm2")
            gate = add("MatMul", [h, weight(f"{p}.gate.weight", width, hidden)], f"{p}/gate")
            up = add("MatMul", [h, weight(f"{p}.up.weight", width, hidden)], f"{p}/up")
            silu = add("Mul", [gate, add("Sigmoid", [gate], f"{p}/sigmoid")], f"{p}/silu")
            act = add("Mul", [silu, up], f"{p}/act")
            x = add("Add", [x, add("MatMul", [act, weight(f"{p}.down.weight", hidden, width)], f"{p}/down")], f"{p}/x2")
        add("MatMul", [norm(x, "norm"), weight("lm_head.weight", width, vocabulary)], "logits")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])
    logits = helper.make_tensor_value_info("logits", kind, ["batch", "seq", vocabulary])
    body = helper.make_graph(nodes, "llama", [ids], [logits], initializers)
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
