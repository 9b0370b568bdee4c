"""Regions on every shared model: `python tests/zoo/regions.py make|time|score|table FOLDER [--threads N] [MODEL …]`.

`make` quantizes models to w8a8 for targets ort-cpu and onnxq, and to bf16 for the latter, tuned as `quantize` does by
default, into FOLDER. `time` runs in turns float, these files, and those with regions as somebody runs them who has only
onnxruntime: medians of a turn's quickest runs, and what opening a session takes and leaves in memory. `score` has the
shared models' own metrics judge them. Each leaves what it finds in FOLDER/MODEL.json; `table` prints it all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime
from started import parser_for, start
from zoo_models import judge

import onnxq

#: By name: scheme and target.
FILES = {"w8a8": ("w8a8", "ort-cpu"), "regions": ("w8a8", "onnxq"), "bf16": ("bf16", "onnxq")}
#: Run without the compiled library too: what they are to a stranger.
WITH_BODIES = ("regions", "bf16")
SAMPLES, TURNS, SECONDS = 64, 15, 0.15
#: What may be noise.
NO_SLOWER = 1.03
#: Printed by a process of its own: milliseconds to open a session, and megabytes that it keeps.
OPENING = """
import sys, time, onnx, onnxruntime, onnxq  # modules that are read once a process count for nobody
def memory():
    fields = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return sum(int(fields[name].split()[0]) for name in ("Private_Dirty", "Private_Clean")) / 1024
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
warm = onnxq.session(sys.argv[2], options)
del warm
before, start = memory(), time.perf_counter()
session = onnxq.session(sys.argv[1], options)
print(1000 * (time.perf_counter() - start), memory() - before)
"""


def session_of(path: Path, threads: int, *, library: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    open_ = onnxq.session if library else onnxruntime.InferenceSession
    return open_(str(path), options, providers=["CPUExecutionProvider"])


def make(zoo: ModuleType, name: str, folder: Path, _: int) -> dict[str, Any]:
    """Writes the files; why those are missing that could not be made."""
    data = zoo.export_calibration(name, folder / f"{name}.npz", SAMPLES)
    found: dict[str, Any] = {f"{word} error": "" for word in FILES}
    for word, (scheme, target) in FILES.items():
        begun = time.perf_counter()
        samples = data if scheme == "w8a8" else None
        try:
            made = onnxq.quantize(
                zoo.model_path(name), folder / f"{name}.{word}.onnx", scheme, target=target, data=samples, force=True
            )
        except onnxq.OnnxqError as error:
            found[f"{word} error"] = str(error)
            continue
        found[f"{word} plan"] = [[c.node, c.op, c.label, c.reason] for c in made.plan]
        found[f"{word} seconds"] = time.perf_counter() - begun
    return found


def measured(zoo: ModuleType, name: str, folder: Path, threads: int) -> dict[str, Any]:
    """Milliseconds of a run of each file, and what opening it takes."""
    paths = {"float": zoo.model_path(name)}
    paths |= {word: path for word in FILES if (path := folder / f"{name}.{word}.onnx").is_file()}
    runs: dict[str, Callable[[], object]] = {}
    feed = zoo.inputs(name, 1)[0]
    for word, path in paths.items():
        for library in (True, False) if word in WITH_BODIES else (True,):
            run = zoo.runner(session_of(path, threads, library=library))
            runs[word if library else f"{word} body"] = lambda run=run: run(feed)
    times: dict[str, list[float]] = {word: [] for word in runs}
    for _ in range(TURNS):
        for word, run in runs.items():
            run()
            end, each = time.perf_counter() + SECONDS, []
            while not each or (time.perf_counter() < end and len(each) < 400):
                begun = time.perf_counter()
                run()
                each.append(time.perf_counter() - begun)
            times[word].append(statistics.median(each))
    found: dict[str, Any] = {f"ms {threads}": {word: 1000 * statistics.median(each) for word, each in times.items()}}
    if threads == 1:
        found["opened"] = {word: opened(path, paths["float"]) for word, path in paths.items()}
    return found


def opened(path: Path, warm: Path) -> tuple[float, float]:
    """Medians over processes: milliseconds, megabytes."""
    lines = [
        subprocess.run(
            [sys.executable, "-c", OPENING, str(path), str(warm)], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(5)
    ]
    return statistics.median(float(ms) for ms, _ in lines), statistics.median(float(mb) for _, mb in lines)


def scored(zoo: ModuleType, name: str, folder: Path, _: int) -> dict[str, Any]:
    """Scores by the shared models' own metrics."""
    entry = zoo.MODELS[name]
    found = {"float": entry.float_score if entry.vs_float else zoo.score(name)}
    for word in FILES:
        path = folder / f"{name}.{word}.onnx"
        if path.is_file():
            found[word] = zoo.score(name, session_of(path, 1, library=True))
    return {"scores": found}


def table(zoo: ModuleType, found: dict[str, dict[str, Any]], threads: int) -> None:
    """The rows and their summary."""
    words = ("w8a8", "regions", "regions body", "bf16", "bf16 body")
    print(f"| model | float, ms | {' | '.join(words)} | score: {' / '.join(['float', *FILES])} |")
    ratios: dict[str, dict[str, float]] = {word: {} for word in words}
    outside = []
    for name, row in found.items():
        ms = row.get(f"ms {threads}", {})
        for word in words:
            if word in ms:
                ratios[word][name] = ms[word] / ms["float"]
        cells = [f"{ratios[word][name]:.2f}" if word in ms else "" for word in words]
        scores = row.get("scores", {})
        for word in FILES:
            if word in scores and not judge(zoo.MODELS[name].metric, scores["float"], scores[word]).is_good:
                outside.append(f"{name} {word}")
        said = " / ".join(f"{scores[word]:.4g}" if word in scores else "" for word in ("float", *FILES))
        print(f"| {name} | {ms.get('float', 0):.2f} | {' | '.join(cells)} | {said} |")
    for word, each in ratios.items():
        slower = [f"{name} {ratio:.2f}" for name, ratio in each.items() if ratio > NO_SLOWER]
        if each:
            median = statistics.median(each.values())
            print(f"{word}: {len(each)} models, median {median:.3f}; slower than float: {', '.join(slower) or 'none'}")
    print(f"scores outside limits: {', '.join(outside) or 'none'}")
    for kind, what in enumerate(("ms to open", "MB kept")):
        for word in FILES:
            pairs = [row["opened"] for row in found.values() if word in row.get("opened", {})]
            against = [each[word][kind] / max(each["w8a8"][kind], 0.1) for each in pairs if "w8a8" in each]
            if against:
                above = sum(ratio > NO_SLOWER for ratio in against)
                print(f"{what}, {word} over w8a8: median {statistics.median(against):.2f}, above in {above}")


STAGES = {"make": make, "time": measured, "score": scored}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("stage", choices=[*STAGES, "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    options, zoo = start(parser)
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in options.models or zoo.MODELS:
        path = options.folder / f"{name}.json"
        found[name] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if options.stage == "table":
            continue
        found[name] |= STAGES[options.stage](zoo, name, options.folder, options.threads)
        path.write_text(json.dumps(found[name], indent=1), encoding="utf-8")
        print(name, {key: value for key, value in found[name].items() if not key.endswith("plan")}, flush=True)
    if options.stage == "table":
        table(zoo, found, options.threads)


if __name__ == "__main__":
    main()
