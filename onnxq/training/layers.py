"""Layers of torch with the quantization in place, for people who have the source of their model; and its export.

A `QuantLinear` or `QuantConv2d` takes the place of torch's own. In training it rounds its weight, and its input once
`calibrate` has seen some, with straight-through gradients; exported, it is QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from onnxq import fake_quant
from onnxq.boundary import typed
from onnxq.errors import BadModel, BadRecipe, first_line
from onnxq.fake_quant import AffineGrid, Observer, torch_functions
from onnxq.files import staging
from onnxq.files.guard import Guard
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.load import load_model
from onnxq.output.write import require_onnx, save


class _Quantized(torch.nn.Module):  # type: ignore[misc]
    """What both layers share: a grid for the weight, and an observer and a grid for the input.

    Args:
        bits: of the weight, one symmetric scale for each output channel.
        input_bits: of the input, one scale; None: it stays in float.
        method: how the range of the input is found, a word of `collectors/`.

    Attributes:
        observer: sees inputs while the layer is calibrated.
    """

    weight: torch.nn.Parameter

    def _prepare(self, bits: int, input_bits: int | None, method: str) -> None:
        with contextlib.suppress(ValueError):  # what is no whole number is none of them
            bits = arguments.whole(bits, "bits")
        if not isinstance(bits, int) or not 2 <= bits <= 8 or (input_bits is not None and input_bits != 8):
            raise BadRecipe(f"a layer has weights of 2 to 8 bits and inputs of 8 or none, not {bits} and {input_bits}")
        self.bits, self.input_bits = bits, input_bits
        self.observer = Observer(method, input_bits or 8)
        self.is_calibrating = self.is_exporting = False
        self.register_buffer("input_scale", torch.zeros(()))
        self.register_buffer("input_zero", torch.zeros((), dtype=torch.int32))

    @property
    def grid(self) -> AffineGrid:
        """The weight's, as it is now."""
        return fake_quant.fit(self.weight.detach().cpu().numpy(), self.bits, symmetric=True, axis=0)

    @property
    def scale(self) -> Tensor:
        """Of each output channel of the weight, as it is now; the lowest code stays unused."""
        axes = tuple(range(1, self.weight.dim()))
        scale = self.weight.detach().abs().amax(axes) / ((1 << self.bits - 1) - 1)
        return torch.where(scale == 0, torch.ones_like(scale), scale)

    def rounded_weight(self) -> Tensor:
        """The weight on its grid; while it is exported, as it is: `_store_codes` knows its codes."""
        if self.is_exporting:
            return self.weight
        most, scale = (1 << self.bits - 1) - 1, self.scale
        if self.bits == 8:
            zero = torch.zeros_like(scale, dtype=torch.int32)
            return torch.fake_quantize_per_channel_affine(self.weight, scale, zero, 0, -most - 1, most)
        return torch_functions.FakeQuantize.apply(self.weight, scale, torch.zeros_like(scale), -most, most, 0)

    def rounded_input(self, x: Tensor) -> Tensor:
        """`x` on its grid; as it is before there is one."""
        if self.is_calibrating:
            self.observer.update(x.detach().float().cpu().numpy())
        if self.input_bits is None or self.is_calibrating or not (self.is_exporting or self.has_range):
            return x
        return torch.fake_quantize_per_tensor_affine(x, self.input_scale, self.input_zero, 0, 255)

    @property
    def has_range(self) -> bool:
        """Whether its input was calibrated."""
        return bool(self.input_scale > 0)

    def take_range(self) -> None:
        """Let the grid of the input be that of what the observer saw."""
        if self.input_bits is None or not self.observer.has_data:
            return
        grid = self.observer.grid()
        self.input_scale.fill_(float(np.asarray(grid.scale)))
        self.input_zero.fill_(int(np.asarray(grid.zero_point)))


class QuantLinear(torch.nn.Linear, _Quantized):  # type: ignore[misc]
    """`torch.nn.Linear` with its weight, and its input where `input_bits` says so, on the grid of integers."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        bits: int = 8,
        input_bits: int | None = 8,
        method: str = "minmax",
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self._prepare(bits, input_bits, method)

    @classmethod
    def of(cls, layer: torch.nn.Linear, **options: Any) -> QuantLinear:
        """One with the parameters of `layer`."""
        made = cls(layer.in_features, layer.out_features, layer.bias is not None, **options)
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.rounded_input(x), self.rounded_weight(), self.bias)


class QuantConv2d(torch.nn.Conv2d, _Quantized):  # type: ignore[misc]
    """`torch.nn.Conv2d` with its weight, and its input where `input_bits` says so, on the grid of integers."""

    def __init__(
        self,
        *arguments: Any,
        bits: int = 8,
        input_bits: int | None = 8,
        method: str = "minmax",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._prepare(bits, input_bits, method)

    @classmethod
    def of(cls, layer: torch.nn.Conv2d, **options: Any) -> QuantConv2d:
        """One with the parameters of `layer`."""
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
        more = {"groups": layer.groups, "bias": layer.bias is not None, "padding_mode": layer.padding_mode}
        made = cls(*sizes, layer.dilation, **more, **options)
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(self.rounded_input(x), self.rounded_weight(), self.bias)


def layers_of(model: torch.nn.Module) -> Iterator[QuantLinear | QuantConv2d]:
    """Those of our layers that `model` has."""
    return (each for each in model.modules() if isinstance(each, (QuantLinear, QuantConv2d)))


@typed
def replace_layers(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """`model`, whose Linear and Conv2d layers are replaced by ours, which have their parameters.

    Args:
        model: changed in place.
        options: `bits`, `input_bits` and `method` of all of them.
    """
    kinds = {torch.nn.Linear: QuantLinear, torch.nn.Conv2d: QuantConv2d}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in kinds:
                setattr(parent, name, kinds[type(child)].of(child, **options))
    return model


@contextlib.contextmanager
def calibrating(model: torch.nn.Module) -> Iterator[None]:
    """Within, what is run shows the layers their inputs; at the end they have ranges.

    Args:
        model: whose layers are calibrated.
    """
    every = list(layers_of(model))
    for layer in every:
        layer.is_calibrating = True
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in every:
            layer.is_calibrating = False
            layer.take_range()


@typed
def export(
    module: Any,
    path: str | Path,
    example: Any,
    *,
    force: bool = False,
    input_names: Iterable[str] = (),
    output_names: Iterable[str] = ("y",),
    dynamic_axes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a module with our layers as standard ONNX: weights as codes of 8 bits behind a DequantizeLinear, inputs
    through a QuantizeLinear/DequantizeLinear pair.

    Args:
        module: of torch.
        path: of the file.
        example: an input, or a tuple of them, to run it on.
        force: replace a file that is there.
        input_names: of the inputs.
        output_names: of the outputs.
        dynamic_axes: by input or output, which axes may have other sizes, and what those are called.

    Raises:
        BadModel: torch cannot export it.
        BadRecipe: a layer has no range yet: `calibrating`.
        BadOutput: the file cannot be written.
    """
    path = Path(path)
    require_onnx(path)
    guard = Guard(force)
    guard.writes(path)
    every = list(layers_of(module))
    if any(layer.input_bits is not None and not layer.has_range for layer in every):
        raise BadRecipe("a layer has seen no input yet: run the module on samples within 'calibrating(module)'")
    inputs = example if isinstance(example, tuple) else (example,)
    names = list(input_names) or [f"x{i}" if i else "x" for i in range(len(inputs))]
    options: dict[str, Any] = {"input_names": names, "output_names": list(output_names), "opset_version": 17}
    options |= {"dynamic_axes": dynamic_axes, "dynamo": False}
    with staging.staging(path) as folder, _exporting(module, every):
        staged = folder / path.name
        try:  # weights are left where they are, so that they are found again
            torch.onnx.export(module, inputs, str(staged), do_constant_folding=False, **options)
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadModel(f"torch cannot export the module: {first_line(error)}") from error
        model = load_model(staged)
        _store_codes(model, module)
        save(model, staged)
        guard.publish(staged, path)
    return path


@contextlib.contextmanager
def _exporting(module: torch.nn.Module, layers: list[QuantLinear | QuantConv2d]) -> Iterator[None]:
    """Within, the module is as it is exported."""
    was_training = module.training
    module.eval()
    for layer in layers:
        layer.is_exporting = True
    try:
        yield
    finally:
        for layer in layers:
            layer.is_exporting = False
        module.train(was_training)


def _store_codes(model: ir.Model, module: torch.nn.Module) -> None:
    """Put a DequantizeLinear on codes in the place of each layer's weight.

    Raises:
        BadModel: torch's exporter has written a weight under another name, or not as it is.
    """
    names, stored_already = Names(model), set()
    for prefix, layer in module.named_modules():
        if not isinstance(layer, (QuantLinear, QuantConv2d)) or id(layer.weight) in stored_already:
            continue
        stored_already.add(id(layer.weight))
        word = f"{prefix}.weight".lstrip(".")
        value = model.graph.initializers.get(word)
        if value is None or tuple(value.const_value.shape.numpy()) != tuple(layer.weight.shape):  # type: ignore[union-attr]
            raise BadModel(f"torch's exporter did not keep the weight '{word}' of a layer as it is")
        scale = layer.scale
        with torch.no_grad():
            layer.is_exporting = False
            codes = torch.round(layer.rounded_weight() / scale.reshape(-1, *[1] * (layer.weight.dim() - 1)))
            layer.is_exporting = True
        parts = [codes.to(torch.int8), scale.float(), torch.zeros_like(scale, dtype=torch.int8)]
        stored = [
            graph.add_constant(model.graph, names.fresh(f"{word}_{part}"), ir.tensor(x.cpu().numpy()))
            for part, x in zip(("codes", "scale", "zero_point"), parts, strict=True)
        ]
        name = names.fresh(f"{word}_dequantized")
        first = next(iter(model.graph))
        value.replace_all_uses_with(graph.add_node(first, "DequantizeLinear", list(stored), name, name, {"axis": 0}))
        model.graph.initializers.pop(word)
