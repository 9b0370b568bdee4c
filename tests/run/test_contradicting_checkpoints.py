"""Checkpoints of others whose parts say two things, or something that nobody here reads: refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq.checkpoints import gguf_file
from onnxq.checkpoints.tensors import safetensors_type
from onnxq.cli import main

N, K = 16, 64
ONES, STEPS = np.ones((N, K), np.int8), np.full((N, 1), 0.5, np.float32)
FLOAT8 = np.ones((N, K), ml_dtypes.float8_e4m3fn)
SHORT = {"a.weight_packed": np.full((N, K // 2), 0x22, np.uint8), "a.weight_scale": FLOAT8[:, :4]}
GPTQ = {
    "a.qweight": np.full((K // 8, N), 0x11111111, np.int32),
    "a.qzeros": np.full((2, N // 8), 0x66666666, np.int32),
    "a.scales": np.ones((2, N), np.float16),
}
WIDE = GPTQ | {"a.qzeros": np.full((2, 8), 0x66666666, np.int32), "a.scales": np.ones((2, 64), np.float16)}
WIDE |= {"a.qweight": np.full((K // 8, 64), 0x11111111, np.int32)}
AWQ = {
    "a.qweight": np.full((K, N // 8), 0x11111111, np.int32),
    "a.qzeros": np.full((2, N // 8), 0x66666666, np.int32),
    "a.scales": np.ones((2, N), np.float16),
}
MLX = {"a.weight": np.full((N, K // 8), 0x11111111, np.uint32)}
MLX |= {f"a.{word}": np.ones((N, K // 32), np.float16) for word in ("scales", "biases")}
TORCHAO = {"a.weight": json.dumps({"_type": "Int8Tensor", "_data": {"block_size": [1, K]}})}
TOO_LARGE, GPU = "larger than any code", "laid out for a GPU"
GLOBAL, FACTOR, ZERO = "a.weight_global_scale", "a.weight_scale_2", "a.weight_zero_point"
FLOATS = {"a.weight": FLOAT8, "a.weight_scale": STEPS}
UNLIKE = "beside it, which onnxq does not read there"


def written(
    folder: Path,
    tensors: dict[str, NDArray],
    config: dict[str, Any] | None = None,
    said: dict[str, str] | None = None,
    types: dict[str, str] | None = None,
) -> Path:
    """A folder with one safetensors file; `types` in the place of those that the arrays have."""
    header: dict[str, Any] = {"__metadata__": said} if said else {}
    raw = b""
    for name, x in tensors.items():
        kind = (types or {}).get(name) or safetensors_type(x.dtype)
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(raw), len(raw) + x.nbytes]}
        raw += np.ascontiguousarray(x).tobytes()
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config or {}}))
    return folder


def imported(path: Path) -> tuple[int, str]:
    words = ["import-weights", str(path), "-o", str(path.with_suffix(".onnx")), "--no-check"]
    done = CliRunner().invoke(main, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


INT8 = {"a.weight": ONES, "a.weight_scale": STEPS}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"zero points of {word}": ({"tensors": INT8 | {ZERO: np.full((N, 1), x)}}, TOO_LARGE)
        for word, x in {"2^32": np.int64(1 << 32), "2^31": np.int32((1 << 31) - 1), "2^63": np.uint64(1 << 63)}.items()
    },
    "torchao's zero points": (
        {
            "tensors": {"a._weight_qdata": ONES, "a._weight_scale": STEPS}
            | {"a._weight_zero_point": np.full((N, 1), -(1 << 40))},
            "said": TORCHAO,
        },
        TOO_LARGE,
    ),
    "a bias that numpy lacks": (
        {"tensors": INT8 | {"a.bias": np.ones(N, np.uint8)}, "types": {"a.bias": "F8_E4M3FNUZ"}}, "F8_E4M3FNUZ, which"
    ),
    "an order that numpy lacks": (
        {
            "tensors": GPTQ | {"a.g_idx": np.zeros(K // 2, np.uint8)},
            "types": {"a.g_idx": "U4"},
            "config": {"bits": 4},
        },
        "is of type U4, which",
    ),
    "a zero point that numpy lacks": (
        {"tensors": INT8 | {ZERO: np.full(1, 3, np.uint8)}, "types": {ZERO: "I4"}},
        "is of type I4, which numpy does not have",
    ),
    "a factor that numpy lacks": (
        {"tensors": SHORT | {GLOBAL: np.full(1, 3, np.uint8)}, "types": {GLOBAL: "F4"}},
        "is of type F4, which numpy does not have",
    ),
    "two factors": (
        {"tensors": SHORT | dict.fromkeys((GLOBAL, FACTOR), np.full(1, 4, np.float32))},
        UNLIKE,
    ),
    "float8 of two scales": ({"tensors": FLOATS | {FACTOR: STEPS}}, UNLIKE),
    "float8 and an inverse": (
        {"tensors": FLOATS | {"a.weight_scale_inv": STEPS * 7}}, UNLIKE
    ),
    "float8 with zero points": (
        {"tensors": FLOATS | {ZERO: STEPS}}, UNLIKE
    ),
    "int8 in an order": ({"tensors": INT8 | {"a.weight_g_idx": np.zeros(K, np.int32)}}, UNLIKE),
    "torchao's second scale": (
        {
            "tensors": {"a._weight_qdata": ONES, "a._weight_scale": STEPS, "a._weight_per_tensor_scale": STEPS[0]},
            "said": TORCHAO,
        },
        UNLIKE,
    ),
    "gptq of a version to come": ({"tensors": GPTQ, "config": {"checkpoint_format": "gptq_v9"}}, "laid out as gptq_v9"),
    "gptq of another method": ({"tensors": GPTQ, "config": {"quant_method": "vptq"}}, "says quant_method vptq"),
    "gptq in other groups": ({"tensors": GPTQ, "config": {"group_size": 16, "bits": 4}}, "none of 16, the group_size"),
    "gptq without its order": ({"tensors": GPTQ, "config": {"desc_act": True, "bits": 4}}, "speaks of (desc_act)"),
    "gptq in other codes": ({"tensors": WIDE, "config": {"bits": 8}}, "but the configuration says 8"),
    "mlx in other codes": ({"tensors": MLX, "config": {"bits": 8, "group_size": 64}}, "none of 8 bits in groups of 64"),
    "mlx of another mode": (
        {"tensors": MLX, "config": {"bits": 4, "group_size": 32, "mode": "mxfp4"}},
        "and not of mxfp4",
    ),
    "awq in an order": (
        {"tensors": AWQ | {"a.g_idx": np.zeros(K, np.int32)}, "config": {"quant_method": "awq"}},
        UNLIKE,
    ),
    "awq of another method": ({"tensors": AWQ, "config": {"quant_method": "gptq"}}, "says quant_method gptq"),
    "awq in other codes": ({"tensors": AWQ, "config": {"quant_method": "awq", "bits": 8}}, "configuration says 8"),
    "bytes for a GPU": (
        {"tensors": {"a.weight": ONES, "a.SCB": np.ones(N, np.float32), "a.weight_format": np.full(1, np.nan)}}, GPU
    ),
    "weights beyond floats": (
        {
            "tensors": {
                "a.W_q": np.zeros((N * K // 64, 64), np.uint8),
                "a.scale": np.full((N * K // 64, 1), 1e10, np.float32),
                "a.zero": np.full((N * K // 64, 1), 3e38, np.float32),
                "a.shape": np.array([N, K]),
                "a.axis": np.array([1]),
                "a.packing": np.frombuffer(b"8bit_u8", np.uint8),
            }
        },
        "not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_contradicts_itself_is_refused(case: str, tmp_path: Path) -> None:
    given, says = CASES[case]
    code, said = imported(written(tmp_path / "c", **given))
    assert code == 1 and says in said and len(said.splitlines()) == 1, said
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.parametrize(
    "tensors",
    [
        FLOATS | {ZERO: np.zeros_like(STEPS)},
        INT8 | {"a.weight_g_idx": np.full(K, -1, np.int32)},
        GPTQ | {"a.g_idx": np.arange(K, dtype=np.int32) // 32},
    ],
)
def test_what_says_nothing_is_left(tensors: dict[str, NDArray], tmp_path: Path) -> None:
    assert imported(written(tmp_path / "c", tensors, {"bits": 4}))[0] == 0


@pytest.mark.parametrize(
    ("alignment", "start", "says"),
    [(True, 0, "its alignment"), (1, 0, "its alignment"), (32, 3, "begins at no multiple of 32"), (64, 64, "")],
)
def test_tensors_lie_where_their_alignment_says(alignment: int, start: int, says: str, tmp_path: Path) -> None:
    text = lambda word: struct.pack("<Q", len(word)) + word.encode()  # noqa: E731
    value = struct.pack("<I?", 7, True) if alignment is True else struct.pack("<II", 4, alignment)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("general.alignment") + value
    head += text("a") + struct.pack("<IQIQ", 1, 4, 0, start)
    path = tmp_path / "g.gguf"
    path.write_bytes(head + bytes(-len(head) % 64) + bytes(start) + np.ones(8, np.float32).tobytes())
    if says:
        with pytest.raises(Exception, match=says):
            gguf_file.Gguf(path)
    else:
        assert (gguf_file.Gguf(path)["a"] == 1).all()
