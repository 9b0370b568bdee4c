"""The plots of a report, as plotly has them. Colours of text and grid come with the theme of the page."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnxq.errors import MissingRuntime
from onnxq.quality import MAX_DB
from onnxq.report import words
from onnxq.report.document import Layer, Node, Report

#: One for each kind of thing, told apart by people who see colours otherwise too, on white and on black.
PALETTE = ("#3b82c4", "#e08e1b", "#1f9d7a", "#c95f9d", "#7f6fd0", "#c9a227", "#5bb0d9", "#d1495b", "#6b8e23", "#8d6e63")
FLOAT, BEFORE, AFTER, UNKNOWN = "#9aa3af", "#9aa3af", "#3b82c4", "#8b95a3"
#: From bad to good, and from little to much.
ERRORS = [[0.0, "#d1495b"], [0.35, "#edae49"], [0.7, "#4aa58c"], [1.0, "#2a7f9e"]]
TIMES = [[0.0, "#8fa3bf"], [0.5, "#edae49"], [1.0, "#d1495b"]]
#: dB at which an error has the worst and the best colour.
WORST, BEST = 0.0, 60.0
#: A node of few weights is drawn as if it had this share of all.
LEAST_SHARE = 0.001
#: In a row above the plot.
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
#: Layers and operators in a plot at most.
LAYERS, OPERATORS = 2000, 16


def figures_of(report: Report) -> dict[str, dict[str, Any]]:
    """The plots that there is something for, by the id of their place in the page.

    Raises:
        MissingRuntime: plotly is not installed.
    """
    makers: dict[str, Callable[[Report], Any]] = {
        "map": _map,
        "layers": _layers,
        "weights": _weights,
        "operators": _operators,
        "front": _front,
    }
    found = {name: make(report) for name, make in makers.items()}
    return {name: json.loads(figure.to_json()) for name, figure in found.items() if figure is not None}


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each; float is grey."""
    named = sorted({label for label in labels if label not in ("float", "")})
    return {"float": FLOAT} | {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(named)}


def _go() -> Any:
    try:
        from plotly import graph_objects
    except ImportError:
        raise MissingRuntime("a page takes jinja2 and plotly: pip install 'onnxq[report]'") from None
    return graph_objects


def _figure(traces: Sequence[Any], **layout: Any) -> Any:
    usual = {"margin": {"l": 64, "r": 16, "t": 16, "b": 48}, "template": "none", "height": 380}
    return _go().Figure(list(traces), usual | layout)


def _plain(text: str) -> str:
    """Text that plotly shows as it is."""
    return html.escape(text, quote=False)


def places(name: str) -> list[str]:
    """The groups that a node lies in, by its name, and its own."""
    parts = [part for part in re.split(r"[/.]|::", name) if part]
    return parts or [name]


def _map(report: Report) -> Any:
    """Every node in the groups that its name tells of; the page exchanges sizes and colours."""
    if not report.nodes:
        return None
    tree = _Tree(report.nodes)
    treemap = _go().Treemap(
        ids=tree.ids,
        labels=tree.labels,
        parents=tree.parents,
        values=tree.sizes["weights"],
        branchvalues="total",
        hovertext=tree.hovers,
        hoverinfo="text",
        marker={
            "colors": tree.formats,
            "line": {"width": 1, "color": "rgba(255,255,255,0.5)"},
            "pad": {"t": 20, "l": 3, "r": 3, "b": 3},
        },
        tiling={"packing": "squarify", "pad": 1},
        maxdepth=5 if len(report.nodes) > 600 else -1,
        root={"color": "rgba(0,0,0,0)"},
        pathbar={"thickness": 24},
        meta={"sizes": tree.sizes, "formats": tree.formats, "errors": tree.errors, "times": tree.times},
    )
    return _figure([treemap], height=520, margin={"l": 0, "r": 0, "t": 30, "b": 0})


class _Tree:
    """Nodes as leaves, the groups of their names above them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.ids, self.labels, self.parents, self.hovers = ["·"], ["model"], [""], ["model"]
        self._of: list[list[Node]] = [list(nodes)]
        place: dict[str, int] = {"·": 0}
        for number, node in enumerate(nodes):
            above = "·"
            for part in places(node.name)[:-1]:
                here = f"{above}/{part}"
                if here not in place:
                    place[here] = len(self.ids)
                    self._add(here, _plain(part), above, _plain(part))
                self._of[place[here]].append(node)
                above = here
            own = places(node.name)[-1]
            self._add(f"{above}//{number}", _plain(own), above, _hover(node))
            self._of[-1].append(node)
        self._finish(nodes)

    def _add(self, id: str, label: str, parent: str, hover: str) -> None:
        self.ids.append(id)
        self.labels.append(label)
        self.parents.append(parent)
        self.hovers.append(hover)
        self._of.append([])

    def _finish(self, nodes: Sequence[Node]) -> None:
        colour = colours(node.becomes for node in nodes)
        least = max(1.0, LEAST_SHARE * sum(node.weights for node in nodes))
        fastest = max((_time(node) for node in nodes), default=0.0) * LEAST_SHARE or 1.0
        ways: dict[str, Callable[[Node], float]] = {
            "weights": lambda node: max(least, node.weights),
            "time": lambda node: max(fastest, _time(node)),
            "nodes": lambda node: 1.0,
        }
        self.sizes = {word: [round(sum(map(way, each)), 6) for each in self._of] for word, way in ways.items()}
        most = max((_time(node) for node in nodes), default=0.0) or 1.0
        self.formats, self.errors, self.times = [], [], []
        for each in self._of:
            shares: Counter[str] = Counter()
            for node in each:
                shares[node.becomes or "float"] += max(1, node.weights)
            self.formats.append(colour[shares.most_common(1)[0][0]])
            known = [node.sqnr for node in each if node.sqnr is not None]
            self.errors.append(_between(ERRORS, (min(known) - WORST) / (BEST - WORST)) if known else UNKNOWN)
            longest = max((_time(node) for node in each), default=0.0)
            self.times.append(_between(TIMES, longest / most) if longest else UNKNOWN)


def _time(node: Node) -> float:
    return node.quantized_ms or node.float_ms or 0.0


def _hover(node: Node) -> str:
    lines = [f"<b>{_plain(node.name)}</b>", f"{_plain(node.op)}: {_plain(node.becomes or 'float')}"]
    if node.weights:
        lines.append(f"{words.count(node.weights)} weights")
    if node.sqnr is not None:
        lines.append(f"error {words.decibel(node.sqnr)}")
    times = [words.milliseconds(x) for x in (node.float_ms, node.quantized_ms) if x is not None]
    lines += [" → ".join(times)] if times else []
    lines += [_plain(node.reason)] if node.reason else []
    return "<br>".join(lines)


def _between(scale: Sequence[Sequence[Any]], share: float) -> str:
    """The colour at a place of a scale."""
    share = min(1.0, max(0.0, share))
    low, high = next((a, b) for a, b in itertools.pairwise(scale) if share <= b[0])
    part = (share - low[0]) / (high[0] - low[0])
    ends = [[int(c[1][i : i + 2], 16) for i in (1, 3, 5)] for c in (low, high)]
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in zip(*ends, strict=True))


def _layers(report: Report) -> Any:
    """The error that has added up until each layer, and what each adds."""
    shown: list[Layer] = [layer for layer in report.layers if layer.sqnr is not None][:LAYERS]
    if not shown:
        return None
    go, at = _go(), list(range(1, len(shown) + 1))
    names = [_plain(f"{layer.name} ({layer.op})") for layer in shown]
    hover = "%{text}<br>%{y:.1f} dB<extra>%{fullData.name}</extra>"
    local = [_apart(layer.local_sqnr) for layer in shown]
    traces = [
        go.Scatter(
            x=at, y=[_apart(layer.sqnr) for layer in shown], text=names, name="added up", mode="lines+markers",
            line={"color": AFTER, "width": 2}, marker={"size": 5}, hovertemplate=hover,
        )
    ]  # fmt: skip
    if any(x is not None for x in local):
        marker = {"size": 6, "color": PALETTE[1], "symbol": "diamond"}
        traces.append(go.Scatter(x=at, y=local, text=names, name="of its own", mode="markers", marker=marker,
                                 hovertemplate=hover))  # fmt: skip
    return _figure(
        traces,
        xaxis={"title": {"text": "layers, in order of execution"}},
        yaxis={"title": {"text": "SQNR, dB"}},
        legend=LEGEND,
    )


def _apart(x: float | None) -> float | None:
    """An error for a plot; nothing where nothing differs, which would lie far above all others."""
    return None if x is None or x >= MAX_DB else x


def _weights(report: Report) -> Any:
    """The error of each weight in its format; of an analysis, in all of them."""
    rows = report.weights[:LAYERS]
    if any(row.forms for row in rows):
        forms = list(dict.fromkeys(label for row in rows for label in row.forms))
        tables = [row.model_forms or row.layer_forms or row.forms for row in rows]
        heat = _go().Heatmap(
            z=[[table.get(form) for form in forms] for table in tables],
            x=[_plain(form) for form in forms],
            y=[_plain(row.node) for row in rows],
            colorscale=ERRORS,
            zmin=WORST,
            zmax=BEST,
            colorbar={"title": {"text": "dB"}, "thickness": 12},
            hovertemplate="%{y}<br>%{x}: %{z:.1f} dB<extra></extra>",
        )
        height = min(1600, max(320, 160 + 18 * len(rows)))
        margin = {"l": 16, "r": 16, "t": 16, "b": 16}
        axis = {"autorange": "reversed", "automargin": True, "tickfont": {"size": 10}}
        return _figure([heat], height=height, yaxis=axis, xaxis={"automargin": True}, margin=margin)
    known = [(at, row) for at, row in enumerate(rows, 1) if row.sqnr is not None]
    if not known:
        return None
    colour = colours(row.format or "stored" for _, row in known)
    traces = []
    for word in sorted({row.format or "stored" for _, row in known}):
        some = [(at, row) for at, row in known if (row.format or "stored") == word]
        traces.append(
            _go().Bar(
                x=[at for at, _ in some],
                y=[row.sqnr for _, row in some],
                text=[_plain(row.node) for _, row in some],
                textposition="none",
                name=_plain(word),
                marker={"color": colour[word]},
                hovertemplate="%{text}<br>%{y:.1f} dB<extra>%{fullData.name}</extra>",
            )
        )
    return _figure(
        traces,
        xaxis={"title": {"text": "weights, in order of execution"}},
        yaxis={"title": {"text": "SQNR, dB"}},
        legend=LEGEND,
        showlegend=True,
    )


def _operators(report: Report) -> Any:
    rows = report.operators[:OPERATORS][::-1]
    if not rows:
        return None
    go, names = _go(), [_plain(row.op) for row in rows]
    hover = "%{y}: %{x:.3f} ms<extra>%{fullData.name}</extra>"
    pairs = [("quantized", AFTER, [row.quantized_ms for row in rows])]
    if any(row.float_ms for row in rows):
        pairs.append(("float", BEFORE, [row.float_ms for row in rows]))
    traces = [
        go.Bar(y=names, x=x, name=word, orientation="h", marker={"color": colour}, hovertemplate=hover)
        for word, colour, x in pairs
    ]
    return _figure(
        traces,
        height=120 + 34 * len(rows),
        barmode="group",
        yaxis={"automargin": True},
        xaxis={"title": {"text": "milliseconds of one run"}},
        legend=LEGEND | {"traceorder": "reversed"},
    )


def _front(report: Report) -> Any:
    if not report.front:
        return None
    points = sorted(report.front, key=lambda point: point.size)
    texts = [
        f"{point.bits:.2f} bits, {words.nbytes(point.nbytes)}"
        + (f"<br>{words.decibel(point.sqnr)}" if point.sqnr is not None else "")
        + (f"<br>{point.latency:.2f} of float's time" if point.latency is not None else "")
        for point in points
    ]
    line = _go().Scatter(
        x=[point.size for point in points],
        y=[max(point.harm, 1e-12) for point in points],
        text=texts,
        mode="lines+markers",
        line={"color": AFTER, "width": 2, "shape": "hv"},
        marker={"size": 9},
        hovertemplate="%{text}<br>harm %{y:.3g}<extra></extra>",
    )
    return _figure(
        [line],
        xaxis={"title": {"text": "size of the file, of float's"}, "rangemode": "tozero"},
        yaxis={"title": {"text": _plain(report.harm)}, "type": "log", "exponentformat": "power"},
    )
