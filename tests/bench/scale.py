"""What quantizing takes as models grow beyond memory: `python tests/bench/scale.py [--gigabytes 1 8] [--width 2048]`.

A decoder shaped like llama, of float16 weights, is calibrated by layer groups: each runs on what the groups before it
left, which is spilled to disk, its weights get their codes by data (`--algorithm`), and it is forgotten. Each size runs
in a process of its own, whose peak of memory is that of the system.

`--local 1 2` compares one process with clusters of so many workers here, as in `--local 1 2 --gigabytes 3.8 --float32
--algorithm mse`. Algorithms that need no data get none. `--sparse` leaves holes in the model's file where
disks are too small: of each weight only the first 64 kB are there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

VOCABULARY = 8192
SAMPLES, TOKENS = 8, 64
MEMORY = 256 << 20


def layers_of(gigabytes: float, width: int, itemsize: int) -> int:
    hidden = hidden_of(width)
    layer, rest = 4 * width**2 + 3 * width * hidden, 2 * VOCABULARY * width
    return max(1, round((gigabytes * 1e9 / itemsize - rest) / layer))


def hidden_of(width: int) -> int:
    return width * 11 // 4


def work(folder: Path, width: int, cluster: str, options: argparse.Namespace) -> None:
    """One size, in this process: prints what it took as JSON."""
    import onnxq
    from onnxq import algorithms
    from onnxq.calibration.find_ranges import Effort
    from onnxq.output import write

    write.SINGLE_FILE_BYTES = 0  # small models too are written as large ones are
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (SAMPLES, 1, TOKENS))
    np.savez(folder / "data.npz", ids=ids)
    recipe = onnxq.Recipe("w4a16", keep_slow=True, algorithm=options.algorithm, balance=False)
    start = time.perf_counter()
    effort = Effort(memory=MEMORY, cluster=cluster or None)
    data = None if options.algorithm in algorithms.DATA_FREE else str(folder / "data.npz")
    result = onnxq.quantize(
        folder / "llama.onnx", folder / "out.onnx", recipe, data=data, check=False, force=True, effort=effort
    )
    seconds = time.perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps([result.bytes_before, result.bytes_after, seconds, cpu, used[0].ru_maxrss * 1024]))


def measured(folder: Path, gigabytes: float, cluster: str, options: argparse.Namespace) -> list[float]:
    """Bytes read and written, seconds, those that processors were busy, and the peak of memory in bytes."""
    import llama

    kind = np.float32 if options.float32 else np.float16
    layers = layers_of(gigabytes, options.width, kind().itemsize)
    if not (folder / "llama.onnx").exists():
        shape = {"width": options.width, "hidden": hidden_of(options.width), "vocabulary": VOCABULARY}
        written = (1 << 16) if options.sparse else None
        llama.write_llama(folder, layers=layers, dtype=kind, written=written, **shape)
    flags = [word for word in ("--sparse", "--float32") if getattr(options, word[2:])]
    command = [sys.executable, __file__, "--work", str(folder), cluster, "--width", str(options.width)]
    command += ["--algorithm", options.algorithm, *flags]
    with tempfile.TemporaryDirectory(dir=folder) as cache:  # what one run keeps is not there for the next
        own = os.environ | {"XDG_CACHE_HOME": cache}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=own)
    return json.loads(done.stdout.splitlines()[-1])


def compared(folder: Path, gigabytes: float, options: argparse.Namespace) -> Iterator[list[str]]:
    """A row for one process and one for each cluster, all of which have to write the same bytes."""
    found: dict[str, list[list[float]]] = {word: [] for word in ("", *(f"local:{count}" for count in options.local))}
    written = set()
    for turn in range(options.turns):
        for word in list(found)[:: 1 if turn % 2 == 0 else -1]:
            found[word].append(measured(folder, gigabytes, word, options))
            written.add(digest_of(folder))
            print(word or "this process", *found[word][-1], sep=", ", file=sys.stderr, flush=True)  # some take hours
            if len(written) > 1:
                raise SystemExit(f"{word or 'this process'} wrote other bytes than those before")
    for word, runs in found.items():
        before, after, seconds, cpu, peak = (statistics.median(each) for each in zip(*runs, strict=True))
        sizes = f"{before / 1e9:.2f} GB", f"{after / 1e9:.2f} GB"
        times = f"{seconds:.1f}", *(f"{each / before * 1e9:.1f}" for each in (seconds, cpu))
        yield [*sizes, word or "this process", *times, f"{peak / 1e6:.0f} MB"]


def digest_of(folder: Path) -> str:
    """Of the model that was written, and its external data."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("out.onnx*")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 8])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--local", type=int, nargs="+", default=[], help="Workers, beside one process; in turns.")
    parser.add_argument("--turns", type=int, default=1, help="Of which medians are shown.")
    parser.add_argument("--folder", type=Path, help="Where there is room.  [default: where the system keeps such]")
    parser.add_argument("--algorithm", default="gptaq", help="That chooses codes.")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.width, options.work[1], options)
        return
    columns = "model", "written", "workers", "seconds", "a GB", "processor seconds a GB", "peak of this process"
    table = Table(*columns, box=None)
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            for row in compared(Path(name), gigabytes, options):
                table.add_row(*row)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
