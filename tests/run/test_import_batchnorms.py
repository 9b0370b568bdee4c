"""import-weights into models whose exporter folded BatchNorms into kernels, from checkpoints that have both."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.errors import BadModel
from onnxq.quality import sqnr
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
TEXT = """g (float[N,4,9,9] x) => (float[N,12] y) {
    [NODE1] a = Conv(x, "KERNEL1", "BIAS1")  ra = Relu(a)
    [NODE2] b = ConvTranspose <group = 2> (ra, "KERNEL2", "BIAS2")  rb = Relu(b)
    [plain] c = Conv(rb, "block.conv3.weight", "block.conv3.bias")
    p = GlobalAveragePool(c)  f = Flatten(p)
    [fc] y = Gemm <transB = 1> (f, "fc.weight", "fc.bias")
}"""
#: Of torch's exporters: the newer one keeps the names of what it folds, the older one those of modules as nodes.
NAMES = {
    "dynamo": ("n1", "block.conv1.weight", "block.conv1.weight_bias", "n2", "block.up.0.weight", "block.up.0.bias"),
    "legacy": ("/block/conv1/Conv", "onnx::1", "onnx::2", "/block/up/up.0/ConvTranspose", "onnx::3", "onnx::4"),
}
BATCHNORM = ("weight", "bias", "running_mean", "running_var")
NORMS = {"block.bn1": ("block.conv1", 8), "block.up.1": ("block.up.0", 8), "bn": ("fc", 12)}


def checkpoint(seed: int = 0, near: float = 0.0) -> dict[str, NDArray]:
    """Tensors of a trained network; `near` how far it was trained on."""
    rng = np.random.default_rng(seed)
    made = {
        "block.conv1.weight": normal(8, 4, 3, 3, seed=seed),
        "block.up.0.weight": normal(8, 4, 2, 2, seed=seed + 1),
        "block.up.0.bias": normal(8, seed=seed + 2),
        "block.conv3.weight": normal(8, 8, 3, 3, seed=seed + 3),
        "block.conv3.bias": normal(8, seed=seed + 4),
        "fc.weight": normal(12, 8, seed=seed + 5),
        "fc.bias": normal(12, seed=seed + 6),
    }
    for norm, (_, n) in NORMS.items():
        made[f"{norm}.running_mean"] = rng.standard_normal(n)
        made[f"{norm}.running_var"] = rng.uniform(0.3, 4, n)
        made[f"{norm}.weight"], made[f"{norm}.bias"] = rng.uniform(0.5, 2, n), rng.standard_normal(n)
    noise = np.random.default_rng(99)
    return {name: (x * (1 + near * noise.standard_normal(x.shape))).astype(np.float32) for name, x in made.items()}


def folded(tensors: dict[str, NDArray], epsilon: float) -> dict[str, NDArray]:
    """By name of its module, kernel and bias with the BatchNorm behind it."""
    made = dict(tensors)
    for norm, (module, n) in NORMS.items():
        gamma, beta, mean, var = (tensors[f"{norm}.{p}"] for p in ("weight", "bias", "running_mean", "running_var"))
        scale = gamma / np.sqrt(var + np.float32(epsilon))
        w = tensors[f"{module}.weight"]
        if module == "block.up.0":  # [C, M / 2, …] of two groups
            along = np.concatenate([np.tile(half, (4, 1)) for half in np.split(scale, 2)])
        else:
            along = scale[:, None]
        made[f"{module}.weight"] = w * along.reshape(*along.shape, *[1] * (w.ndim - 2))
        made[f"{module}.bias"] = (tensors.get(f"{module}.bias", np.zeros(n)) - mean) * scale + beta
    return {name: x.astype(np.float32) for name, x in made.items()}


def model(folder: Path, name: str, exporter: str, tensors: dict[str, NDArray], epsilon: float = 1e-5) -> Path:
    node1, kernel1, bias1, node2, kernel2, bias2 = NAMES[exporter]
    table = {"NODE1": f'"{node1}"', "KERNEL1": kernel1, "BIAS1": bias1, "NODE2": f'"{node2}"', "KERNEL2": kernel2}
    text = TEXT
    for word, new in (table | {"BIAS2": bias2}).items():
        text = text.replace(word, new)
    w = folded(tensors, epsilon)
    own = {name: w[name] for name in ("block.conv3.weight", "block.conv3.bias", "fc.weight", "fc.bias")}
    own |= {kernel1: w["block.conv1.weight"], bias1: w["block.conv1.bias"]}
    own |= {kernel2: w["block.up.0.weight"], bias2: w["block.up.0.bias"]}
    return tiny.save(tiny.model(text, own), folder, name)


def outputs(path: Path) -> NDArray:
    (y,) = Session(path).run({"x": normal(2, 4, 9, 9, seed=50)})
    return y


@pytest.mark.parametrize("exporter", NAMES)
@pytest.mark.parametrize(("near", "epsilon"), [(0.0, 1e-5), (0.05, 1e-5), (0.05, 1e-3)])
def test_the_checkpoints_batchnorms_are_folded_too(tmp_path: Path, exporter: str, near: float, epsilon: float) -> None:
    own = model(tmp_path, "own.onnx", exporter, checkpoint(), epsilon)
    new = checkpoint(near=near)
    path = tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    done = import_weights(own, path, tmp_path / "q.onnx")
    assert set(done.match.constants) == set(new) and not done.match.unused and not done.match.misfits
    wanted = outputs(model(tmp_path, "wanted.onnx", exporter, new, epsilon))
    np.testing.assert_allclose(outputs(done.output), wanted, rtol=1e-3, atol=2e-3)


def test_they_are_found_behind_what_wraps_a_model(tmp_path: Path) -> None:
    own, new, path = (
        model(tmp_path, "own.onnx", "dynamo", checkpoint()),
        checkpoint(near=0.05),
        tmp_path / "w.safetensors",
    )
    write_arrays(path, ((f"module.{name}", lambda x=x: x) for name, x in new.items()), replace=True)
    done = import_weights(own, path, tmp_path / "q.onnx")
    wanted = outputs(model(tmp_path, "wanted.onnx", "dynamo", new))
    np.testing.assert_allclose(outputs(done.output), wanted, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_one_epsilon_explains_all_kernels(tmp_path: Path, epsilon: float) -> None:
    """Small variances that all shrank by the same: each kernel by itself is more like the model's with the larger one
    of both, but which one the model has shows in how channels differ."""
    old, new = checkpoint(), checkpoint()
    for norm in NORMS:
        old[f"{norm}.running_var"] = old[f"{norm}.running_var"] / np.float32(1000)
        new[f"{norm}.running_var"] = old[f"{norm}.running_var"] * np.float32(0.75)
    own, path = model(tmp_path, "own.onnx", "dynamo", old, epsilon), tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    done = import_weights(own, path, tmp_path / "q.onnx", options=ImportOptions(accuracy_level=0))
    wanted = outputs(model(tmp_path, "wanted.onnx", "dynamo", new, epsilon))
    assert sqnr(wanted, outputs(done.output)) > 100 and not done.match.notes


def test_an_epsilon_that_nothing_tells_is_told(tmp_path: Path) -> None:
    """Channels of one variance: where that is small the checkpoint is refused, elsewhere torch's own is taken."""
    for var, is_refused in ((5e-3, True), (1.0, False)):
        old = checkpoint(near=0.0)
        for norm, (_, n) in NORMS.items():
            old[f"{norm}.running_var"] = np.full(n, var, np.float32)
        noise = np.random.default_rng(3)
        new = {name: (x * (0.9 + 0.05 * noise.standard_normal(x.shape))).astype(np.float32) for name, x in old.items()}
        own, path = model(tmp_path, "own.onnx", "legacy", old), tmp_path / "w.safetensors"
        write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
        if is_refused:
            words = r"folded into kernels with an epsilon that numbers do not tell \(1e-05 or 0\.001\); export it with"
            with pytest.raises(BadModel, match=words):
                import_weights(own, path, tmp_path / "q.onnx")
            continue
        done = import_weights(own, path, tmp_path / "q.onnx")
        (note,) = done.match.notes
        assert note.startswith("epsilon of BatchNorms: 1e-05, as torch has it; 0.001 is 6")
        assert sqnr(outputs(model(tmp_path, "wanted.onnx", "legacy", new)), outputs(done.output)) > 100


#: Modules of a model, and whether numbers of theirs tell an epsilon.
PARTS = {"encoder.0": True, "encoder.3": False, "encoder.6": True, "decoder.0": True, "decoder.3": False}


def in_parts(
    folder: Path, epsilons: dict[str, float], moved: float = 0.02, size: float = 0.01
) -> tuple[Path, Path, dict[str, NDArray]]:
    """A model of kernels in a row, whose variances are up to `size`, a checkpoint that was trained on, and what its
    constants are to be."""
    rng, own, new, wanted, lines, last = np.random.default_rng(3), {}, {}, {}, list[str](), "x"
    for number, (module, tells) in enumerate(PARTS.items()):
        w, mean, scope = normal(16, 16, 1, 1, seed=number), rng.standard_normal(16), module.partition(".")[0]
        var = size * (rng.uniform(0.1, 1, 16) if tells else np.full(16, 0.4))
        later = var * (1 + moved * rng.standard_normal(16))
        for made, v in ((own, var), (wanted, later)):
            scale = 1 / np.sqrt(v + epsilons[scope])
            made |= {f"{module}.weight": w * scale.reshape(-1, 1, 1, 1), f"{module}.bias": -mean * scale}
        bn = f"{scope}.{int(module[-1]) + 1}"
        new |= {f"{module}.weight": w, f"{bn}.running_mean": mean, f"{bn}.running_var": later}
        lines.append(f'["{module}"] y{number} = Conv({last}, "{module}.weight", "{module}.bias")')
        last = f"y{number}"
    text = f"g (float[N,16,1,1] x) => (float[N,16,1,1] {last}) {{ {' '.join(lines)} }}"
    own, new, wanted = ({name: x.astype(np.float32) for name, x in each.items()} for each in (own, new, wanted))
    path = folder / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    return tiny.save(tiny.model(text, own), folder), path, wanted


@pytest.mark.parametrize(("encoder", "decoder"), [(1e-3, 1e-5), (1e-5, 1e-3), (1e-3, 1e-3), (1e-5, 1e-5)])
def test_parts_of_a_model_have_an_epsilon_each(tmp_path: Path, encoder: float, decoder: float) -> None:
    """Of an encoder from one library and a decoder from another; what tells nothing has that of its part."""
    own, path, wanted = in_parts(tmp_path, {"encoder": encoder, "decoder": decoder})
    done = import_weights(own, path, tmp_path / "q.onnx", check=False)
    assert not done.match.notes
    made = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(done.output).graph.initializer}
    assert min(sqnr(x, made[name]) for name, x in wanted.items()) > 100


@pytest.mark.parametrize("epsilon", [1e-4, 1e-6, 1e-12])
def test_a_rare_epsilon_is_taken_where_numbers_tell_it(tmp_path: Path, epsilon: float) -> None:
    own, path, wanted = in_parts(tmp_path, {"encoder": epsilon, "decoder": epsilon}, moved=0.0)
    done = import_weights(own, path, tmp_path / "q.onnx", check=False)
    made = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(done.output).graph.initializer}
    assert min(sqnr(x, made[name]) for name, x in wanted.items()) > 100


@pytest.mark.parametrize(("encoder", "decoder"), [(0.01, 0.01), (0.02, 1e-5), (1e-5, 0.1)])
@pytest.mark.parametrize("moved", [0.0, 0.001])
def test_an_epsilon_that_nobody_expects_is_told_by_numbers(
    tmp_path: Path, encoder: float, decoder: float, moved: float
) -> None:
    own, path, wanted = in_parts(tmp_path, {"encoder": encoder, "decoder": decoder}, moved, 1.0)
    done = import_weights(own, path, tmp_path / "q.onnx", check=False)
    made = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(done.output).graph.initializer}
    assert min(sqnr(x, made[name]) for name, x in wanted.items()) > 60
    assert all("which their numbers tell" in note for note in done.match.notes) and done.match.notes


def test_it_is_said_what_numbers_do_not_rule_out(tmp_path: Path) -> None:
    """Channels that each moved by a tenth tell no epsilon, be it far from those that are usual."""
    tensors = {name: x for name, x in checkpoint().items() if not name.startswith("bn.")}
    own, path = model(tmp_path, "own.onnx", "dynamo", checkpoint(), 0.1), tmp_path / "w.safetensors"
    later = {name: x for name, x in checkpoint(near=0.1).items() if name in tensors}
    write_arrays(path, ((name, lambda x=x: x) for name, x in later.items()), replace=True)
    (note,) = import_weights(own, path, tmp_path / "q.onnx", options=ImportOptions(partial=True)).match.notes
    assert re.search(r"1e-05, as torch has it; .* but numbers rule out none up to 0\.\d, \d\d dB away", note), note


@pytest.mark.parametrize("exporter", NAMES)
def test_kernels_of_other_numbers_stay(tmp_path: Path, exporter: str) -> None:
    """Which BatchNorm is in which kernel only the model's numbers tell."""
    own, new = model(tmp_path, "own.onnx", exporter, checkpoint()), checkpoint(seed=20)
    new = {name: x for name, x in new.items() if not name.startswith("bn.")}
    path = tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    with pytest.raises(BadModel, match=r"the BatchNorms block\.bn1, block\.up\.1 go nowhere: .*optimize=False"):
        import_weights(own, path, tmp_path / "q.onnx")
    done = import_weights(own, path, tmp_path / "q.onnx", options=ImportOptions(partial=True))
    assert done.match.constants == ["fc.weight", "fc.bias"]


def test_modules_that_the_model_lacks_are_left_over(tmp_path: Path) -> None:
    """Heads for training alone, which exporters leave out; statistics that are constants of the model are none such."""
    text = """g (float[N,4,9,9] x) => (float[N,6,7,7] y) {
        a = Conv(x, "conv.weight")
        y = BatchNormalization(a, "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    }"""
    own = {"conv.weight": normal(6, 4, 3, 3)}
    own |= {f"bn.{part}": np.ones(6, np.float32) for part in ("weight", "bias", "running_mean", "running_var")}
    new = {name: x + normal(*x.shape, seed=3) ** 2 for name, x in own.items()}
    extra = {f"aux.1.{part}": np.ones(6, np.float32) for part in ("running_mean", "running_var")}
    path = tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in (new | extra).items()), replace=True)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    wanted = outputs(tiny.save(tiny.model(text, new), tmp_path, "wanted.onnx"))
    np.testing.assert_allclose(outputs(done.output), wanted, atol=1e-5)
    assert sorted(done.match.unused) == sorted(extra)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_nothing_is_in_a_kernel_of_groups_that_there_cannot_be(tmp_path: Path, op: str) -> None:
    text = f"""g (float[N,16,8,8] x) => (float[N,16,6,6] y) {{
        ["/seq/seq.0/{op}"] y = {op} <group = 3> (x, "seq.0.weight", "seq.0.bias")
    }}"""
    own = {"seq.0.weight": normal(16, 16, 3, 3), "seq.0.bias": normal(16)}
    new = own | {"seq.1.running_mean": normal(16), "seq.1.running_var": np.ones(16, np.float32)}
    path = tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx", check=False)
    assert {*done.match.unused} == {"seq.1.running_mean", "seq.1.running_var"}


def many(count: int, folder: Path) -> tuple[Path, Path, dict[str, NDArray]]:
    """A model of so many kernels beside each other, its checkpoint of as many BatchNorms in another order, and what its
    constants are to be."""
    rng = np.random.default_rng(0)
    own, new, lines = {}, {}, list[str]()
    for i in range(count):
        w, bias, mean, var = (
            normal(2, 2, 1, 1, seed=i),
            *(rng.standard_normal(2) for _ in range(2)),
            rng.uniform(1, 9, 2),
        )
        scale = 1 / np.sqrt(var + 1e-5)
        own |= {f"m{i}.weight": w * scale.reshape(2, 1, 1, 1), f"m{i}.bias": (bias - mean) * scale}
        new |= {f"m{i}.weight": w, f"m{i}.bias": bias}
        new |= {f"n{count - i}.running_mean": mean, f"n{count - i}.running_var": var}
        lines.append(f'["/m{i}/Conv"] y{i} = Conv(x, "m{i}.weight", "m{i}.bias")')
    own = {name: x.astype(np.float32) for name, x in own.items()}
    lines.append(f"y = Sum({', '.join(f'y{i}' for i in range(count))})")
    text = f"g (float[N,2,1,1] x) => (float[N,2,1,1] y) {{ {' '.join(lines)} }}"
    path = folder / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x.astype(np.float32)) for name, x in new.items()), replace=True)
    return tiny.save(tiny.model(text, own), folder), path, own


def test_many_beside_each_other_are_told_apart_by_numbers_in_time(tmp_path: Path) -> None:
    own, path, wanted = many(700, tmp_path)
    start = time.process_time()
    done = import_weights(own, path, tmp_path / "q.onnx", check=False)
    assert time.process_time() - start < 60  # of which trying each with each took more
    assert not done.match.unused and not done.match.misfits
    made = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(done.output).graph.initializer}
    for name, x in wanted.items():
        np.testing.assert_allclose(made[name], x, atol=1e-4)


def test_more_than_can_be_compared_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, path, _ = many(4, tmp_path)
    monkeypatch.setattr("onnxq.checkpoints.matching.folded.pairs.MOST", 4 * 4 * 256 - 1)
    with pytest.raises(BadModel, match="which of 4 BatchNorms is in which of 4 kernels takes too long to tell"):
        import_weights(own, path, tmp_path / "q.onnx")


#: What torch's newer exporter says of a kernel that it folded a BatchNorm into, but for the epsilon.
CALLS = {
    "torch 2.7": "call_function[target=torch.ops.aten._native_batch_norm_legit_no_training.default](args = (%conv2d, "
    "%p_bn_weight, %p_bn_bias, %b_bn_running_mean, %b_bn_running_var, 0.1, {}), kwargs = {{}})",
    "a flag behind it": "call_function[target=torch.ops.aten.batch_norm.default](args = (%conv2d, %p_bn_weight, "
    "%p_bn_bias, %b_bn_running_mean, %b_bn_running_var, False, 0.1, {}, True), kwargs = {{}})",
}


def untrained(folder: Path, call: str, scope: str = "bn") -> Path:
    """Kernels of different modules with one BatchNorm behind both, exported before training: no bias is left."""
    text = """g (float[N,4,9,9] x) => (float[N,4,7,7] y) {
        [a] h = Conv(x, "c.conv.weight")  r = Relu(h)  [b] y = Conv(r, "d.weight", "d.bias")
    }"""
    own = {"c.conv.weight": normal(4, 4, 1, 1), "d.weight": normal(4, 4, 3, 3, seed=1), "d.bias": normal(4, seed=2)}
    made = tiny.model(text, own)
    for node in made.graph.node:
        said = {
            "pkg.torch.onnx.name_scopes": f"['', '{scope}', '_native_batch_norm_1']",
            "pkg.torch.onnx.fx_node": call,
        }
        if node.name:
            node.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=word) for key, word in said.items())
    return tiny.save(made, folder)


def trained(folder: Path, var: float = 1.0) -> tuple[Path, dict[str, NDArray]]:
    new = {
        "c.conv.weight": normal(4, 4, 1, 1, seed=3),
        "d.weight": normal(4, 4, 3, 3, seed=4),
        "d.bias": normal(4, seed=5),
    }
    new |= {f"bn.{part}": normal(4, seed=6 + i) for i, part in enumerate(("weight", "bias", "running_mean"))}
    new["bn.running_var"] = np.linspace(0.5, 2, 4, dtype=np.float32) * np.float32(var)
    path = folder / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    return path, new


@pytest.mark.parametrize(("kind", "epsilon"), [("torch 2.7", 0.1), ("a flag behind it", 1e-3)])
def test_an_exporter_says_which_batchnorm_is_in_which_kernel(tmp_path: Path, kind: str, epsilon: float) -> None:
    """Numbers tell nothing of it then: it is exported before training, with an epsilon that nobody else has."""
    path, new = trained(tmp_path)
    done = import_weights(untrained(tmp_path, CALLS[kind].format(epsilon)), path, tmp_path / "q.onnx")
    assert not done.match.notes and not done.match.unused
    gamma, beta, mean, var = (new[f"bn.{part}"] for part in ("weight", "bias", "running_mean", "running_var"))
    scale = gamma / np.sqrt(var + epsilon)
    text = """g (float[N,4,9,9] x) => (float[N,4,7,7] y) { h = Conv(x, w1, b1)  r = Relu(h)  y = Conv(r, w2, b2) }"""
    folded = {"b1": beta - mean * scale, "b2": (new["d.bias"] - mean) * scale + beta}
    folded |= {f"w{i}": new[name] * scale.reshape(4, 1, 1, 1) for i, name in ((1, "c.conv.weight"), (2, "d.weight"))}
    wanted = tiny.model(text, {name: x.astype(np.float32) for name, x in folded.items()})
    assert sqnr(outputs(tiny.save(wanted, tmp_path, "wanted.onnx")), outputs(done.output)) > 100


def test_where_it_does_not_say_the_epsilon_numbers_would_have_to(tmp_path: Path) -> None:
    model = untrained(tmp_path, CALLS["torch 2.7"].format("%epsilon"))
    done = import_weights(model, trained(tmp_path)[0], tmp_path / "q.onnx", check=False)
    assert done.match.notes[0].startswith("epsilon of BatchNorms: 1e-05, as torch has it; 0.001 is 6")
    with pytest.raises(
        BadModel, match=r"folded into kernels with an epsilon that numbers do not tell \(1e-05 or 0\.001"
    ):
        import_weights(model, trained(tmp_path, var=1e-3)[0], tmp_path / "r.onnx")


def test_where_it_does_not_say_which_an_untrained_model_tells_nothing(tmp_path: Path) -> None:
    model, path = untrained(tmp_path, "", scope="other"), trained(tmp_path)[0]
    with pytest.raises(BadModel, match=r"the BatchNorm bn goes nowhere: the model has it folded into kernels"):
        import_weights(model, path, tmp_path / "q.onnx")


def test_equal_numbers_of_batchnorms_are_their_own_again(tmp_path: Path) -> None:
    """Before training means are zeros, as biases are, and variances ones, as weights are: there is one of each."""
    text = """g (float[N,4,9,9] x) => (float[N,4,9,9] y) {
        [a] h = BatchNormalization(x, "a.weight", "a.bias", "a.bias", "a.weight")  r = Relu(h)
        [b] y = BatchNormalization(r, "a.weight", "a.bias", "a.bias", "a.weight")
    }"""
    made = tiny.model(text, {"a.weight": np.ones(4, np.float32), "a.bias": np.zeros(4, np.float32)})
    for node in made.graph.node:
        scopes = f"['', '{node.name}', 'op']"
        node.metadata_props.append(onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value=scopes))
    new = {f"{module}.{part}": normal(4, seed=len(module + part)) ** 2 for module in "ab" for part in BATCHNORM}
    path = tmp_path / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in new.items()), replace=True)
    done = import_weights(tiny.save(made, tmp_path), path, tmp_path / "q.onnx")
    assert not done.match.unused
    four = {module: ", ".join(f'"{module}.{part}"' for part in BATCHNORM) for module in "ab"}
    plain = f"""g (float[N,4,9,9] x) => (float[N,4,9,9] y) {{
        h = BatchNormalization(x, {four["a"]})  r = Relu(h)  y = BatchNormalization(r, {four["b"]})
    }}"""
    assert sqnr(outputs(tiny.save(tiny.model(plain, new), tmp_path, "wanted.onnx")), outputs(done.output)) > 100
