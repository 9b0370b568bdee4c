"""What is done with a model that was made at random: everything that takes one without data."""

from __future__ import annotations

#: Many of them ask for one scheme or target only, so that a case takes a fraction of a second.
COMMANDS = tuple(
    line.split()
    for line in (
        "inspect model.onnx",
        "inspect model.onnx --json",
        "plan model.onnx -s w4a16 -t onnxq",
        "plan model.onnx -s w8a8-dynamic -t onnx",
        "plan model.onnx -s w8a8 -t qnn",
        "plan model.onnx -s w8a8 -t tensorrt",
        "plan model.onnx -s fp16 -t ort-cuda",
        "quantize model.onnx -s w4a16 -o out.onnx --no-check",
        "quantize model.onnx -s bf16 -o out.onnx --no-check",
        "quantize model.onnx -s fp16 -t onnx -o out.onnx --no-check",
        "quantize model.onnx -s fp16 -t coreml -o out.onnx --no-check",
        "quantize model.onnx -s w4a16 -t webgpu -o out.onnx --no-check",
        "quantize model.onnx -s nf4 -t onnxq -o out.onnx --no-check",
        "quantize model.onnx -w int3 -t openvino -o out.onnx --no-check",
        "quantize model.onnx -w lpbq -t qnn -o out.onnx --no-check",
        "quantize model.onnx -w q4_k -t onnx -o out.onnx --no-check",
        "quantize model.onnx -w float8_e4m3 -t onnx-25 -o out.onnx --no-check",
        "quantize model.onnx -s w8a8-dynamic -o out.onnx",
        "quantize model.onnx --requantize -s w8a8-dynamic -o out.onnx --no-check",
        "quantize model.onnx --requantize -s w4a16 -t webgpu -o out.onnx --no-check",
        "plan model.onnx --requantize -s w8a8",
        "check model.onnx -t qnn",
        "check model.onnx -t coreml",
        "check model.onnx -t tensorrt",
        "check model.onnx -t openvino",
        "check model.onnx -t webgpu",
        "check model.onnx -t ort-cuda",
        "check model.onnx model.onnx",
        "check model.onnx model.onnx --by-layer",
        "analyze model.onnx -w int4",
        "doctor model.onnx",
        "doctor model.onnx -t qnn",
        "doctor model.onnx --fix -o out.onnx",
        "dequantize model.onnx -o out.onnx --no-check",
        "convert model.onnx --to onnx -o out.onnx --no-check",
        "convert model.onnx --to onnxq -o out.onnx --no-check",
        "convert model.onnx --to ort-cpu -o out.onnx --no-check",
        "convert model.onnx --to qnn -o out.onnx --no-check",
        "convert model.onnx --to tensorrt -o out.onnx --no-check",
        "convert model.onnx --to openvino -o out.onnx --no-check",
        "convert model.onnx --to gguf -o out.gguf",
        "convert model.onnx --to safetensors -o out.safetensors",
        "report model.onnx -o out.json",
        "report model.onnx -o out.html",
        "lora base model.onnx -o out.onnx",
        "calibrate model.onnx -s w8a8 --calibration minmax -o out.ranges",
    )
)


def of(number: int) -> list[str]:
    return list(COMMANDS[number % len(COMMANDS)])
