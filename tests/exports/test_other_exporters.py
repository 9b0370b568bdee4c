"""What other tools write: optimum's merged decoders, onnxruntime's transformers optimizer, converters of half precision
and of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from exports.builder import Architecture, Feed, floats, tokens
from exports.checking import FLOORS, TARGETS, check
from exports.real import architecture
from sweeps import at_night

import onnxq
from onnxq.job import open_job

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.zoo]
PAIRS = [(scheme, TARGETS[i % 3]) for i, scheme in enumerate(FLOORS)]
every_scheme = pytest.mark.parametrize(("scheme", "target"), PAIRS, ids=["-".join(pair) for pair in PAIRS])


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], Path]], Path]:
    made: dict[str, Path] = {}

    def make(name: str, write: Callable[[Path], Path]) -> Path:
        if name not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made[name] = write(tmp_path_factory.mktemp(name))
        return made[name]

    return make


def optimum_t5(folder: Path) -> Path:
    import torch
    from optimum.exporters.onnx import onnx_export_from_model
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    onnx_export_from_model(model, folder, task="text2text-generation-with-past", do_validation=False)
    return folder / "decoder_model_merged.onnx"


def draw_t5(rng: np.random.Generator, batch: int, length: int) -> Feed:
    past = 0 if length % 2 else 5
    feed: Feed = {
        "input_ids": rng.integers(1, 90, (batch, 1 if past else length)),
        "encoder_hidden_states": rng.standard_normal((batch, 6, 64)).astype(np.float32),
        "encoder_attention_mask": np.ones((batch, 6), np.int64),
        "use_cache_branch": np.array([past > 0]),
    }
    for i in range(2):
        for part, size in (("decoder", past), ("encoder", 6)):
            for name in ("key", "value"):
                x = rng.standard_normal((batch, 4, size, 16)).astype(np.float32)
                feed[f"past_key_values.{i}.{part}.{name}"] = x
    return feed


@pytest.mark.parametrize(
    ("scheme", "target"), [(at_night if i else pytest.param)(*pair) for i, pair in enumerate(PAIRS)]
)
def test_merged_decoder_of_optimum(scheme: str, target: str, once: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("optimum.exporters.onnx", exc_type=ImportError)
    path = once("t5", optimum_t5)
    plan = open_job(path, "w8a16").plan
    assert sum(not choice.shares for choice in plan) < 0.75 * len(plan.choices)
    check("t5", Architecture(optimum_t5, draw_t5, ((2, 7), (1, 2), (3, 4), (2, 11))), path, scheme, target, tmp_path)


def fused_bert(folder: Path) -> Path:
    from onnxruntime.transformers import optimizer

    made = architecture("bert", "script").make(folder)
    fused = optimizer.optimize_model(str(made), "bert", num_heads=4, hidden_size=64)
    fused.save_model_to_file(str(folder / "fused.onnx"))
    ops = {node.op_type for node in onnx.load(folder / "fused.onnx").graph.node}
    assert {"Attention", "SkipLayerNormalization"} <= ops
    return folder / "fused.onnx"


def half_bert(folder: Path) -> Path:
    from onnxruntime.transformers import optimizer

    made = architecture("bert", "script").make(folder)
    fused = optimizer.optimize_model(str(made), "bert", num_heads=4, hidden_size=64)
    fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(folder / "half.onnx"))
    return folder / "half.onnx"


@every_scheme
@pytest.mark.parametrize("kind", ["fused", "half"])
def test_optimizer_of_onnxruntime(
    kind: str, scheme: str, target: str, once: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    pytest.importorskip("onnxruntime.transformers.optimizer", exc_type=ImportError)
    path = once(kind, fused_bert if kind == "fused" else half_bert)
    check(
        kind, Architecture(fused_bert, tokens(90, mask=True), ((2, 9), (1, 1), (3, 14))), path, scheme, target, tmp_path
    )


def sklearn_pipeline(folder: Path) -> Path:
    from skl2onnx import to_onnx
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 24)).astype(np.float32)
    y = (x[:, :4].sum(1) > 0).astype(int) + 2 * (x[:, 4] > 0)
    model = make_pipeline(StandardScaler(), MLPClassifier((64, 64), max_iter=20, random_state=0)).fit(x, y)
    proto = to_onnx(model, x[:1], options={"zipmap": False}, target_opset=17)
    return tiny.save(proto, folder)


@every_scheme
def test_network_of_scikit_learn(scheme: str, target: str, once: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("skl2onnx")
    path = once("sklearn", sklearn_pipeline)
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    rng = np.random.default_rng(0)
    data = [floats(names[0], 24)(rng, 16, 1) for _ in range(10)]
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe(scheme, keep_slow=True), target=target, data=data)
    for size in (1, 200):
        feed = floats(names[0], 24)(rng, size, 1)
        wanted, got = (onnxruntime.InferenceSession(p).run(None, feed) for p in (path, result.output))
        assert tiny.sqnr(wanted[1], got[1]) > FLOORS[scheme]
        assert np.mean(wanted[0] == got[0]) > 0.9
    assert result.bytes_after < result.bytes_before
