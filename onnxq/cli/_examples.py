"""What a command is typed like, shown at the end of its help."""

from __future__ import annotations

EXAMPLES = {
    "quantize": (
        "onnxq quantize model.onnx --data samples.npz",
        "onnxq quantize model.onnx -s w4a16 --keep 'head/*' -o small.onnx",
        "onnxq quantize model.onnx --data photos/ --preprocess 'size=224x224 mean=0.5,0.5,0.5 std=0.5,0.5,0.5'",
        "onnxq quantize model.onnx --data labelled.npz --metric top1 --labels y --max-drop 0.005",
        "onnxq quantize model.onnx --budget size=25% --html report.html",
    ),
    "plan": (
        "onnxq plan model.onnx -s w4a16 --nodes",
        "onnxq plan model.onnx -s w4a16 -o plan.json && onnxq quantize model.onnx --plan plan.json",
    ),
    "search": (
        "onnxq search model.onnx --data samples.npz --html front.html",
        "onnxq search model.onnx --data samples.npz -o plan.json --at bits=3.5",
    ),
    "inspect": ("onnxq inspect model.onnx",),
    "check": ("onnxq check model.onnx model.w8a8.onnx --data samples.npz",),
    "report": (
        "onnxq report model.w8a8.onnx --against model.onnx --data samples.npz",
        "onnxq report plan.json -o plan.html",
    ),
    "analyze": ("onnxq analyze model.onnx -w int4 -w nf4 --data samples.npz --top 10",),
    "benchmark": ("onnxq benchmark model.onnx",),
    "calibrate": ("onnxq calibrate model.onnx --data samples.npz -o model.ranges --jobs 2",),
    "profile": ("onnxq profile model.onnx -o machine.json",),
    "convert": ("onnxq convert theirs.onnx --to onnxq -o ours.onnx",),
    "dequantize": ("onnxq dequantize model.w8a8.onnx --dtype float16",),
    "import-weights": ("onnxq import-weights model.onnx model.gguf -o quantized.onnx",),
    "encode": ("onnxq encode weights.npz -w nf4 -o encoded.npz",),
    "decode": ("onnxq decode encoded.npz -o weights.npz",),
    "completion": ('eval "$(onnxq completion bash)"', "onnxq completion fish | source"),
    "train": ("onnxq train model.onnx -s w4a16 --data samples.npz -o trained.onnx",),
    "export": ("onnxq export model.w8a8.onnx --reference model.onnx --data samples.npz -o model.bundle",),
    "verify": ("onnxq verify model.bundle",),
    "explain": ("onnxq explain sqnr", "onnxq explain w4a16"),
}
