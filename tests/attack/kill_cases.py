"""Commands that change files, and what was there before."""

from __future__ import annotations

from kill_folder import BESIDE, CALIBRATION, Case


def quantize(scheme: str, *more: str) -> list[str]:
    return ["quantize", "in.onnx", "-s", scheme, "-o", "out.onnx", "--no-check", *more]


def folder_of_models(scheme: str, *more: str) -> list[str]:
    return ["quantize", "parts", "-s", scheme, "-o", "out", "--no-check", *more]


def beside(scheme: str, output: str) -> list[str]:
    return ["quantize", "in.onnx", "-s", scheme, "-o", output, "--no-check"]


def report(model: str, *more: str) -> list[str]:
    return ["report", model, "-o", "out.html", *more]


def other(before: list[str]) -> list[tuple[list[str], str]]:
    """Two quantized models, and what `before` makes of the second."""
    return [(beside("w4a16", "q.onnx"), ""), (beside("nf4", "other.onnx"), ""), (before, "")]


TRAIN = (
    *("train", "in.onnx", "-s", "w4a16", "-t", "onnx", "--data", "data.npz", "--checkpoint", "out.training"),
    *("--block-steps", "1", "--checkpoint-steps", "1", "--no-check", "-o", "out.onnx", "--steps", "2", "-f"),
)
LORA = (
    *("lora", "train", "q.onnx", "--data", "pairs.npz", "--labels", "y", "--epochs", "1", "--steps", "2"),
    *("-o", "out.onnx_adapter", "-f"),
)
FOR_OTHERS = ["convert", "--to", "compressed-tensors", "-o", "out"]
PARTS = ["convert", "--to", "safetensors", "-o", "out.safetensors", "--shard-size", "1kB"]


def calibrate(*more: str) -> list[str]:
    return ["calibrate", "in.onnx", "-o", "out.ranges", "-s", "w8a8", *CALIBRATION, *more]


def encode(word: str, *more: str) -> list[str]:
    return ["encode", "data.npz", "-w", word, "-o", "out.gguf", *more]


OLD_RANGES = (["calibrate", "in.onnx", "-o", "out.ranges", "-s", "w8a8", "--data", "data.npz", "--limit", "5"], "")
CASES: dict[str, Case] = {
    "new model": Case(quantize("w8a16"), "out.onnx", patches=BESIDE),
    "model with data over one with data": Case(
        quantize("w8a16", "-f"), "out.onnx", [(quantize("w4a16"), "")], BESIDE, BESIDE
    ),
    "model with several files of data over one with others": Case(
        quantize("w8a16", "-f", "--shard-size", "5kB"),
        "out.onnx",
        [(quantize("w4a16", "--shard-size", "layer"), "")],
        BESIDE,
        points="publish.",
    ),
    "small model over one with data": Case(quantize("w8a16", "-f"), "out.onnx", [(quantize("w4a16"), "")], {}, BESIDE),
    "model where another run was killed": Case(
        quantize("w8a16", "-f"),
        "out.onnx",
        [(quantize("w4a16"), ""), (quantize("nf4", "-f"), "kill publish.model_moved")],
        BESIDE,
        BESIDE,
    ),
    "folder of models": Case(
        folder_of_models("w8a16", "-f"), "out", [(folder_of_models("w4a16"), "")], points="folder."
    ),
    "bundle": Case(
        ["export", "in.onnx", "-o", "out", "--no-check", "-f"],
        "out",
        [(["export", "parts/a.onnx", "-o", "out", "--no-check", "-t", "ort-cpu"], "")],
        points=("staging.", "folder."),
    ),
    "report": Case(
        quantize("w8a16", "-f", "--report", "out.json"), "out.json", [(quantize("w4a16", "--report", "out.json"), "")]
    ),
    "plan": Case(
        ["plan", "in.onnx", "-s", "w8a16", "-o", "out.json", "-f"],
        "out.json",
        [(["plan", "in.onnx", "-s", "w4a16", "-o", "out.json"], "")],
    ),
    "imported weights": Case(
        ["import-weights", "in.onnx", "weights.npz", "-o", "out.onnx", "--no-check", "-f"],
        "out.onnx",
        [(quantize("w8a16"), "")],
        BESIDE,
        BESIDE,
        is_like_another=True,
    ),
    "ranges": Case(calibrate("-f"), "out.ranges", [OLD_RANGES]),
    "ranges with progress": Case(calibrate(), "out.ranges", [(calibrate(), "kill checkpoint.save 3")]),
    "ranges of a model that is looked at in pieces, with progress": Case(
        calibrate("--max-memory", "100kB"),
        "out.ranges",
        [(calibrate("--max-memory", "100kB"), "kill checkpoint.save 3")],
        points=("checkpoint.", "write."),
    ),
    "ranges by two processes": Case(calibrate("-f", "--jobs", "2"), "out.ranges", [OLD_RANGES]),
    "ranges left by quantize": Case(
        quantize("w8a8", "-f", "--ranges", "out.ranges", *CALIBRATION, "--checkpoint-every", "9"),
        "out.ranges",
    ),
    "encoded arrays": Case(encode("q8_0", "-f"), "out.gguf", [(encode("q4_0"), "")]),
    "evidence left by quantize": Case(
        [*quantize("w4a16", "--algorithm", "gptq"), "--data", "data.npz", "--evidence", "out.npz"],
        "out.npz",
        points="write.",
    ),
    "adapter of the runtime": Case(
        ["lora", "convert", "in.onnx", "a.onnx_adapter", "-o", "out.onnx_adapter", "-f"],
        "out.onnx_adapter",
        [(["lora", "convert", "in.onnx", "b.onnx_adapter", "-o", "out.onnx_adapter"], "")],
        points="write.",
    ),
    "adapter of PEFT": Case(
        ["lora", "convert", "in.onnx", "a.onnx_adapter", "-o", "out", "-f"],
        "out",
        [(["lora", "convert", "in.onnx", "b.onnx_adapter", "-o", "out"], "")],
        points="set.",
        may_be_gone=True,
    ),
    "weights in several files": Case(
        [*PARTS, "q.onnx", "-f"],
        "out.safetensors.index.json",
        [(beside("w4a16", "q.onnx"), ""), (beside("nf4", "other.onnx"), ""), ([*PARTS, "other.onnx"], "")],
        points="set.",
        may_be_gone=True,
    ),
    "model that is trained": Case(
        [*TRAIN], "out.onnx", [(quantize("nf4", "-t", "onnx"), "")], BESIDE, BESIDE, "write.", needs=("torch",)
    ),
    "model whose training goes on": Case(
        [*TRAIN],
        "out.onnx",
        [(quantize("nf4", "-t", "onnx"), ""), ([*TRAIN], "kill write.moved 1")],
        BESIDE,
        BESIDE,
        "write.",
        needs=("torch",),
    ),
    "adapter that is trained": Case(
        [*LORA],
        "out.onnx_adapter",
        other(["lora", "convert", "q.onnx", "a.onnx_adapter", "-o", "out.onnx_adapter"]),
        points="write.",
        needs=("torch",),
    ),
    "model with an adapter": Case(
        ["lora", "convert", "q.onnx", "b.onnx_adapter", "-o", "out.onnx", "-f"],
        "out.onnx",
        other(["lora", "merge", "q.onnx", "a.onnx_adapter", "-o", "out.onnx"]),
        BESIDE,
        BESIDE,
        is_like_another=True,
    ),
    "page": Case(
        report("q.onnx", "-f"), "out.html", other(report("other.onnx")), points="write.", is_like_another=True
    ),
    "page as JSON": Case(
        report("q.onnx", "--json", "out.json", "-f"),
        "out.json",
        other(report("other.onnx", "--json", "out.json")),
        points="write.",
        is_like_another=True,
    ),
    "model back in float": Case(
        ["dequantize", "q.onnx", "-o", "out.onnx", "-f"],
        "out.onnx",
        other(["dequantize", "other.onnx", "-o", "out.onnx"]),
        BESIDE,
        BESIDE,
        is_like_another=True,
    ),
    "folder for another project": Case(
        [*FOR_OTHERS, "q.onnx", "-f"],
        "out",
        [(beside("w8a16", "other.onnx"), ""), (beside("w4a16", "q.onnx"), ""), ([*FOR_OTHERS, "other.onnx"], "")],
        points="folder.",
    ),
    "model that is searched for": Case(
        [
            *("quantize", "in.onnx", "-o", "out.onnx", "--data", "data.npz", "--effort", "quick"),
            *("--budget", "bits=7", "--formats", "int8", "--formats", "uint4/32"),
        ],
        "out.onnx",
        patches={
            "onnxq.searching.meter.SECONDS": 0.0,
            "onnxq.searching.space.RUNS": {"quick": [0.1, 3, 3]},
            "onnxq.tuning.timings.TIMING_SECONDS": 0.001,
        },
        points="write.",
        is_like_another=True,
    ),
}
