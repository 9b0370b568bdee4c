"""What is done with a model that was made at random: everything that takes one."""

from __future__ import annotations


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


#: Most ask for one scheme or target only, so that a case takes a fraction of a second.
_ALL = _lines("""
inspect model.onnx
doctor model.onnx
doctor model.onnx -t qnn
check model.onnx -t qnn
check model.onnx -t coreml
check model.onnx -t tensorrt
check model.onnx -t openvino
check model.onnx -t webgpu
check model.onnx -t ort-cuda
check model.onnx model.onnx
check model.onnx model.onnx --by-layer
dequantize model.onnx -o out.onnx --no-check
convert model.onnx --to onnxq -o out.onnx --no-check
report model.onnx -o out.json
lora base model.onnx -o out.onnx
""")
_OF_FLOATS = _lines("""
plan model.onnx -s w4a16 -t onnxq
plan model.onnx -s w8a8-dynamic -t onnx
plan model.onnx -w int8 -t tensorrt
plan model.onnx -w float8_e4m3 -t ort-cuda
analyze model.onnx -w int4
quantize model.onnx -s w4a16 -o out.onnx --no-check
quantize model.onnx -s w4a16 -t webgpu -o out.onnx --no-check
quantize model.onnx -s w4a16 -t qnn -o out.onnx --no-check --data data.npz
quantize model.onnx -s bf16 -o out.onnx --no-check
quantize model.onnx -s fp16 -t onnx -o out.onnx --no-check
quantize model.onnx -s fp16 -t coreml -o out.onnx --no-check
quantize model.onnx -s nf4 -t onnxq -o out.onnx --no-check
quantize model.onnx -w int4 -t openvino -o out.onnx --no-check
quantize model.onnx -w q4_k -t onnxq -o out.onnx --no-check
quantize model.onnx -w float8_e4m3 -t onnx-25 -o out.onnx --no-check
quantize model.onnx -s w8a8-dynamic -o out.onnx
quantize model.onnx -s w8a8 -o out.onnx --no-check --data data.npz
quantize model.onnx -s w8a8 -t qnn -o out.onnx --no-check --data data.npz
calibrate model.onnx -s w8a8 --calibration minmax -o out.ranges --data data.npz
""")
_OF_CODES = _lines("""
doctor model.onnx --fix -o out.onnx
doctor model.onnx -t onnx
doctor model.onnx --data data.npz
dequantize model.onnx -o out.onnx
convert model.onnx --to onnx -o out.onnx --no-check
convert model.onnx --to ort-cpu -o out.onnx --no-check
convert model.onnx --to qnn -o out.onnx --no-check
convert model.onnx --to tensorrt -o out.onnx --no-check
convert model.onnx --to openvino -o out.onnx --no-check
convert model.onnx --to gguf -o out.gguf
convert model.onnx --to safetensors -o out.safetensors
report model.onnx -o out.html
plan model.onnx --requantize -s w8a8-dynamic
analyze model.onnx -w int4
quantize model.onnx --requantize -s w8a8-dynamic -o out.onnx --no-check
quantize model.onnx --requantize -s w4a16 -t webgpu -o out.onnx --no-check
quantize model.onnx --requantize -s w8a8 -t onnxq -o out.onnx --no-check --data data.npz
quantize model.onnx -s fp16 -o out.onnx --no-check
""")


def of(number: int, *, of_codes: bool = False) -> list[str]:
    """The words of a command line for a model of floats, or of codes."""
    found = [*_ALL, *(_OF_CODES if of_codes else _OF_FLOATS)]
    return found[number % len(found)]
