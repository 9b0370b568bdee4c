"""Plots in text."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from onnxq.frontier import Frontier

#: Places across and down.
WIDTH, HEIGHT = 64, 14
#: What harm of less counts as.
LEAST = 1e-12


def front_table(front: Frontier) -> Table:
    """A line for each point."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    times = any(point.latency is not None for point in front.points)
    diverges = any(point.figures.kld is not None for point in front.points)
    decides = any(point.figures.flips is not None for point in front.points)
    columns = ["bits", "size", *(["latency"] if times else []), "dB"]
    for column in (*columns, *(["KL divergence"] if diverges else []), *(["flipped"] if decides else [])):
        table.add_column(column, justify="right")
    for point in front.points:
        found = point.figures
        row = [f"{point.bits:.2f}", f"{point.size:.3f}"]
        row += [] if not times else ["" if point.latency is None else f"{point.latency:.2f}"]
        row.append(f"{found.sqnr:.1f}")
        row += ["" if found.kld is None else f"{found.kld:.3g}"] if diverges else []
        row += ["" if found.flips is None else f"{found.flips:.2%}"] if decides else []
        table.add_row(*row)
    return table


def front_plot(front: Frontier) -> Text:
    """Harm, in decades, over the size of the file."""
    sizes = [point.size for point in front.points]
    heights = [math.log10(max(point.figures.harm, LEAST)) for point in front.points]
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    for size, height in zip(sizes, heights, strict=True):
        x = round(_share(size, sizes) * (WIDTH - 1))
        y = round((1 - _share(height, heights)) * (HEIGHT - 1))
        rows[y][x] = "●"
    lines = []
    for number, row in enumerate(rows):
        at = max(heights) - (max(heights) - min(heights)) * number / (HEIGHT - 1)
        label = f"{10.0**at:8.1e}" if number % 4 == 0 else " " * 8
        lines.append(f"{label} │{''.join(row).rstrip()}")
    low, high = f"{min(sizes):.3f}", f"{max(sizes):.3f}"
    lines.append(f"{'':8} └{'─' * WIDTH}")
    lines.append(f"{'':10}{low}{'size':^{WIDTH - len(low) - len(high)}}{high}")
    return Text("\n".join([f"\n{front.harm}", *lines]))


def _share(x: float, every: list[float]) -> float:
    width = max(every) - min(every)
    return (x - min(every)) / width if width else 0.5
