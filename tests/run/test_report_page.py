"""The page of a report in a real browser: it draws itself, says nothing to the console, asks for nothing, and fits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import browser
import numpy as np
import pytest

from onnxq.report.document import Activation, FrontPoint, Layer, Node, Operator, Reason, Report, WeightError
from onnxq.report.page import render

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("plotly")
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(browser.program() is None, reason="there is no chromium to look at pages with"),
]

#: Bytes of the page of a model of 2,000 nodes at most.
MOST = 3_000_000
NAME = "<script>document.title='taken'</script>&amp;"


def report(count: int) -> Report:
    """Of a transformer of so many nodes, with all that a report can hold."""
    rng = np.random.default_rng(0)
    ops = ("MatMul", "Add", "Mul", "LayerNormalization", "Softmax", "Transpose", "Reshape", "Gelu")
    found = Report("quantize", f"model {NAME}.onnx", "/tmp/model.onnx", "0", scheme="w8a8", target="ort-cpu")
    for number in range(count):
        name, op = f"/model/layers.{number // 40}/block_{number // 8 % 5}/{ops[number % 8]}_{number}", ops[number % 8]
        weights = int(rng.integers(1 << 16, 1 << 20)) if op == "MatMul" else 0
        sqnr, ms = float(rng.normal(35, 8)), float(rng.exponential(0.05))
        becomes = ["int8", "uint4 b32", "int8 stored"][number // 8 % 3] if weights else "float"
        why = "float is faster here" if op == "Softmax" else ""
        found.nodes.append(Node(name, op, becomes, "int8" if weights else "", weights, why, sqnr, ms, ms / 2))
        found.layers.append(Layer(name, op, name, "name", None if number % 2 else sqnr + 6, sqnr, 0.9999, 0.01, "adds"))
        if weights:
            found.weights.append(WeightError(name, op, [768, 768], "int8", sqnr, 0.99999, 0.001))
            counts = [int(c) for c in rng.integers(0, 1 << 20, 60)]
            ranges = {way: (-3.0 * k, 3.1 * k) for k, way in enumerate(("minmax", "percentile", "entropy", "mse"), 1)}
            found.activations.append(Activation(name, -9.0, 9.0, -9.0, 0.3, counts, (-6.0, 6.0), ranges, 0.001))
    found.nodes[0].name = NAME
    found.operators = [Operator(op, 40, 40, 3.0 - k / 4, 1.5 - k / 8) for k, op in enumerate(ops)]
    found.reasons = [
        Reason("float is faster here", "--keep-slow", [node.name for node in found.nodes if node.reason], 9)
    ]
    found.front = [FrontPoint(k + 2.5, 0.1 + k / 20, 1 << 20, 10.0**-k, 10.0 * k, 0.9) for k in range(5)]
    found.harm, found.commands = "KL divergence", [f"onnxq quantize {'long/' * 40}model.onnx"]
    found.notes, found.hashes = [NAME, "a note " * 40], {"float model": "0" * 64}
    summary = found.summary
    summary.bytes_before, summary.bytes_after, summary.sqnr, summary.inputs = 10**8, 10**7, 31.0, "6 samples"
    summary.float_ms, summary.quantized_ms, summary.latency_ratio, summary.threads = 10.0, 5.0, 0.5, 1
    summary.kernels, summary.flips, summary.kld = {"QLinearConv": 4, "MatMulNBits": 200}, 0.001, 1e-4
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[browser.Browser, Path]]:
    folder = tmp_path_factory.mktemp("page")
    page = render(report(2000))
    assert len(page.encode()) < MOST
    (folder / "report.html").write_text(page, encoding="utf-8")
    (folder / "empty.html").write_text(render(Report("model", "m.onnx", "m.onnx", "0")), encoding="utf-8")
    both = Report("quantize", "folder", "folder", "0", parts=[report(8), report(30)])
    both.parts[0].title, both.summary.bytes_before, both.summary.bytes_after = "encoder", 4000, 1000
    (folder / "folder.html").write_text(render(both), encoding="utf-8")
    with browser.browser(folder) as opened:
        yield opened, folder


def test_it_draws_itself_and_fits(shown: tuple[browser.Browser, Path], tmp_path: Path) -> None:
    page, folder = shown
    brightness = {}
    for width, theme in ((1280, "light"), (390, "dark")):
        page.open(folder / "report.html", width=width, theme=theme)
        assert page.value("document.documentElement.scrollWidth") <= width
        right = "e => e.getBoundingClientRect().right > innerWidth"
        assert page.value(f"[...document.querySelectorAll('.plot .main-svg')].filter({right}).length") == 0
        assert page.value("document.querySelectorAll('.plot .main-svg').length") >= 6
        page.picture(tmp_path / f"{width}.{theme}.png")
        picture = Image.open(io.BytesIO((tmp_path / f"{width}.{theme}.png").read_bytes())).convert("RGB")
        brightness[width, theme] = float(np.asarray(picture.crop((0, 0, width, 400))).mean())
        assert picture.width == width and len(picture.resize((width, 2000)).getcolors(1 << 24)) > 200
    assert brightness[1280, "light"] > 200 > 80 > brightness[390, "dark"]
    assert page.complaints == []
    assert {request.split(":")[0] for request in page.requests} <= {"file", "about", "blob", "data"}
    assert page.value("document.title") == f"model {NAME}.onnx – onnxq"


def test_it_can_be_worked_with(shown: tuple[browser.Browser, Path]) -> None:
    page, folder = shown
    page.open(folder / "report.html", width=1280)
    first = "document.querySelector('#weights tbody tr .number').dataset.value"
    page.value("document.querySelectorAll('#weights th')[4].click()")
    highest = float(page.value(first))
    page.value("document.querySelectorAll('#weights th')[4].click()")
    assert highest > float(page.value(first)) + 20
    given = "document.getElementById('node-filter')"
    page.value(f"{given}.value = 'softmax faster'; {given}.dispatchEvent(new Event('input'))")
    assert page.value("[...document.querySelectorAll('#node-table tbody tr')].filter(r => !r.hidden).length") == 250
    colours = "document.getElementById('plot-map').data[0].marker.colors.slice(-5).join()"
    before = page.value(colours)
    page.value(
        "{const s = document.getElementById('map-colour'); s.value = 'errors'; s.dispatchEvent(new Event('change'))}"
    )
    assert page.value(colours) != before and page.value("document.getElementById('legend-errors').hidden") is False
    page.value("{const s = document.getElementById('activation'); s.value = '3'; s.dispatchEvent(new Event('change'))}")
    assert page.value("document.getElementById('plot-activation').data.length") == 5
    assert page.complaints == []


def test_it_prints(shown: tuple[browser.Browser, Path]) -> None:
    """On a page of A4, in light colours whatever the window has, no table cut off."""
    page, folder = shown
    page.open(folder / "report.html", width=760, theme="dark")
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.value("dispatchEvent(new Event('beforeprint'))")
    ends = "[...document.querySelectorAll('table, .main-svg')].map(e => e.getBoundingClientRect().right)"
    assert page.value(f"Math.max(...{ends})") <= 760
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = "document.getElementById('plot-layers').layout.font.color"
    assert (
        page.value(ink) == "#3a4553" and page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    )
    page.call("Emulation.setEmulatedMedia", media="", features=[])


def test_a_page_of_nearly_nothing(shown: tuple[browser.Browser, Path]) -> None:
    page, folder = shown
    page.open(folder / "empty.html", width=390, theme="dark")
    assert page.value("document.querySelectorAll('section').length") == 2 and page.complaints == []


def test_of_a_folder_one_part_is_shown_and_the_others_on_a_click(shown: tuple[browser.Browser, Path]) -> None:
    page, folder = shown
    for width in (1280, 390):
        page.open(folder / "folder.html", width=width)
        assert page.value("document.documentElement.scrollWidth") <= width
        heading, rows = "document.querySelector('#part h1').textContent", "#part #node-table tbody tr"
        assert page.value(heading) == "encoder"
        assert page.value(f"document.querySelectorAll('{rows}').length") == 8
        page.value("document.querySelectorAll('#part-table a')[1].click()")
        page.value(
            f"(async () => {{ while (document.documentElement.dataset.ready !== 'yes' || {heading} === 'encoder')"
            " await new Promise(r => setTimeout(r, 20)) })()"
        )
        assert page.value(heading) == f"model {NAME}.onnx"
        assert page.value(f"document.querySelectorAll('{rows}').length") == 30
        assert page.value("document.querySelectorAll('.plot .main-svg').length") >= 6
        assert page.value("document.querySelector('#part-table a[aria-current]').hash") == "#part-1"
        page.value("document.querySelector('#part nav a[href=\"#nodes\"]').click()")  # a place in the part
        assert page.value(heading) == f"model {NAME}.onnx"
    assert page.complaints == []
    assert {request.split(":")[0] for request in page.requests} <= {"file", "about", "blob", "data"}
