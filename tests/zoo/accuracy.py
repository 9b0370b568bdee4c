"""The committed table of algorithms: `python tests/zoo/accuracy.py [--write] [--by ALGORITHM …] [-- MODEL …]`.

Quantizes shared models to few bits by the weights alone and by data, next to onnxruntime's own tool, and scores what
comes out on data that none of them saw. Nothing is given back to a longer format, whatever it costs. With `--int8` it
tells instead which nodes `w8a8` keeps in float for accuracy, and what it would cost to have them in integers.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from started import parser_for, start
from tables import TableRow, read_rows

import onnxq
from onnxq.job import open_job
from onnxq.plan import COMPUTING, Plan
from onnxq.recipe import Rule

TABLE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
HEADER = ("model", "metric", "float", "format", "codes by", "score", "SQNR dB", "size", "seconds")
SAMPLES = {"charlm": 192}
#: Transformers and other models of matrix products, and those of convolutions.
PRODUCTS = (
    "charlm",
    "stories260k_llama",
    "gpt_nano_sort",
    "rxn_albert",
    "tiny-random-gpt2-fp32_past",
    "tiny-random-lfm2-fp32_decoder",
    "mlperf_ad_autoencoder",
)
CONVOLUTIONS = (
    "mobilenetv2_cifar10",
    "deeplabv3_mnv2",
    "squeezenet1_1",
    "cifar_resnet56_op10",
    "mlperf_ic_resnet8",
    "ultraface_rfb320",
)
FORMATS = {"charlm": ("int4", "nf4", "int3", "uint2")}
OURS = ("rtn", "mse", "hqq", "awq", "importance", "gptq", "gptaq", "adaround")
PEERS = (
    THEIR_DEFAULT := "onnxruntime",
    THEIR_K_QUANT := "onnxruntime k_quant",
    THEIR_HQQ := "onnxruntime HQQ",
    THEIR_GPTQ := "onnxruntime GPTQ",
    GGUF := "gguf Q4_0",
)
#: What is compared with what.
PAIRS = (("gptq", "rtn"), ("gptq", "mse"), ("gptaq", "gptq"), ("adaround", "gptq"), ("awq", "mse"))
#: What is said below the tables, by hand: it stays as it is there.
BOUNDS = "## What limits it"
#: Nodes in float for their noise, and models that had some at one time or another.
NOISY = "costs more accuracy than it gives speed"
INTEGERS = (
    "mobilenetv2_cifar10",
    "deeplabv3_mnv2",
    "nsnet2",
    "ultraface_rfb320",
    "yunet_n_dynamic",
    "basic_pitch_nmp",
    "silero_vad_op18_ifless",
)
INT8_HEADER = ("model", "metric", "float", "int8", "float for time", "for accuracy", "score · dB", "int8 there too")
#: What codes are chosen by where channels are scaled before.
ALGORITHMS = {"awq": "mse"}


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text."""

    model: str
    metric: str
    in_float: str
    word: str
    algorithm: str
    score: str
    sqnr: str
    size: str
    seconds: str


@dataclass(frozen=True)
class Int8Row(TableRow):
    """One line of the table of `w8a8`, as text."""

    model: str
    metric: str
    in_float: str
    integers: str
    slow: str
    noisy: str
    result: str
    without: str


def in_integers(zoo: ModuleType, name: str, folder: Path) -> Int8Row:
    """What becomes of a model in `w8a8`, and of the same with all nodes in int8 that are in float for accuracy."""
    path, data, entry = zoo.model_path(name), zoo.calibration(name, 64), zoo.MODELS[name]

    def figures(plan: Plan | None) -> tuple[Plan, str]:
        output = folder / "int8.onnx"
        made = onnxq.quantize(path, output, "w8a8", data=data, limit=None, plan=plan, force=True).plan
        return made, f"{zoo.score(name, output):.4f} · {zoo.sqnr(name, output):.1f}"

    plan, result = figures(None)
    full = open_job(path, "w8a8", "ort-cpu", data).plan.those(*COMPUTING)
    back = {choice.node: choice for choice in full if choice.node not in {c.node for c in plan.those(*COMPUTING)}}
    noisy = [choice for choice in back.values() if plan.choices[choice.node].reason == NOISY]
    counts = len(full) - len(back), len(back) - len(noisy), len(noisy)
    without = figures(plan.replacing(noisy))[1] if noisy else "–"
    return Int8Row(name, entry.metric, f"{entry.float_score:.4f}", *map(str, counts), result, without)


def ours(zoo: ModuleType, name: str, word: str, algorithm: str, output: Path) -> None:
    """A file of ours, for the target that has a form for the format; the same plan for each algorithm."""
    target, data = "ort-cpu" if name in CONVOLUTIONS else "onnxq", zoo.calibration(name, SAMPLES.get(name, 64))
    rules = (Rule("int8", ops=("Gather",)),) if name in PRODUCTS else ()
    recipe = onnxq.Recipe(word, rules, min_sqnr=float("-inf"), accuracy_level=0)
    plan = open_job(zoo.model_path(name), recipe, target, data).plan
    onnxq.quantize(
        zoo.model_path(name),
        output,
        dataclasses.replace(recipe, algorithm=ALGORITHMS.get(algorithm, algorithm), balance=algorithm == "awq"),
        target=target,
        data=data,
        limit=None,
        plan=plan,
        check=False,
        force=True,
    )


def theirs(zoo: ModuleType, name: str, how: str, output: Path) -> None:
    """onnxruntime's own tool in one of its ways. HQQ needs torch.

    Raises:
        ImportError: there is none.
    """
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(zoo.calibration(name, SAMPLES.get(name, 64)))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

        def __deepcopy__(self, memo: object) -> Samples:  # the tool copies it
            return Samples()

    symmetric = how in (THEIR_DEFAULT, THEIR_GPTQ)
    if how == THEIR_HQQ:
        import torch  # noqa: F401 - it says clearly what is missing

        config = tool.HQQWeightOnlyQuantConfig(block_size=32, bits=4)
    elif how == THEIR_GPTQ:
        config = tool.GPTQWeightOnlyQuantConfig(Samples())
    elif how == THEIR_K_QUANT:
        config = tool.KQuantWeightOnlyQuantConfig()
    else:
        config = tool.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, bits=4)
    model = onnx.load(zoo.model_path(name))
    quantizer = tool.MatMulNBitsQuantizer(model, block_size=32, is_symmetric=symmetric, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(output))


def of_gguf(zoo: ModuleType, name: str, output: Path) -> int:
    """The float model with what the `gguf` package's Q4_0 makes of the matrices of its products, by rounding alone.

    Returns:
        How many bytes less a file with these blocks would have.

    Raises:
        ImportError: there is none.
    """
    import gguf

    model, kind, saved = onnx.load(zoo.model_path(name)), gguf.GGMLQuantizationType.Q4_0, 0
    matrices = {node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    for tensor in model.graph.initializer:
        if tensor.name in matrices and len(tensor.dims) == 2 and tensor.dims[0] % 32 == 0:
            weight = np.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T)
            blocks = gguf.quantize(weight, kind)
            saved += weight.nbytes - blocks.nbytes
            tensor.CopyFrom(onnx.numpy_helper.from_array(gguf.dequantize(blocks, kind).T, tensor.name))
    onnx.save(model, output)
    return saved


def contenders(name: str, word: str, by: list[str] | None) -> Iterator[str]:
    for algorithm in (*OURS, *PEERS) if by is None else by:
        is_slow = algorithm == "adaround" and name in PRODUCTS  # several times as long for larger layers
        if not is_slow and (algorithm in OURS or (word == "int4" and name in PRODUCTS)):
            yield algorithm


def make(zoo: ModuleType, name: str, word: str, algorithm: str, output: Path) -> int:
    """A file by one of them; how many bytes less than it has it could have."""
    if algorithm == GGUF:
        return of_gguf(zoo, name, output)
    if algorithm in PEERS:
        theirs(zoo, name, algorithm, output)
    else:
        ours(zoo, name, word, algorithm, output)
    return 0


def figures(zoo: ModuleType, name: str, word: str, algorithm: str, output: Path) -> tuple[str, str, str, str]:
    """Score, SQNR, size and seconds of a file by one of them."""
    start = time.perf_counter()
    saved = make(zoo, name, word, algorithm, output)
    seconds = time.perf_counter() - start
    size = (zoo.file_size(output) - saved) / zoo.file_size(zoo.model_path(name))
    return f"{zoo.score(name, output):.4f}", f"{zoo.sqnr(name, output):.1f}", f"{size:.3f}", f"{seconds:.0f}"


def measure(zoo: ModuleType, name: str, word: str, folder: Path, by: list[str] | None) -> Iterator[Row]:
    entry = zoo.MODELS[name]
    for algorithm in contenders(name, word, by):
        try:
            found = figures(zoo, name, word, algorithm, folder / "q.onnx")
        except ImportError:
            continue
        except Exception as error:
            if algorithm in OURS:
                raise
            print(f"{name} by {algorithm}: {error}", flush=True)
            found = ("fails", "–", "–", "–")
        yield Row(name, entry.metric, f"{entry.float_score:.4f}", f"`{word}`", algorithm, *found)


def gains(rows: list[Row]) -> Iterator[str]:
    """For each model and format, by what factor data shrink the error of the outputs."""
    by = {(row.model, row.word, row.algorithm): float(row.sqnr) for row in rows if row.sqnr != "–"}
    for model, word in dict.fromkeys((row.model, row.word) for row in rows):
        found = [by.get((model, word, algorithm), math.nan) for pair in PAIRS for algorithm in pair]
        factors = [10 ** ((better - worse) / 10) for better, worse in zip(found[::2], found[1::2], strict=True)]
        shown = ("–" if math.isnan(factor) else f"÷ {factor:.1f}" for factor in factors)
        yield f"| {model} | {word} | {' | '.join(shown)} |"


def render(rows: list[Row], integers: list[Int8Row], below: str) -> str:
    return "\n".join(
        [
            "# Algorithms, by the weights alone and by data",
            "",
            "Made by `python tests/zoo/accuracy.py --write`. Each model is quantized with `--min-sqnr=-inf`, so that",
            "no node gets a longer format: products in blocks of 32 (nf4: 64) on target `onnxq` with float",
            "activations, tables that are looked up in int8, convolutions on `ort-cpu`. `rtn` rounds to nearest by the",
            "format's own rule, `mse` looks for scales of less error, `awq` does so once channels between layers are",
            "scaled, `hqq` fits scales and zero points, `importance` weighs by the size of inputs. `adaround` learns",
            "which way kernels are rounded. `gptq` chooses codes by data, `gptaq` by what layers get behind those that",
            "are quantized already:",
            "64 samples of calibration data (charlm: 192). Scores and SQNR are of other data. *onnxruntime* is its",
            "`MatMulNBitsQuantizer` (blocks of 32; symmetric, but for k_quant and HQQ), which leaves tables and",
            "convolutions in float; its GPTQ has the same samples. *gguf* is what the package of llama.cpp rounds",
            "matrices to. Kernels of convolutions get 4 bits where they are as long as a block (which onnxq does of",
            "itself with data only), else 8. Seconds are of the whole process, on a machine that did other things at",
            "the same time.",
            "Formats by layer, searched for under a budget: [budgets.md](budgets.md).",
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, rows),
            "",
            "What that makes of the power of the error at the outputs:",
            "",
            f"| model | format | {' | '.join(f'{better} against {worse}' for better, worse in PAIRS)} |",
            "|---" * (len(PAIRS) + 2) + "|",
            *gains(rows),
            "",
            "## Nodes that `w8a8` keeps in float for accuracy",
            "",
            "Made by `python tests/zoo/accuracy.py --int8 --write`: with 64 samples for calibration on `ort-cpu`, how",
            "many nodes compute in int8, how many stay in float because that is faster, and how many because the noise",
            "that they add is not worth the time that they save; and the same with all of those in int8.",
            "",
            f"| {' | '.join(INT8_HEADER)} |",
            "|---" * len(INT8_HEADER) + "|",
            *map(str, integers),
            "",
            below,
        ]
    )


def write(rows: Iterable[Row], integers: Iterable[Int8Row]) -> None:
    """Put all rows into the document, those of each model where they were."""
    order = {name: i for i, name in enumerate((*PRODUCTS, *CONVOLUTIONS))}
    below = BOUNDS + TABLE.read_text(encoding="utf-8").partition(BOUNDS)[2]
    known = sorted(rows, key=lambda row: order[row.model]), sorted(integers, key=lambda row: INTEGERS.index(row.model))
    TABLE.write_text(render(*known, below), encoding="utf-8")


def main() -> None:
    logging.disable(logging.INFO)  # of onnxruntime's tool, a line for each node
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("models", nargs="*", help="only these models")
    parser.add_argument("--by", nargs="+", choices=(*OURS, *PEERS), help="only these algorithms")
    parser.add_argument("--formats", nargs="+", help="only these formats")
    parser.add_argument("--int8", action="store_true", help="the table of w8a8 instead")
    options, zoo = start(parser)
    rows = {(row.model, row.word, row.algorithm): row for row in read_rows(TABLE, Row, HEADER)}
    integers = {row.model: row for row in read_rows(TABLE, Int8Row, INT8_HEADER)}
    with tempfile.TemporaryDirectory() as folder:
        for name in (options.models or INTEGERS) if options.int8 else ():
            integers[name] = in_integers(zoo, name, Path(folder))
            print(integers[name], flush=True)
            if options.write:
                write(rows.values(), integers.values())
        for name in () if options.int8 else options.models or (*PRODUCTS, *CONVOLUTIONS):
            for word in options.formats or FORMATS.get(name, ("int4",)):
                for row in measure(zoo, name, word, Path(folder), options.by):
                    rows[row.model, row.word, row.algorithm] = row
                    print(row, flush=True)
                    if options.write:
                        write(rows.values(), integers.values())


if __name__ == "__main__":
    main()
