"""The committed table of results: `python tests/zoo/results.py [--write] [SCHEME …]` scores every shared model.

Scores, sizes and latencies are the zoo's own: real data, one thread, float and quantized model timed in turns. Takes
about an hour on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

from zoo_models import SHARED, judge, load_zoo

import onnxq
from onnxq.plan import Method

SCHEMES = ("w8a8", "w8a8-dynamic", "w4a16", "nf4", "fp16", "auto")
TABLE = Path(__file__).resolve().parents[2] / "docs" / "results.md"


def row(zoo: ModuleType, name: str, scheme: str, in_float: float, folder: Path) -> str:
    """One line of the table: score, size and latency against float, and what was kept."""
    data = zoo.export_calibration(name, folder / f"{name}.npz", 64) if scheme == "w8a8" else None
    output = folder / f"{name}.onnx"
    try:
        result = onnxq.quantize(zoo.model_path(name), output, scheme, data=data, force=True)
    except onnxq.OnnxqError as error:
        return f"| {name} | {scheme} | {in_float:.4g} | – | – | – | – | {error} |"
    entry = zoo.MODELS[name]
    verdict = judge(entry.metric, in_float, zoo.score(name, output))
    latency = zoo.latency([zoo.model_path(name), output], zoo.inputs(name, 1)[0])
    size = zoo.file_size(output) / zoo.file_size(zoo.model_path(name))
    mark = "" if verdict.is_good else " (!)"
    return (
        f"| {name} | {scheme} | {in_float:.4g} | {verdict.score:.4g}{mark} | {zoo.sqnr(name, output):.1f} "
        f"| {size:.2f} | {latency[1] / latency[0]:.2f} | {what_became(result)} |"
    )


def what_became(result: onnxq.Result) -> str:
    """How many nodes became what; those without weights that stayed in float are not worth a word."""
    labels = Counter(c.label for c in result.plan if c.method is not Method.KEEP or c.elements)
    return ", ".join(f"{count} {label}" for label, count in labels.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} too")
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("schemes", nargs="*", default=SCHEMES)
    options = parser.parse_args()
    zoo = load_zoo()
    if zoo is None:
        raise SystemExit(f"no shared models in {SHARED}; ONNXQ_SHARED says where they are")
    lines = [
        "# Results on real models",
        "",
        "Made by `python tests/zoo/results.py --write`. Score: the model's own metric on real data it was not",
        "calibrated with. Size and latency are relative to float (latency below 1 is faster; medians in turns, one",
        "thread). `(!)`: more than a point of accuracy, 0.02 nats or 1 dB lost, or less than 25 dB against float kept.",
        "",
        "| model (metric) | scheme | float | score | SQNR dB | size | latency | nodes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or zoo.MODELS:
            entry = zoo.MODELS[name]
            in_float = entry.float_score if entry.vs_float else zoo.score(name)
            for scheme in options.schemes:
                line = row(zoo, name, scheme, in_float, Path(folder))
                lines.append(line.replace(f"| {name} |", f"| {name} ({entry.metric}) |", 1))
                print(lines[-1], flush=True)
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
