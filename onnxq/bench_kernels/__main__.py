"""What this machine's kernels reach, against onnxruntime's own: checks every answer, then times all in turns.

    python -m onnxq.bench_kernels [--quick | --all | --sweep | --attention] [--threads 2] [--isa avx2] [--output r.md]

Every number comes through an onnxruntime session, ours and theirs, in the same run: product after product in turns,
so that whatever else the machine does meets all of them, and so that no weight is left in the cache by its last turn,
as in a model that is larger than the cache. Every thread stays on one processor. Reported are medians. Ceilings are
measured at the same moments: reading as many bytes as a weight has, and the peak of the processor's multipliers.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from onnxq.bench_kernels import attention, products
from onnxq.bench_kernels.ceilings import Ceilings, run_on
from onnxq.bench_kernels.contenders import CPUS, FORCE, check, contenders, time_in_turns
from onnxq.bench_kernels.tables import HEAD, Row, cells, describe, markdown, sweep_line, sweep_summary
from onnxq.errors import OnnxqError
from onnxq.files.guard import Guard
from onnxq.runtime import native

#: N × K: projections and both halves of the MLP of a model of 7 billion parameters.
SHAPES = ((4096, 4096), (11008, 4096), (4096, 14336))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
CODES = (("int4", 32), ("int4", 128), ("int8", 32), ("nf4", 64), ("fp4", 64), ("mxfp4", 32))
FORMATS = (*CODES, *((word, 32) for word in products.DENSE))
SWEPT_SHAPES = ((4096, 4096), (1024, 1024), (256, 512))
SWEPT_ROWS = (*range(1, 25), 32, 33, 48, 64, 96, 128, 192, 256, 384, 512)
SWEPT_FORMATS = (("int4", 32), ("int4", 128), ("int8", 32), ("nf4", 64))


def measure(
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    formats: Sequence[tuple[str, int]],
    seconds: float,
    ceilings: Ceilings,
) -> Iterator[Row]:
    for shape in shapes:
        by_format = {f"{word} b{block}": contenders(word, block, shape, ceilings.threads) for word, block in formats}
        everyone = [contender for group in by_format.values() for contender in group]
        for M in rows:
            x = np.random.default_rng(M).standard_normal((M, shape[1]), np.float32)
            for contender in everyone:
                check(contender, x)
            run_on(set(sorted(CPUS)[:1]))
            ceilings.start({contender.weight.bytes for contender in everyone})
            time_in_turns(everyone, x, seconds * (3 if M <= 8 else 1), ceilings.sample)
            for name, group in by_format.items():
                size = group[0].weight.bytes
                measured = {"read": ceilings.read(size), **ceilings.peaks}
                yield Row(shape, M, name, {c.name: c.median for c in group}, size, measured)


def sweep(
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    formats: Sequence[tuple[str, int]],
    seconds: float,
    threads: int,
    beside: Sequence[str],
) -> Iterator[Row]:
    """Every number of rows, against onnxruntime and other kernels of ours: without ceilings."""
    for shape in shapes:
        for word, block in formats:
            group = contenders(word, block, shape, threads, exact=False, beside=beside)
            for M in rows:
                x = np.random.default_rng(M).standard_normal((M, shape[1]), np.float32)
                for contender in group:
                    check(contender, x)
                run_on(set(sorted(CPUS)[:1]))
                time_in_turns(group, x, seconds)
                yield Row(shape, M, f"{word} b{block}", {c.name: c.median for c in group}, group[0].weight.bytes)
            run_on(CPUS)


def errors(threads: int) -> list[str]:
    """Lines of a table: what `fast` costs."""
    N, K, M = 512, 4096, 16
    lines = ["| format | normal activations | 12 channels 30 times as large |", "|---|---|---|"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, K), np.float32)
    outliers = x.copy()
    outliers[:, rng.choice(K, 12, replace=False)] *= 30
    for format, block in FORMATS:
        ours = contenders(format, block, (N, K), threads, exact=False)[0]
        lines.append(f"| {format} b{block} | {check(ours, x):.4f} | {check(ours, outliers):.4f} |")
    return lines


def attend(
    shapes: Sequence[tuple[int, int, int, int]], seconds: float, threads: int, write: Callable[[str], None]
) -> None:
    """Print the table of attention, and `write` it."""
    table = [attention.HEAD]
    print(*attention.HEAD, sep="  ")
    for row in attention.lines(shapes, seconds, threads):
        table.append(row)
        print(*row, sep="  ", flush=True)
    rows = ["| " + " | ".join(cells) + " |" for cells in (table[0], ["---"] * len(table[0]), *table[1:])]
    write("\n".join([*rows, ""]))


class Numbers(click.ParamType):
    """1,8,128"""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(word) for word in value.split(","))
        except ValueError:
            self.fail(f"'{value}' is not a list of numbers such as 1,8,128", param, ctx)


class Formats(click.ParamType):
    """Words and blocks, such as 'int4 b32,nf4 b64'."""

    name = "formats"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, int], ...]:
        if isinstance(value, tuple):
            return value
        known = {f"{word} b{block}": (word, block) for word, block in FORMATS}
        wanted = [word.strip() for word in value.split(",")]
        if missing := [word for word in wanted if word not in known]:
            self.fail(f"'{missing[0]}' is none of {', '.join(known)}", param, ctx)
        return tuple(known[word] for word in wanted)


def _writer(output: Path | None, force: bool) -> Callable[[str], None]:
    """What writes the tables, if they are to be: that it can is seen before anything is measured."""
    if output is None:
        return lambda text: None
    guard = Guard(force)
    try:
        guard.writes(output, "--output")
    except OnnxqError as error:
        raise click.ClickException(str(error)) from None
    return functools.partial(guard.write_text, output)


@click.command()
@click.option("--quick", is_flag=True, help="One small shape, few rows: proves that everything runs.")
@click.option("--all", "all_", is_flag=True, help="Three shapes, every format: some minutes.")
@click.option(
    "--sweep", "swept", is_flag=True, help="Every number of rows up to 24 and some up to 512, small shapes too."
)
@click.option("--attention", "attended", is_flag=True, help="Attention in the place of products.")
@click.option("--threads", default=2, show_default=True)
@click.option(
    "--seconds", type=float, help="For one number of rows at one shape (few rows: three times that).  [default: 2]"
)
@click.option("--shape", type=(int, int), multiple=True, help="N and K; may be given several times.")
@click.option("--rows", type=Numbers(), default=(), help="Numbers of rows, separated by commas.")
@click.option(
    "--format", "formats", type=Formats(), default=(), help="Formats, separated by commas, such as 'int4 b32'."
)
@click.option("--isa", help="Force this kernel.")
@click.option("--beside", multiple=True, help="Measure this kernel of ours too; with --sweep.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the tables here, as Markdown.")
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
def main(
    quick: bool,
    all_: bool,
    swept: bool,
    attended: bool,
    threads: int,
    seconds: float | None,
    shape: tuple[tuple[int, int], ...],
    rows: tuple[int, ...],
    formats: tuple[tuple[str, int], ...],
    isa: str | None,
    beside: tuple[str, ...],
    output: Path | None,
    force: bool,
) -> None:
    """Check, then time the kernels of the onnxq domain against onnxruntime's own."""
    write = _writer(output, force)
    if isa:
        os.environ[FORCE] = isa
    library = native.library()
    if library is None:
        raise SystemExit(1)
    if attended:
        attend(attention.QUICK if quick else attention.SHAPES, seconds or 1.0, threads, write)
        return
    small = ((256, 512),)
    if swept:
        shapes = shape or (small if quick else SWEPT_SHAPES)
        many, words = rows or ((1, 4, 33) if quick else SWEPT_ROWS), formats or SWEPT_FORMATS
        found = []
        for row in sweep(shapes, many, words, seconds or (0.02 if quick else 0.3), threads, beside):
            found.append(row)
            print(sweep_line(row), flush=True)
        summary = sweep_summary(found)
        print(*summary, sep="\n")
        write("\n".join([*summary, ""]))
        return
    shapes = shape or (small if quick else SHAPES if all_ else SHAPES[:1])
    many, words = rows or ((1, 4, 33) if quick else ROWS), formats or FORMATS
    ceilings = Ceilings(library, threads)
    print(describe(threads, ceilings).split("\n")[0])
    print("  ".join(HEAD))
    done = []
    for row in measure(shapes, many, words, seconds or (0.05 if quick else 2.0), ceilings):
        done.append(row)
        for ours in ("ours", "ours exact"):
            if ours in row.medians:
                print(f"{row.shape[0]}×{row.shape[1]}", *cells(row, ours), sep="  ", flush=True)
    print(*(lost := errors(threads)), sep="\n")
    write(markdown(done, describe(threads, ceilings), lost))


if __name__ == "__main__":
    sys.exit(main())
