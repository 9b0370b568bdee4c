"""A report as one HTML file: nothing is fetched, and nothing that a model says is more than text in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import msgspec

from onnxq.errors import MissingRuntime, amount, without_halves
from onnxq.report import words
from onnxq.report.document import Report
from onnxq.report.figures import colours, figures_of
from onnxq.runtime.machine import threads_in_words

#: Rows of a table at most, and how many of them are not compressed; the JSON form has them all.
ROWS, HEAD = 5000, 100


def require() -> None:
    """
    Raises:
        MissingRuntime: what makes pages is not installed.
    """
    missing = [name for name in ("jinja2", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingRuntime(f"{' and '.join(missing)} make the page: pip install 'onnxq[report]'")


def render(report: Report) -> str:
    """The page.

    Everything that comes from models is escaped by the template; the browser is told to run no script but ours, by
    its hash, and to load nothing from anywhere.

    Raises:
        MissingRuntime: the extra `report` is not installed.
    """
    require()
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "decibel": _or_dash(words.decibel),
        "error": words.error,
        "judged_on": words.judged_on,
        "amount": amount,
        "threads": threads_in_words,
        "count": words.count,
        "nbytes": words.nbytes,
        "milliseconds": _or_dash(words.milliseconds),
        "figure": _figure,
        "packed": _packed,
    }
    script, plots = _text("report.js"), get_plotlyjs()
    return environment.get_template("report.html.jinja").render(
        report=report,
        bodies=[_body(environment, part) for part in report.parts or [report]],
        style=_text("report.css"),
        script=script,
        hashes=[_hash(script), _hash(plots)],
        plots=_packed(plots),
    )


def _body(environment: Any, report: Report) -> str:
    """All that is shown of one model, with its plots; of the models of a folder one is shown at a time."""
    figures = figures_of(report)
    data = {"figures": figures, "activations": msgspec.to_builtins(report.activations)}
    rendered: str = environment.get_template("sections.html.jinja").render(
        report=report,
        figures=figures,
        colours=colours(node.becomes for node in report.nodes),
        rows=ROWS,
        head=HEAD,
        data=_packed(json.dumps(data)),
    )
    return rendered


def _or_dash(words_of: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda x: "–" if x is None else words_of(x)


def _figure(x: float | None, digits: int = 4) -> str:
    return "–" if x is None else f"{x:.{digits}g}"


def _text(name: str) -> str:
    return (resources.files("onnxq.report") / "templates" / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Compressed, as letters; browsers unpack it themselves."""
    return base64.b64encode(gzip.compress(without_halves(text).encode(), 9, mtime=0)).decode()  # names of files too


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def as_file(report: Report, name: str) -> str:
    """What a file of this name holds: JSON where it ends in .json, else the page."""
    return report.to_json() if name.lower().endswith(".json") else render(report)
