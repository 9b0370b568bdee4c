"""import-weights into networks that torch exported before training: what they compute then is what torch does, or it is
said what is missing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import Imported, ImportOptions, import_weights
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.zoo]

nn, functional = torch.nn, torch.nn.functional
EXPORTERS = {"dynamo": True, "script": False}
N = 16
Forward = Callable[..., Any]


class Layer(nn.Linear):  # type: ignore[name-defined, misc]
    """A linear layer that computes something else of its parameters."""

    def __init__(self, compute: Forward) -> None:
        super().__init__(N, N)
        self.compute = compute
        self.register_buffer("mask", (torch.arange(N * N).reshape(N, N) % 3 > 0).float())
        self.register_buffer("order", torch.randperm(N)[:4])

    def forward(self, x: Any) -> Any:
        return self.compute(self, x)


class Held(nn.Module):  # type: ignore[name-defined, misc]
    """A module of a single parameter."""

    def __init__(self, shape: tuple[int, ...], compute: Forward, fill: int | None = None) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.randn(shape) if fill is None else torch.full(shape, float(fill)))
        self.compute = compute

    def forward(self, x: Any) -> Any:
        return self.compute(self.p, x)


class Twice(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.r = kind(N, N, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.r(x)[0] + self.r(torch.tanh(x))[0][:, :1]


class Begun(nn.Module):  # type: ignore[name-defined, misc]
    """A recurrent module that begins with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.h, self.c = nn.LSTM(N, N, batch_first=True), *(nn.Parameter(torch.randn(1, 1, N)) for _ in "hc")

    def forward(self, x: Any) -> Any:
        return self.r(x, (self.h.expand(1, 1, N), self.c.expand(1, 1, N)))[0]


class Cross(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.m = nn.MultiheadAttention(N, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(x)
        return self.m(x, y, y, need_weights=False)[0]


class Again(nn.Module):  # type: ignore[name-defined, misc]
    """Attention without biases, to others and to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.MultiheadAttention(N, 2, batch_first=True, bias=False)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(x)
        z = self.m(x, y, y, need_weights=False)[0]
        return self.m(z, z, z, need_weights=False)[0]


def linear(layer: Any, x: Any, w: Any, b: Any = None) -> Any:
    return functional.linear(x, w, layer.bias if b is None else b)


def gated(layer: Any, x: Any) -> Any:
    return functional.linear(x, layer.weight, layer.bias) * functional.linear(x, layer.weight).sigmoid()


def mixed(p: Any, x: Any) -> Any:
    w = p.softmax(-1)
    return w[0, 0] * x + w[0, 1] * x.tanh() + w[1, 2] * x.relu()


def by_heads(p: Any) -> Any:
    return p.view(4, 2, N // 8, *p.shape[1:]).transpose(0, 1).reshape(p.shape)


class Kernel(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv1d(5, 5, 1)

    def forward(self, x: Any) -> Any:
        return functional.conv1d(x, self.c.weight.transpose(0, 1), self.c.bias)


class Tagger(nn.Module):  # type: ignore[name-defined, misc]
    """With parts that are not exported: transitions of a CRF, another layer, a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(N, N), nn.GRU(N, N)
        self.crf = Held((N, N), lambda p, x: p)
        self.register_buffer("queue", torch.randn(N, 32))

    def forward(self, x: Any) -> Any:
        return self.fc(x)


NOTED = r"taken as they are, .* computed from them: .*inner\.weight"
#: The network, and what each exporter's file is refused with, or is noted of it; "": it computes what torch does.
CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "attention again": (Again, "", ""),
    "plain": (lambda: nn.Linear(N, N), "", ""),
    "tagger": (Tagger, "", ""),
    "masked": (lambda: Layer(lambda s, x: linear(s, x, s.weight * s.mask)), r"\(mul\)", r"times '.*mask'"),
    "masked, turned": (lambda: Layer(lambda s, x: x @ (s.weight * s.mask).T + s.bias), r"\(mul\)", r"times '.*mask'"),
    "scaled bias": (lambda: Layer(lambda s, x: linear(s, x, s.weight, s.bias * 2)), r"\(mul\)", "it lost its name"),
    "sum": (
        lambda: Layer(lambda s, x: linear(s, x, s.weight + s.weight.T)),
        r"\(add\)",
        NOTED,
    ),
    "standardised": (lambda: Layer(lambda s, x: linear(s, x, s.weight / s.weight.std(1, keepdim=True))), "div", ""),
    "turned": (lambda: Layer(lambda s, x: linear(s, x, s.weight.t())), r"\(t\)", ""),
    "turned before": (lambda: Layer(lambda s, x: x @ s.weight.t() + s.bias), "", ""),
    "heads": (lambda: Layer(lambda s, x: linear(s, x, by_heads(s.weight))), r"\(transpose\)", NOTED),
    "bias of heads": (
        lambda: Layer(lambda s, x: linear(s, x, s.weight, by_heads(s.bias))),
        r"bias' .*\(transpose\)",
        "lost its name",
    ),
    "kernel": (Kernel, r"\(transpose\), keeps", r"c\.weight goes nowhere"),
    "gated": (lambda: Layer(gated), "", ""),
    "ordered": (lambda: Layer(lambda s, x: linear(s, x, s.weight)[..., s.order].repeat(1, 1, 4)), "", ""),
    "added": (lambda: Layer(lambda s, x: torch.addmm(s.bias, x[0], s.weight, alpha=0.5)[None]), "", ""),
    "gain of heads": (lambda: Held((N,), lambda p, x: x * by_heads(p)), r"'inner\.p' .*transpose", "gets nothing"),
    "squares": (lambda: Held((1, 5, N, N), lambda p, x: x @ p.transpose(2, 3)[0, 0]), "transpose", "gets nothing"),
    "half": (lambda: Held((N,), lambda p, x: torch.add(x, p, alpha=0.5)), r"'inner\.p' \(add\)", "gets nothing"),
    "less": (lambda: Held((N,), lambda p, x: torch.sub(x, p, alpha=3)), r"'inner\.p' \(sub\)", "gets nothing"),
    "twice a gate": (lambda: Held((N,), lambda p, x: x * p.sigmoid().sigmoid()), r"\(sigmoid\), keeps", ""),
    "switch": (
        lambda: Held((N,), lambda p, x: torch.where(p > 0, x, x.tanh())),
        r"\(gt\), keeps",
        "inner.p goes nowhere",
    ),
    "places": (
        lambda: Held((1, 12, N), lambda p, x: x + p[:, : x.shape[1]], 0),
        r"'inner\.p' \(slice",
        "inner.p' goes nowhere",
    ),
    "mixture": (lambda: Held((2, 3), mixed), r"from 'inner\.p' .*softmax", r"inner\.p' goes nowhere"),
    "row": (lambda: Held((3, N), lambda p, x: x + p[1]), r"'inner\.p' \(", "gets nothing"),
    "gate": (lambda: Held((), lambda p, x: x * p.sigmoid()), "", ""),
    "twice": (lambda: Twice(nn.GRU), "", ""),
    "twice, LSTM": (lambda: Twice(nn.LSTM), "", ""),
    "begun": (Begun, "", ""),
    "attention": (Cross, "", ""),
}


class Net(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(N, N), inner, nn.Linear(N, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.inner(torch.tanh(self.first(x)))))


def train(net: Any) -> None:
    """As far as it takes to be another one."""
    with torch.no_grad():
        for name, p in [*net.named_parameters(), *net.named_buffers()]:
            if name.endswith("order"):
                p.copy_(p.flip(0))
            elif not name.endswith("mask"):
                p += torch.randn(p.shape)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_torch_does_or_is_told(name: str, exporter: str, tmp_path: Path) -> None:
    make, *told = CASES[name]
    says = told[list(EXPORTERS).index(exporter)]
    torch.manual_seed(0)
    net, x, model = Net(make()).eval(), torch.randn(1, 5, N), tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(model), dynamo=EXPORTERS[exporter], verbose=False)
    train(net)
    tensors = {key: value.numpy().copy() for key, value in net.state_dict().items()}
    write_arrays(
        tmp_path / "w.safetensors", ((key, lambda value=value: value) for key, value in tensors.items()), replace=True
    )
    done, why = import_or_reason(model, tmp_path / "w.safetensors", tmp_path / "q.onnx")
    if says or done is None:
        assert says and re.search(says, why), why
        return
    feed = {Session(model).inputs[0].name: x.numpy()}
    np.testing.assert_allclose(Session(done.output).run(feed)[0], net(x).detach().numpy(), rtol=1e-3, atol=1e-4)


def import_or_reason(model: Path, checkpoint: Path, output: Path) -> tuple[Imported | None, str]:
    """What was done, and what is said of it, or only why it was not."""
    try:
        done = import_weights(model, checkpoint, output, options=ImportOptions(accuracy_level=0))
    except BadModel as error:
        return None, str(error)
    return done, "; ".join(done.match.notes)
