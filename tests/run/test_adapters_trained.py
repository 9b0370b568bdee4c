"""`onnxq lora train`: packed matrices in torch, what is learnt beside them, and that a run goes on where it stopped."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

from onnxq import formats
from onnxq.errors import BadData, BadModel, BadRecipe, CheckFailed, OnnxqError, OutOfMemory
from onnxq.files.guard import Guard
from onnxq.formats import Granularity
from onnxq.job import Environment
from onnxq.samples.sampling import Sampling

torch = pytest.importorskip("torch")
from onnxq.cli import main  # noqa: E402
from onnxq.model.load import load_model  # noqa: E402
from onnxq.runtime.own_files.adapter_file import read_adapter_file  # noqa: E402
from onnxq.training.adapters.learning import module as modules  # noqa: E402
from onnxq.training.adapters.learning.fit import Fit, FitOptions  # noqa: E402
from onnxq.training.adapters.learning.module import AdaptedModule  # noqa: E402
from onnxq.training.adapters.learning.packed import PackedMatrix  # noqa: E402
from onnxq.training.adapters.learning.train import Task, Trained, train_adapter  # noqa: E402
from onnxq.training.adapters.products import products_of, restored  # noqa: E402

FEW = FitOptions(epochs=40, steps=60, batch=16, rate=3e-2, ratio=1, every=10, patience=50)


@pytest.mark.parametrize("word", formats.names())
def test_a_packed_matrix_is_what_its_codes_stand_for(word: str) -> None:
    format = formats.get(word)
    for shape in ((5, 256), (3, 70)):
        for how in (formats.natural(format, 2), Granularity(0), Granularity(1, 32), Granularity(), Granularity(0, 2)):
            try:
                q = formats.quantize(tiny.normal(*shape), word, how)
            except (OnnxqError, ValueError):
                continue
            packed, wanted = PackedMatrix(q), torch.from_numpy(np.array(q.dequantize()))
            assert torch.equal(packed.floats(slice(None)), wanted), (shape, how)
            assert torch.equal(packed.lookup(torch.tensor([[1, -1]])), wanted[torch.tensor([[1, -1]])])
    if format.bits == 4 and format.default_block and not format.has_minimum and format.super_block is None:
        packed = PackedMatrix(formats.quantize(tiny.normal(64, 256), word))
        assert packed.nbytes < 64 * 256 * 0.8


def test_products_by_slabs_have_the_gradient_of_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.training.adapters.learning.packed.SLAB", 300)
    q = formats.quantize(tiny.normal(10, 96), "nf4")
    packed, w = PackedMatrix(q), torch.from_numpy(np.array(q.dequantize())).double()
    assert len(packed.slabs()) == 4
    x = torch.from_numpy(tiny.normal(2, 96, seed=2)).double().requires_grad_()
    assert torch.autograd.gradcheck(packed.product, x, atol=1e-4)
    torch.testing.assert_close(packed.product(x), x @ w.T)


def samples(folder: Path, base: Path, count: int = 512) -> Path:
    """What the network with an adapter of rank 3 computes: another one can learn it."""
    x = np.random.default_rng(3).standard_normal((count, adapters.WIDTH)).astype(np.float32)
    y, _ = adapters.answer(x, *adapters.weights(base, folder), adapters.adapter())
    np.savez(folder / "data.npz", x=x, t=y.astype(np.float32))
    return folder / "data.npz"


def train(base: Path, output: str, data: Path, **options: Any) -> Trained:
    task = Task(**{"lora": {"*": 4}, "labels": "t"} | options.pop("task", {}))
    fit = options.pop("fit", FEW)
    environment = Environment(1, options.pop("progress", Environment().progress), Guard(True))
    held_back = Sampling(data, held_back=options.pop("held_back", 16))
    return train_adapter(base, base.parent / output, held_back, task, options=fit, environment=environment, **options)


@pytest.mark.parametrize("word", ["nf4", "nf4_dq", "int4"])
def test_training_learns_and_what_it_measured_is_what_the_file_gives(word: str, tmp_path: Path) -> None:
    base = adapters.quantized(tmp_path, word)
    data = samples(tmp_path, base)
    for output in ("beside.onnx", "peft", "a.onnx_adapter"):
        done = train(base, output, data)
        assert done.after < 0.6 * done.before and done.after == min(done.losses.values())
        assert done.saved == pytest.approx(done.after, rel=1e-4)
        assert done.idle == () and done.ranks == {adapters.UP: 4, adapters.DOWN: 4}
    codes = {each.name: each.raw_data for each in onnx.load(base).graph.initializer}
    now = {each.name: each.raw_data for each in onnx.load(tmp_path / "beside.onnx").graph.initializer}
    assert codes.items() <= now.items()


class Stops:
    """Ctrl-C at a step."""

    def __init__(self, at: int) -> None:
        self.left = at

    def start(self, what: str, total: int | None = None, unit: str = "") -> None: ...

    def advance(self, done: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [11, 12], ids=["before a look", "behind it"])
def test_an_interrupted_training_goes_on_bit_for_bit_and_the_same_seed_gives_the_same(at: int, tmp_path: Path) -> None:
    base = adapters.quantized(tmp_path)
    data, kept = samples(tmp_path, base), tmp_path / "kept.npz"
    alone = train(base, "whole.onnx_adapter", data)
    with pytest.raises(KeyboardInterrupt):
        train(base, "parts.onnx_adapter", data, progress_file=kept, progress=Stops(at))
    assert kept.exists() and not (tmp_path / "parts.onnx_adapter").exists()
    with pytest.raises(BadData, match="is of a training with another model, samples or options"):
        train(base, "parts.onnx_adapter", data, progress_file=kept, fit=FitOptions(steps=9))
    assert train(base, "parts.onnx_adapter", data, progress_file=kept).losses == alone.losses
    whole, parts = (read_adapter_file(tmp_path / f"{name}.onnx_adapter") for name in ("whole", "parts"))
    for name, x in whole.items():
        np.testing.assert_array_equal(x, parts[name])
    kept.write_bytes(kept.read_bytes()[:200])
    with pytest.raises(BadData, match="is damaged or cut short"):
        train(base, "parts.onnx_adapter", data, progress_file=kept)


HISTORY = "comes to what it says of itself"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"said": {"step": 61}}, HISTORY),
        ({"said": {"updates": 12}}, HISTORY),
        ({"said": {"updates": 0}}, HISTORY),
        ({"said": {"skipped": 1}}, HISTORY),
        ({"said": {"losses": [[0, 1e39]]}}, HISTORY),
        ({"said": {"losses": [[0, -1e300]]}}, HISTORY),
        ({"said": {"losses": [[0, 1.0], [10, 0.5], [5, 0.4]]}}, HISTORY),
        ({"said": {"losses": [[0, 1.0], [11, 0.5]]}}, HISTORY),
        ({"said": {"losses": [[-1, 1.0]]}}, "does not say how far a training came"),
        ({"square.0": -1.0}, "'square.0' holds squares below 0"),
        ({"mean.1": np.nan}, "'mean.1' is not the"),
        ({"best.0": np.inf}, "'best.0' is not the"),
        ({"now.1": None}, "'now.1' is not the"),
    ],
)
def test_progress_that_no_training_makes_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = adapters.quantized(tmp_path)
    data, kept = samples(tmp_path, base), tmp_path / "kept.npz"
    with pytest.raises(KeyboardInterrupt):
        train(base, "a.onnx_adapter", data, progress_file=kept, progress=Stops(12))
    with np.load(kept) as file:
        arrays = dict(file)
    said = json.loads(bytes(arrays["progress"]))
    assert (said["step"], said["updates"], said["skipped"]) == (10, 10, 0)
    for name, x in changed.items():
        if name == "said":
            arrays["progress"] = np.frombuffer(json.dumps(said | x).encode(), np.uint8)
        elif x is None:
            del arrays[name]
        else:
            arrays[name].flat[0] = x
    np.savez(kept, **arrays)
    before = kept.read_bytes()
    with pytest.raises(BadData, match=words):
        train(base, "a.onnx_adapter", data, progress_file=kept)
    assert kept.read_bytes() == before and not (tmp_path / "a.onnx_adapter").exists()


@pytest.mark.parametrize("first", [np.nan, -np.inf, 1e39])
def test_a_training_goes_on_whose_first_loss_was_no_number_of_float32(
    first: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = adapters.quantized(tmp_path)
    data, kept = samples(tmp_path, base), tmp_path / "kept.npz"
    few, looks = FitOptions(steps=6, batch=16, every=2), [first, first]
    usual = Fit.loss_on
    monkeypatch.setattr(Fit, "loss_on", lambda fit, *of: looks.pop() if looks else usual(fit, *of))
    with pytest.raises(KeyboardInterrupt):
        train(base, "parts.onnx_adapter", data, progress_file=kept, fit=few, progress=Stops(5))
    with np.load(kept) as file:
        assert json.loads(bytes(file["progress"]))["losses"][0] == [0, 1e300]
    parts = train(base, "parts.onnx_adapter", data, progress_file=kept, fit=few)
    looks += [first, first]
    whole = train(base, "whole.onnx_adapter", data, fit=few)
    assert parts.losses == whole.losses and parts.after == min(parts.losses.values())


def test_progress_is_of_one_teacher_one_base_and_the_samples_held_back(tmp_path: Path) -> None:
    """Though the path of the teacher, and the file of the base without its data, stay what they are."""
    base, teacher = tmp_path / "outside.onnx", tmp_path / "float.onnx"
    model = onnx.load(adapters.quantized(tmp_path))
    onnx.save(model, base, save_as_external_data=True, location="data", size_threshold=0)
    options = {"task": {"labels": None, "teacher": teacher}, "fit": FitOptions(steps=2)}
    options |= {"progress_file": tmp_path / "kept.npz"}
    data = samples(tmp_path, base, 32)
    np.savez(data, x=np.load(data)["x"])
    train(base, "a.onnx_adapter", data, **options)
    for path in (teacher, tmp_path / "data"):
        before = path.read_bytes()
        at = before.index(tiny.normal(adapters.WIDTH, seed=2).tobytes())  # the bias
        path.write_bytes(before[: at + 3] + bytes([before[at + 3] ^ 0x80]) + before[at + 4 :])
        with pytest.raises(BadData, match="is of a training with another model, samples or options"):
            train(base, "a.onnx_adapter", data, **options)
        path.write_bytes(before)
    with pytest.raises(BadData, match="is of a training with another model, samples or options"):
        train(base, "a.onnx_adapter", data, held_back=7, **options)
    train(base, "a.onnx_adapter", data, **options)


def test_any_seed_is_one(tmp_path: Path) -> None:
    """Of numpy's, which has no end to them; torch has."""
    base = adapters.quantized(tmp_path)
    train(base, "a.onnx_adapter", samples(tmp_path, base), fit=FitOptions(steps=1, seed=1 << 70))
    with pytest.raises(BadRecipe, match="invalid seed -1"):
        FitOptions(seed=-1)
    with pytest.raises(BadRecipe, match="invalid epochs; choose 1,000,000,000 or fewer"):
        FitOptions(epochs=10**400)


def test_adapters_begin_as_what_the_codes_left_of_the_weights(tmp_path: Path) -> None:
    base = adapters.quantized(tmp_path, "int4")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32))
    task = {"labels": None, "teacher": tmp_path / "float.onnx", "lora": {"*": 16}}
    still = FitOptions(steps=1, rate=1e-12)
    plain = train(base, "p.onnx", tmp_path / "x.npz", task=task, fit=still)
    made = train(base, "r.onnx", tmp_path / "x.npz", task=task | {"initial": "reconstruct"}, fit=still)
    assert plain.after == pytest.approx(plain.before, rel=1e-3)
    assert made.before == plain.before and made.after < 0.7 * made.before
    assert made.saved == pytest.approx(made.after, rel=1e-3)


def test_losses_that_are_no_numbers_stop_it_and_name_the_product(tmp_path: Path) -> None:
    base, data = adapters.quantized(tmp_path), tmp_path / "nan.npz"
    x = np.ones((32, adapters.WIDTH), np.float32)
    x[:, 7] = np.nan
    np.savez(data, x=x, t=x * 0 + 1)
    np.savez(tmp_path / "labels.npz", x=np.ones_like(x), t=x)
    with pytest.raises(
        CheckFailed, match=f"5 losses in a row are no numbers, first at what product '{adapters.UP}' re"
    ):
        train(base, "out.onnx", data)
    with pytest.raises(CheckFailed, match="are no numbers, in the loss itself"):
        train(base, "out.onnx", tmp_path / "labels.npz")
    with pytest.raises(CheckFailed, match="2 losses in a row are no numbers"):
        train(base, "out.onnx", data, fit=FitOptions(steps=2))
    assert not (tmp_path / "out.onnx").exists()


def test_what_cannot_be_trained_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = adapters.quantized(tmp_path)
    x = np.ones((8, adapters.WIDTH), np.float32)
    np.savez(tmp_path / "d.npz", x=x, t=x[:, :5], c=np.full(8, 99), y=x)
    for words, sentence in (
        ({"labels": None}, "say what to train for: --labels NAME, --teacher MODEL or --loss"),
        ({"initial": "reconstruct"}, "begin with the float weights: name their model, --teacher"),
        ({"lora": {"q*": 4}}, r"'q\*' matches no product"),
    ):
        with pytest.raises(BadRecipe, match=sentence):
            train(base, "out.onnx", tmp_path / "d.npz", task=words)
    for part, sentence in (
        ("t", r"the labels 't' of a batch are \(10,\), output 'y' is \(2, 64\)"),
        ("c", "the labels 'c' are 99 to 99; output 'h' has 96 classes"),
    ):
        np.savez(tmp_path / f"{part}.npz", **{"x": x, part: np.load(tmp_path / "d.npz")[part]})
        with pytest.raises(BadData, match=sentence):
            train(base, "out.onnx", tmp_path / f"{part}.npz", task={"labels": part})

    def full(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes")

    np.savez(tmp_path / "good.npz", x=x, y=x)
    with monkeypatch.context() as patched:
        patched.setattr(modules.LowRank, "forward", full)
        with pytest.raises((OutOfMemory, OnnxqError), match="memory"):
            train(base, "out.onnx", tmp_path / "good.npz", task={"labels": "y"})
    with pytest.raises(BadModel, match="no gradient reaches the adapters from the loss"):
        train(base, "out.onnx", tmp_path / "good.npz", task={"labels": "y", "loss": "adapters:constant"})


def test_the_command_trains_and_says_what_it_did(tmp_path: Path) -> None:
    base = adapters.quantized(tmp_path)
    data = samples(tmp_path, base, 32)
    words = ["lora", "train", str(base), "--data", str(data), "--labels", "t", "--lora", "2", "--lora", "*down*=0"]
    words += ["--steps", "3", "-o", str(tmp_path / "a.onnx_adapter"), "--held-back", "4"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "1 product, rank 2, 320 numbers" in done.output and "on samples held back" in done.output
    said = json.loads(CliRunner().invoke(main, [*words, "--force", "--json"]).output)
    assert list(said["ranks"]) == [adapters.UP] and len(said["losses"]) == 4


def test_a_model_that_takes_adapters_is_trained_like_its_base(tmp_path: Path) -> None:
    from onnxq.training.adapters.use import make_base

    base = adapters.quantized(tmp_path)
    make_base(base, tmp_path / "takes.onnx")
    model = restored(load_model(tmp_path / "takes.onnx"))
    assert [product.name for product in products_of(model)] == [adapters.UP, adapters.DOWN]
    x = tiny.normal(3, adapters.WIDTH)
    found = AdaptedModule(model, {adapters.UP: 2})({"x": x})["y"].detach().numpy()
    wanted = adapters.answer(x, *adapters.weights(base, tmp_path))[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of packages that peft looks for
def test_peft_itself_loads_what_is_written_and_what_it_writes_is_read(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from onnxq.training.adapters.peft import read_peft, write_peft

    products = list(products_of(restored(load_model(tiny.save(adapters.network(), tmp_path)))))

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj = torch.nn.Linear(adapters.WIDTH, adapters.INNER, bias=False)
            self.down_proj = torch.nn.Linear(adapters.INNER, adapters.WIDTH)

        def forward(self, x: Any) -> Any:
            return self.down_proj(torch.tanh(self.up_proj(x)))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Module()
            self.model.layers = torch.nn.ModuleList([Layer()])

        def forward(self, x: Any) -> Any:
            return self.model.layers[0](x)

    network, x = Network(), tiny.normal(4, adapters.WIDTH)
    layer = network.model.layers[0]
    up, down = (tiny.normal(adapters.WIDTH, adapters.INNER, seed=seed) * 2 for seed in (0, 1))
    with torch.no_grad():
        layer.up_proj.weight.copy_(torch.from_numpy(up.T.copy()))
        layer.down_proj.weight.copy_(torch.from_numpy(down))
        layer.down_proj.bias.copy_(torch.from_numpy(tiny.normal(adapters.WIDTH, seed=2)))
    made = adapters.adapter()
    write_peft(tmp_path / "ours", made)
    loaded = peft.PeftModel.from_pretrained(network, tmp_path / "ours")
    wanted = adapters.answer(x, up, down.T, made)[0]
    np.testing.assert_allclose(loaded(torch.from_numpy(x)).detach().numpy(), wanted, atol=2e-4 * np.abs(wanted).max())
    loaded.save_pretrained(tmp_path / "theirs")
    theirs = read_peft(tmp_path / "theirs", products).adapter.factors
    for name, pair in made.factors.items():
        for right, found in zip(pair, theirs[name], strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-6)


def test_the_page_says_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "adapters.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(root / "models")
    blocks = re.findall(r"^```(sh|python)\n([\s\S]*?)^```", text, re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "python"]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "docs/adapters.md", "exec"), {})
            continue
        for line in block.splitlines():
            few = re.sub(r"--steps \d+", "--steps 2 --batch 2 --limit 16", line)
            done = CliRunner().invoke(main, shlex.split(few)[1:], catch_exceptions=False)
            assert done.exit_code == 0, done.output
