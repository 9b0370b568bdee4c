"""Every shared model goes through, and what comes out is right.

`pytest -m "sweep and not (zoo or night)" tests/zoo` runs nearly every model with one scheme and every scheme on several
models, with little effort; `pytest -m zoo` the whole matrix with the usual one, 8-bit schemes scored on real data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from shared import SHARED
from sweeps import at_night
from zoo_models import judge, load_zoo

import onnxq
from onnxq.plan import COMPUTING, Method

# The shared zoo.py leaves some of its files to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"), pytest.mark.sweep]

ZOO = load_zoo()
MODELS = sorted(ZOO.MODELS) if ZOO is not None else ["no-shared-models"]
SCHEMES = ("auto", "w8a8", "w8a8-dynamic", "w4a16", "nf4", "fp16")
TARGETS = ("ort-cpu", "onnx")
#: If bodies, contrib operators, LSTM, GRU with external data, a KV cache, float16, a local function.
VARIED = ("silero_vad", "tiny-random-gpt2-fp32_past", "charrnn_shakespeare", "nsnet2", "stories260k_llama")
#: These take as long as twenty others.
LONGEST = (
    *("style_mosaic", "deeplabv3_mnv2", "dnsmos_sig_bak_ovr", "ultraface_rfb320", "mobilenetv2_cifar10"),
    "stories260k_llama",
)
#: Each of them in every other scheme on one target; the others are in the whole matrix.
SOME = [
    (at_night if name in LONGEST else pytest.param)(
        name, scheme, TARGETS[j // 2 % 2], id=f"{name}-{scheme}-{TARGETS[j // 2 % 2]}"
    )
    for i, name in enumerate(VARIED)
    for j, scheme in enumerate(SCHEMES)
    if scheme != "w8a8" and (i + j) % 2
]
WITH_DATA = {"w8a8"}
#: Samples: of the sweep, of which some are held back; and of what is scored.
FEW, SAMPLES = 4, 32
#: The transformer is quantized once, where its loss is looked at too.
SCORED = "charlm"
#: Bytes that nodes and names of quantization may add to a model of a few kilobytes.
STRUCTURE = 1 << 15
#: dB that little effort may miss: plans are compared on fewer samples than the file is checked on.
LESS = 1.0


@pytest.fixture(scope="session")
def zoo() -> ModuleType:
    if ZOO is None:
        pytest.skip(f"no shared models in {SHARED}; ONNXQ_SHARED says where they are")
    return ZOO


@pytest.fixture(scope="session")
def quantize(zoo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., onnxq.Result]:
    """Quantizes a model by name, with its calibration samples where the scheme needs them."""
    folder = tmp_path_factory.mktemp("zoo")

    def run(
        name: str,
        scheme: str,
        target: str,
        min_sqnr: float | None = None,
        samples: int = SAMPLES,
        effort: str = "normal",
    ) -> onnxq.Result:
        data = zoo.export_calibration(name, folder / f"{name}.npz", samples) if scheme in WITH_DATA else None
        output = folder / f"{name}.{scheme}.{target}.onnx"
        recipe = onnxq.Recipe(scheme, min_sqnr=min_sqnr, effort=effort)
        return onnxq.quantize(zoo.model_path(name), output, recipe, target=target, data=data, force=True)

    return run


def assert_good(result: onnxq.Result, less: float = 0.0) -> None:
    """The check ran and found what was asked for, but for `less` dB, and the plan says why about every node that is
    not; or the model is so small that nothing is gained, and was copied."""
    if result.copied:
        assert "nothing to gain" in result.copied and result.bytes_before < STRUCTURE * 4
        return
    assert result.check is not None
    assert result.check.sqnr >= result.recipe.aim - less
    assert result.bytes_after < 1.05 * result.bytes_before + STRUCTURE
    for choice in result.plan:
        assert choice.method is not Method.KEEP or choice.reason, choice


@pytest.mark.usefixtures("quick", "twice_as_fast")
@pytest.mark.parametrize(
    "name", [(at_night if name in LONGEST else pytest.param)(name) for name in MODELS if name != SCORED]
)
def test_every_model_goes_through(quantize: Callable[..., onnxq.Result], name: str) -> None:
    assert_good(quantize(name, "w8a8", "ort-cpu", samples=FEW, effort="quick"), LESS)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "scheme", "target"), SOME)
def test_every_scheme_goes_through(quantize: Callable[..., onnxq.Result], name: str, scheme: str, target: str) -> None:
    assert_good(quantize(name, scheme, target, effort="quick"), LESS)


@pytest.mark.slow
def test_static_int8_keeps_the_transformer(quantize: Callable[..., onnxq.Result], zoo: ModuleType) -> None:
    result = quantize(SCORED, "w8a8", "ort-cpu", effort="quick")
    assert_good(result, LESS)
    assert len(result.plan.those(*COMPUTING)) >= 40
    assert zoo.score(SCORED, result.output) <= 1.4335


@pytest.mark.night
@pytest.mark.parametrize(("scheme", "limit"), [("w4a16", 1.4335), ("nf4", 1.4355)])
def test_four_bits_keep_the_transformer(
    quantize: Callable[..., onnxq.Result], zoo: ModuleType, scheme: str, limit: float
) -> None:
    result = quantize(SCORED, scheme, "ort-cpu", min_sqnr=5)  # the usual aim takes some of it to 8 bits
    assert {choice.format for choice in result.plan.those(Method.PACKED)} == {"uint4" if scheme == "w4a16" else "nf4"}
    assert zoo.score(SCORED, result.output) <= limit


@pytest.mark.zoo
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_the_whole_matrix(
    quantize: Callable[..., onnxq.Result], zoo: ModuleType, name: str, scheme: str, target: str
) -> None:
    result = quantize(name, scheme, target)
    assert_good(result)
    if scheme in ("w8a8", "w8a8-dynamic"):
        entry = zoo.MODELS[name]
        in_float = entry.float_score if entry.vs_float else zoo.score(name)
        verdict = judge(entry.metric, in_float, zoo.score(name, Path(result.output)))
        assert verdict.is_good, verdict
