"""Why nodes are not quantized, or otherwise than asked for: equal reasons together, each with what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnxq.plan import Choice
from onnxq.report.document import Reason

#: What would change it, by the first of these expressions that is found in a reason.
ADVICE = (
    (r"float is faster here", "--keep-slow keeps it quantized, --prefer size weighs bytes more than time, and target "
     "onnxq has kernels of its own"),
    (r"costs more accuracy than", "--prefer speed, or more calibration data (--data, --limit)"),
    (r"shorter format costs too much", "a lower --min-sqnr, a smaller --block-size, or codes chosen by --data"),
    (r"kept by a rule", "drop the --keep or the rule of the recipe that names it"),
    (r"no range for", "samples in --data that reach this part of the model"),
    (r"no longer between int8", "quantize its neighbours: --keep-slow, or --set for them"),
    (r"float64", "export the model in float32"),
    (r"opset", "a newer opset: export the model again, or use target ort-cpu"),
    (r"float16", "scheme w8a8, w8a16 or bf16, whose numbers reach further"),
    (r"bias is computed", "fold the bias into a constant when exporting"),
    (r"its bias holds", "repair the bias, or leave it: NaN and infinities stay what they are in float"),
    (r"not both constant|is computed|is an input", "make its weights constants (initializers) when exporting"),
    (r"what it reads is constant", "fold it into a constant when exporting: it computes the same in every run"),
    (r"has only \d+ numbers", "nothing: so few numbers are not worth codes"),
    (r"subgraphs share its weight", "give each branch a weight of its own, or use target ort-cpu or onnxq"),
    (r"peepholes|input and forget gates|activation functions are not", "nothing: kernels have the default gates"),
    (r"dynamically quantized LSTM|DynamicQuantizeLSTM", "target ort-cpu, and a forward layout"),
    (r"outlier channels", "calibration data (--data), by which channels are scaled"),
    (r"table that", "nothing: tables are small, and rounding them shifts positions"),
    (r"grow with an open size", "sizes that are fixed in the model (onnxruntime.tools.make_dynamic_shape_fixed), or "
     "places divided by them, and means for sums"),
    (r"row of \d+ would be filled up", "--block-size N, for weights in blocks of N whatever they take"),
    (r"counts places", "nothing: numbers that are added up or turned have to be exact, and are few"),
    (r"scales inputs", "nothing: beside what reads it, scaling an input takes next to no time"),
    (r"chosen by search", "another --budget"),
    (r"depthwise|so few weights", "nothing: scales would cost as much as the codes save"),
    (r"bits lose too much|8 bits a (channel|row)", "--set with a longer or shorter format for this node"),
    (r"OpenVINO|Core ML|WebGPU|TensorRT|QNN|CUDA", "another --target"),
    (r"computes in float32", "target onnx, and a runtime that computes in float16"),
    (r"not a matrix on the right", "export the product with its weight on the right: x @ w"),
    (r"regions have no step|no faster in int8", "nothing: onnxq's kernels take other transposed convolutions"),
    (r"no (static|fast dynamic|kernel|such)|no .* kernel|kernels? (compute|looks|multipl)|blocks|has no", "another "
     "--target (onnxq has kernels for most formats) or another --weights format"),
)  # fmt: skip
NOTHING = "--set NODE=SCHEME asks for another format; 'onnxq plan --nodes' shows what it would become"


def reasons_of(choices: Iterable[Choice]) -> list[Reason]:
    """Those of all choices that have one, the most weights first. Names in quotes make no reasons of their own."""
    groups: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.reason:
            groups.setdefault("…".join(choice.reason.split("'")[::2]), []).append(choice)
    found = [
        Reason(
            group[0].reason if len(group) == 1 else words,
            advice_for(words),
            [choice.node for choice in group],
            sum(choice.elements for choice in group),
        )
        for words, group in groups.items()
    ]
    return sorted(found, key=lambda reason: (-reason.weights, -len(reason.nodes), reason.reason))


def advice_for(reason: str) -> str:
    """What would change it."""
    return next((advice for pattern, advice in ADVICE if re.search(pattern, reason)), NOTHING)
