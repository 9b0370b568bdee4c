"""The corpus's cases of models: what has done harm once, or would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import tiny
from attack import mutate
from attack.hostile import INSPECT, MATMUL, QUANTIZE, Hostile, W, changed, file, model, outside, pipe, save
from onnx import TensorProto, helper

BY_LAYER = ("check", "model.onnx", "model.onnx", "--by-layer")


def no_tensor(op: str, kind: Callable[[onnx.TypeProto], onnx.TypeProto]) -> Callable[[Path], None]:
    """A model with an output, beside its own, that is no tensor but has one in it."""

    def make(folder: Path) -> None:
        proto = tiny.model(MATMUL, W)
        proto.graph.node.append(helper.make_node(op, ["y"], ["no_tensor"]))
        proto.graph.output.append(helper.make_value_info("no_tensor", kind(proto.graph.output[0].type)))
        save(proto, folder)

    return make


def in_body_of_function(location: str) -> Callable[[Path], None]:
    """The tensor is an initializer of an If body in a local function."""

    def make(folder: Path) -> None:
        function = """<domain: "local", opset_import: ["" : 17]> f (x, c) => (y) {
            y = If(c) <then_branch = t () => (p) { p = Add(x, x) }, else_branch = e () => (q) { q = Neg(x) }> }"""
        proto = tiny.model(
            "g (float[1, 64] x, bool c) => (float[1, 64] y) { h = MatMul(x, w) y = local.f(h, c) }",
            W,
            functions=function,
        )
        body = proto.functions[0].node[0].attribute[0].g
        body.initializer.append(outside(location))
        body.node[0].input[1] = "v"
        save(proto, folder)

    return make


def everywhere(place: str) -> Callable[[Path], None]:
    """A tensor outside the model's folder, in each place that may hold one."""

    def change(p: onnx.ModelProto) -> None:
        bad = outside("/etc/passwd")
        sparse = onnx.SparseTensorProto(
            values=bad, indices=helper.make_tensor("i", TensorProto.INT64, [1], [0]), dims=[9]
        )
        constant = p.graph.node.add(op_type="Constant", output=["unused"])
        if place == "tensor":
            constant.attribute.add(name="value", type=4).t.CopyFrom(bad)
        elif place == "tensors":
            constant.attribute.add(name="custom", type=9).tensors.append(bad)
        elif place == "sparse attribute":
            constant.attribute.add(name="sparse_value", type=11).sparse_tensor.CopyFrom(sparse)
        elif place == "sparse attributes":
            constant.attribute.add(name="custom", type=12).sparse_tensors.append(sparse)
        elif place == "sparse initializer":
            p.graph.sparse_initializer.append(sparse)
        elif place == "training":
            p.training_info.add().initialization.initializer.append(bad)
        elif place == "hidden in another attribute":
            constant.attribute.add(name="value_float", type=1, f=1.0).t.CopyFrom(bad)

    return changed(change)


def text_that_is_compared(folder: Path) -> None:
    """Inputs are made up by what they are compared with."""
    head = "g (float[1, 64] x, string[1] s) => (float[1, 64] y)"
    text = f'{head} {{ k = Constant <value_strings = ["a"]> ()  q = Equal (s, k)  c = Cast <to = 1> (q)'
    model(folder, f"{text}  m = MatMul (x, w)  y = Add (m, c) }}", opset=19)


def external(location: str, size: int = 64, **entries: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "w.data").write_bytes(b"\0" * size)
        (folder / "link.data").symlink_to(mutate.elsewhere(folder))
        os.mkfifo(folder / "pipe.data")
        changed(lambda p: p.graph.initializer.append(outside(location, **entries)))(folder)

    return make


def twice(key: str, value: str) -> Callable[[Path], None]:
    """What is said of a tensor's place is said again, and otherwise, before."""

    def make(folder: Path) -> None:
        (folder / "w.data").write_bytes(b"\0" * 64)

        def change(p: onnx.ModelProto) -> None:
            tensor = outside("w.data", offset="0", length="64")
            first = onnx.StringStringEntryProto(key=key, value=value)
            tensor.external_data.insert(0, first)
            p.graph.initializer.append(tensor)

        changed(change)(folder)

    return make


def in_memory(word: str) -> Callable[[Path], None]:
    """A file that is called as onnxruntime spells an address in its own memory."""

    def make(folder: Path) -> None:
        (folder / "*" / word).mkdir(parents=True)
        (folder / "*" / word / "*").write_bytes(b"\0" * 8192)
        tensor = outside(f"*/{word}/*", offset="4096", length="64")
        changed(lambda p: p.graph.initializer.append(tensor))(folder)

    return make


def doubling(folder: Path) -> None:
    """Forty functions, each of which calls the one before twice."""
    head = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
    functions = f"{head} f0 (x) => (y) {{ y = Neg(x) }}"
    for i in range(1, 40):
        functions += f"\n{head} f{i} (x) => (y) {{ a = local.f{i - 1}(x) y = local.f{i - 1}(a) }}"
    model(folder, "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w) y = local.f39(h) }", functions)


def circle(folder: Path) -> None:
    head = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
    functions = f"{head} f (x) => (y) {{ y = local.g(x) }} {head} g (x) => (y) {{ y = local.f(x) }}"
    model(folder, "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w) y = local.f(h) }", functions)


def chain(folder: Path) -> None:
    """A thousand functions, each of which calls the next."""
    head = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
    functions = f"{head} f0 (x) => (y) {{ y = Neg(x) }}"
    for i in range(1, 1000):
        functions += f"\n{head} f{i} (x) => (y) {{ y = local.f{i - 1}(x) }}"
    model(folder, "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w) y = local.f999(h) }", functions)


def negative_dimension(p: onnx.ModelProto) -> None:
    p.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


def shape(*dims: int) -> Callable[[onnx.ModelProto], None]:
    def change(p: onnx.ModelProto) -> None:
        p.graph.initializer[0].dims[:] = dims

    return change


def joined(times: int = 40) -> str:
    """A shape `s` that is joined with itself again and again, by which the heads of an attention are split."""
    chain = " ".join(f"s{i} = Concat<axis = 0>(s{i - 1}, s{i - 1})" for i in range(1, times))
    return f"""g (float[n, t, 64] x) => (float[n, m, k, l] y) {{ h = MatMul(x, w)
        s0 = Shape(x) {chain} a = Reshape(h, s{times - 1})
        q = Transpose<perm = [0, 2, 1, 3]>(a) k = Transpose<perm = [0, 2, 3, 1]>(a)
        qk = MatMul(q, k) p = Softmax<axis = -1>(qk) y = MatMul(p, q) }}"""


def growing(times: int = 3000) -> str:
    """Each value has a dimension more than the one before."""
    chain = " ".join(f"s{i} = Unsqueeze(s{i - 1}, z)" for i in range(1, times))
    return f"""g (float[1, 64] x) => (float y) {{ s0 = MatMul(x, w) z = Constant<value_ints = [0]>()
        {chain} y = Neg(s{times - 1}) }}"""


def text(text: str, *words: str, says: str = "", code: int = 0, domain: str = "") -> Hostile:
    """A model, perhaps with operators of `domain`."""

    def make(folder: Path) -> None:
        proto = tiny.model(text, W)
        if domain:
            proto.opset_import.add(domain=domain, version=1)
        save(proto, folder)

    return Hostile(make, says, words or tuple(QUANTIZE), code)


FUSING = ("quantize", "model.onnx", "-s", "w4a16", "-t", "onnxq", "-o", "out.onnx", "--no-check")


CASES: dict[str, Hostile] = {
    # Files that are not the model's
    "absolute path in a body of a function": Hostile(in_body_of_function("/etc/passwd"), "outside the model's folder"),
    "path upwards in a body of a function": Hostile(
        in_body_of_function("../../etc/passwd"), "outside the model's folder"
    ),
    **{
        f"absolute path: {place}": Hostile(everywhere(place), "outside the model's folder")
        for place in ("tensor", "tensors", "sparse attribute", "sparse attributes", "sparse initializer", "training")
        if place != "sparse attributes"
    },
    "sparse attributes": Hostile(everywhere("sparse attributes"), "a list of sparse tensors"),
    "tensor in an attribute of floats": Hostile(everywhere("hidden in another attribute"), "of another type"),
    "link to a file outside": Hostile(external("link.data"), "outside the model's folder"),
    "pipe as data": Hostile(external("pipe.data"), "is not a file"),
    "device as data": Hostile(external("/dev/zero"), "outside the model's folder"),
    "folder as data": Hostile(external("."), "is not a file"),
    "nameless data": Hostile(external(""), "in no file that could be found"),
    "null character in a path": Hostile(external("w\0.data"), "in no file that could be found"),
    "endless path": Hostile(external("n" * 5000), "in no file that could be found"),
    "negative offset": Hostile(external("w.data", offset="-64"), "is no number of bytes"),
    "overflowing offset": Hostile(external("w.data", offset=str(2**63)), "is no number of bytes"),
    "offset beyond the end": Hostile(external("w.data", offset="1"), "is cut short"),
    "offset beyond all files": Hostile(external("w.data", offset=str(2**62)), "is cut short"),
    **{
        f"{key} that is said twice": Hostile(twice(key, value), "says two things of where it lies")
        for key, value in {"location": "/etc/passwd", "offset": "4", "length": "4"}.items()
    },
    **{
        f"data in a file called {word}": Hostile(in_memory(word), "in no file that could be found")
        for word in ("_ORT_MEM_ADDR_", "_ORT_NATIVE_ENDIAN_MEM_ADDR_")
    },
    "length of another shape": Hostile(external("w.data", length="60"), "64 bytes by its type and shape, 60"),
    # Work beyond measure
    "exponential functions": Hostile(doubling, "nodes once its functions are inlined"),
    "functions in a circle": Hostile(circle, "calls itself"),
    "functions a thousand deep": Hostile(chain, "deep, more than"),
    "negative dimension and Slice": Hostile(
        changed(
            negative_dimension,
            """g (float[1, 64] x) => (float[n, m] y)
        { s = Constant<value_ints = [0]>() e = Constant<value_ints = [9]>() h = MatMul(x, w) y = Slice(h, s, e) }""",
        ),
        "",
        code=0,
    ),
    "absurd dimension": Hostile(
        changed(lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**62)), "", code=0
    ),
    "fixed shape beyond memory": Hostile(
        changed(lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**39)),
        "more than this machine's memory",
    ),
    "constant that would be expanded": Hostile(
        lambda f: (
            model(
                f,
                """g (float[1, 64] x) => (float[1, 64] y) { s = Constant<value_ints = [99999, 99999, 99]>()
        o = Constant<value_float = 1.0>() e = Expand(o, s)
        r = ReduceSum<keepdims = 0>(e) h = MatMul(x, w) y = Add(h, r) }""",
            )
            and None
        ),
        "",
        ("quantize", "model.onnx", "-s", "w4a16", "-o", "out.onnx", "--no-check"),
        code=0,
    ),
    "endless range": Hostile(
        lambda f: (
            model(
                f,
                """g (float[1, 64] x) => (float[1, 64] y) { a = Constant<value_float = 0.0>()
        b = Constant<value_float = 1e30>() d = Constant<value_float = 1e-3>() e = Range(a, b, d)
        r = ReduceSum<keepdims = 0>(e) h = MatMul(x, w) y = Add(h, r) }""",
            )
            and None
        ),
        "",
        ("quantize", "model.onnx", "-s", "w4a16", "-o", "out.onnx", "--no-check"),
        code=0,
    ),
    "shape joined with itself forty times": text(joined(), says="dimensions together", code=1),
    "ever more dimensions": text(growing(), *INSPECT, says="dimensions together", code=1),
    "input of countless columns": text(
        "g (int64[1, 9000000] i, float[1, 64] x) => (y, b) { y = MatMul(x, w) b = Neg(i) }",
        *("doctor", "model.onnx"),
    ),
    # Nodes that are what they must be, and say what nobody expects
    "Transpose by what is no order": text(
        """g (float[n, t, 64] x) => (float y) { h = MatMul(x, w)
        a = Transpose<perm = [-7, -7, -7]>(h) b = Transpose<perm = [-7, -7, -7]>(a)
        i = Constant<value_ints = [0]>() m = Constant<value_ints = [-1]>() e = Shape(x) d = Gather(e, i)
        s = Concat<axis = 0>(d, m) y = Reshape(b, s) }""",
        *FUSING,
    ),
    "OneHot of no depth": text(
        """g (int64[1, 4] i, float[1, 64] x) => (y, b) { y = MatMul(x, w) d = Constant<value = int64[0] {}>()
        v = Constant<value_floats = [0.0, 1.0]>() b = OneHot(i, d, v) }""",
        *("check", "model.onnx", "model.onnx"),
        code=3,
    ),
    "our own product by what is given in the run": text(
        """g (float[1, 64] x, bfloat16[64, 64] u) => (float[1, 64] y) { h = MatMul(x, w)
        a = onnxq.DenseMatMul<K = 64, N = 64>(h, u) y = Relu(a) }""",
        *FUSING,
        "--requantize",
        domain="onnxq",
    ),
    # Models that are none
    "too few inputs": Hostile(changed(lambda p: p.graph.node[0].input.pop()), "the operator has at least 2 and 1"),
    "too few inputs of an operator of the future, looked at": Hostile(
        changed(lambda p: (p.graph.node[0].input.pop(), setattr(p.opset_import[0], "version", 1 << 40))),
        "",
        tuple(INSPECT),
        code=0,
    ),
    "no output": Hostile(changed(lambda p: p.graph.node[0].output.pop()), "the operator has at least 2 and 1"),
    "empty input": Hostile(changed(lambda p: p.graph.node[0].input.__setitem__(1, "")), "lacks its input 'B'"),
    "transB of a wrong type": Hostile(
        changed(
            lambda p: p.graph.node[0].attribute.append(helper.make_attribute("transB", "yes")),
            "g (float[1, 64] x) => (float[1, 64] y) { y = Gemm(x, w) }",
        ),
        "is of type STRING, not INT",
    ),
    "channels in no groups": Hostile(
        changed(
            lambda p: p.graph.node[1].attribute.append(helper.make_attribute("group", 0)),
            "g (float[1, 64, 5] x) => (y) <int64[1] a = {2}> { v = Unsqueeze(w, a) y = Conv(x, v) }",
        ),
        "attribute 'group' is 0, but must be at least 1",
    ),
    **{
        f"Loop whose body {what}": Hostile(
            changed(
                lambda p, change=change: change(p.graph.node[1].attribute[0].g),
                """g (float[1, 64] x, int64 n, bool k) => (float[1, 64] y) { h = MatMul(x, w)
                y = Loop(n, k, h) <body = b (int64 i, bool c, float[1, 64] s) => (bool d, float[1, 64] t)
                { d = Identity(c)  t = Relu(s) }> }""",
            ),
            f"has 3 inputs and 1 output, which its 'body' of {says} is not for",
        )
        for what, change, says in (
            ("takes less", lambda b: b.input.pop(0), "2 inputs and 2 outputs"),
            ("gives more", lambda b: b.output.append(b.output[1]), "3 inputs and 3 outputs"),
        )
    },
    "Scan of more than it is given": Hostile(
        changed(
            lambda p: setattr(p.graph.node[1].attribute[1], "i", 2),
            """g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w)
            y = Scan(h) <body = b (float[64] s) => (float[64] t) { t = Relu(s) }, num_scan_inputs = 1> }""",
        ),
        "cannot scan 2 of its 1 input",
    ),
    "onnxruntime's own node of no input": text(
        "g (float[1, 64] x) => (float[1, 64] y, z) { y = MatMul(x, w)  z = com.microsoft.QuantizeLinear() }",
        *("check", "model.onnx", "-t", "qnn"),
        says="the operator has at least 2 and 1",
        code=1,
    ),
    "attribute without a type": Hostile(changed(lambda p: p.graph.node[0].attribute.add(name="alpha")), "has no type"),
    "data shorter than the shape": Hostile(
        changed(shape(64, 65)), "does not hold what its type and shape [64, 65] say"
    ),
    "negative shape": Hostile(changed(shape(-64, -64)), "impossible shape"),
    "shape beyond all numbers": Hostile(changed(shape(2**40, 2**40, 2**40)), "does not hold what its type and shape"),
    "unknown element type": Hostile(
        changed(lambda p: setattr(p.graph.initializer[0], "data_type", 99)), "does not know"
    ),
    "unknown type of a value": Hostile(
        changed(lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99)), "does not know"
    ),
    "text that is compared": Hostile(text_that_is_compared, "", ("doctor", "model.onnx"), 0),
    "null character in a name": Hostile(changed(lambda p: setattr(p.graph.node[0], "name", "a\0b")), "null character"),
    "endless name": Hostile(changed(lambda p: setattr(p.graph.node[0], "name", "n" * 99999)), "has 99999 characters"),
    "name that is no text": Hostile(
        lambda f: (
            (f / "model.onnx").write_bytes(tiny.model(MATMUL, W).SerializeToString().replace(b"MatMul", b"Mat\xffMu"))
            and None
        ),
        "not text in UTF-8",
    ),
    "escape sequence in a name": Hostile(
        lambda f: model(f, MATMUL.replace("MatMul(x, w)", 'MatMul(x, "a\x1b[2Jb")')) and None, "reads 'a [2Jb'"
    ),
    "body output that nobody makes": Hostile(
        lambda f: (
            model(
                f,
                """g (float[1, 64] x, bool c) => (float[1, 64] y) { h = MatMul(x, w) y = If(c) <then_branch =
        t () => (p) { q = Neg(h) }, else_branch = e () => (q) { q = Neg(h) }> }""",
            )
            and None
        ),
        "produced by no node",
    ),
    "JSON that is none": Hostile(file("m.json", "{" * 5000, "inspect", "m.json"), "does not parse as json"),
    "text that is none": Hostile(file("m.onnxtxt", "g (" * 5000, "inspect", "m.onnxtxt"), "does not parse as onnxtxt"),
    "model that is a pipe": Hostile(pipe("inspect", "pipe"), "is not a file"),
    "model that is a device": Hostile(pipe("inspect", "/dev/zero"), "is not a file"),
    "output that is no .onnx": Hostile(pipe("quantize", "model.onnx", "-o", "out.json"), "must end in .onnx"),
    "layers of an output that is optional": Hostile(
        no_tensor("Optional", helper.make_optional_type_proto), "", BY_LAYER, 0
    ),
    "layers of an output that is a sequence": Hostile(
        no_tensor("SequenceConstruct", helper.make_sequence_type_proto), "", BY_LAYER, 0
    ),
}
