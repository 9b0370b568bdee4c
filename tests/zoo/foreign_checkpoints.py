"""Small checkpoints made by the code of other projects, with what that code decodes them to.

    python tests/zoo/foreign_checkpoints.py models/foreign_checkpoints.npz AUTO_GPTQ AUTOAWQ

Wants compressed-tensors 0.20, bitsandbytes 0.50, hqq 0.2, torchao 0.18, mlx 0.32 with mlx-cpu, and torch, on a
processor; AUTO_GPTQ and AUTOAWQ are folders with the unpacked files of auto-gptq 0.7.1 and autoawq 0.2.9, whose layers
are compiled from their sources: neither can be imported without a GPU.

Of each CASE the file holds CASE.safetensors (bytes), CASE.config (JSON) and CASE.wanted, float32 [32, 64].
"""

from __future__ import annotations

import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

N, K, GROUP = 32, 64, 32
W = torch.randn(N, K, generator=torch.Generator().manual_seed(0))
made: dict[str, np.ndarray] = {}


def keep(case: str, tensors: dict[str, Any], wanted: Any, config: Any = None, metadata: Any = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({name: x.contiguous() for name, x in tensors.items()}, path, metadata=metadata)
        made[f"{case}.safetensors"] = np.frombuffer(path.read_bytes(), np.uint8)
    made[f"{case}.config"] = np.frombuffer(json.dumps(config or {}).encode(), np.uint8)
    made[f"{case}.wanted"] = wanted.detach().float().numpy()


def compressed(case: str, form: str, **said: Any) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**said)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    rows = {"tensor": W.reshape(1, -1), "channel": W}.get(
        args.strategy, W.reshape(N, -1, args.group_size) if args.group_size else W
    )
    low, high = rows.amin(-1, keepdim=rows.ndim == 2), rows.amax(-1, keepdim=rows.ndim == 2)
    state, factor = {"weight": W}, None
    if args.strategy == "tensor_group":
        factor = state["weight_global_scale"] = generate_gparam(W.amin().reshape(1), W.amax().reshape(1))
    scale, zero = calculate_qparams(low, high, args, **({} if factor is None else {"global_scale": factor}))
    if args.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = compressor.compress(state, scheme)
    wanted = compressor.decompress(dict(tensors), scheme)["weight"]
    groups = {"group_0": {"weights": json.loads(args.model_dump_json())}}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
    keep(case, {f"layer.{part}": x for part, x in tensors.items()}, wanted, {"quantization_config": config})


def all_compressed() -> None:
    for bits in (3, 4, 8):
        said = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
        compressed(f"compressed_pack{bits}", "pack-quantized", symmetric=True, **said)
        compressed(f"compressed_pack{bits}_affine", "pack-quantized", symmetric=False, **said)
    compressed("compressed_pack4_channel", "pack-quantized", num_bits=4, type="int", strategy="channel")
    compressed("compressed_int8", "int-quantized", num_bits=8, type="int", strategy="channel")
    compressed("compressed_int8_affine", "int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False)
    compressed("compressed_fp8", "float-quantized", num_bits=8, type="float", strategy="channel")
    compressed("compressed_fp8_tensor", "float-quantized", num_bits=8, type="float", strategy="tensor")
    blocks = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    compressed("compressed_mxfp4", "mxfp4-pack-quantized", num_bits=4, **blocks)
    compressed("compressed_mxfp8", "mxfp8-quantized", num_bits=8, **blocks)
    blocks = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn}
    compressed("compressed_nvfp4", "nvfp4-pack-quantized", num_bits=4, type="float", **blocks)


def all_bitsandbytes() -> None:
    from bitsandbytes import functional

    for word in ("nf4", "fp4"):
        for nested in (False, True):
            q, state = functional.quantize_4bit(W, blocksize=64, quant_type=word, compress_statistics=nested)
            parts = {f"layer.weight.{part}": x for part, x in state.as_dict(packed=True).items()}
            wanted = functional.dequantize_4bit(q, state)
            keep(f"bitsandbytes_{word}{'_nested' * nested}", {"layer.weight": q} | parts, wanted)
    q, scales, _ = functional.int8_vectorwise_quant(W.half())
    tensors = {"layer.weight": q, "layer.SCB": scales, "layer.weight_format": torch.tensor(0, dtype=torch.uint8)}
    keep("bitsandbytes_int8", tensors, functional.int8_vectorwise_dequant(q, scales))


def all_hqq() -> None:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    for bits, axis in ((8, 1), (4, 1), (3, 1), (2, 1), (4, 0)):
        linear = torch.nn.Linear(K, N)
        linear.weight.data = W.clone()
        config = BaseQuantizeConfig(nbits=bits, group_size=GROUP, axis=axis)
        layer = HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu", del_orig=False)
        tensors = {f"layer.{part}": x for part, x in layer.state_dict().items()}
        keep(f"hqq{bits}{'' if axis else '_columns'}", tensors, layer.dequantize())


def all_mlx() -> None:
    import mlx.core as mx

    for bits in (2, 3, 4, 5, 6, 8):
        x = mx.array(W.numpy()).astype(mx.float16)
        q, scales, low = mx.quantize(x, group_size=GROUP, bits=bits)
        wide = (scales.astype(mx.float32), low.astype(mx.float32))
        wanted = torch.from_numpy(np.array(mx.dequantize(q, *wide, group_size=GROUP, bits=bits)))
        parts = {"weight": q, "scales": scales, "biases": low}
        tensors = {f"layer.{part}": torch.from_numpy(np.array(x)) for part, x in parts.items()}
        keep(f"mlx{bits}", tensors, wanted, {"quantization": {"group_size": GROUP, "bits": bits}})


def all_torchao() -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    four = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP))
    for case, config in (("int8", Int8WeightOnlyConfig()), ("int4", four), ("fp8", Float8WeightOnlyConfig())):
        model = torch.nn.ModuleDict({"layer": torch.nn.Linear(K, N)})
        model["layer"].weight.data = W.clone()
        quantize_(model, config)
        tensors, metadata = flatten_tensor_state_dict(model.state_dict())
        keep(f"torchao_{case}", tensors, model["layer"].weight.dequantize(), metadata=metadata)


def compiled(source: str, name: str) -> Any:
    module = types.ModuleType("foreign")
    exec(compile(source, "foreign", "exec"), module.__dict__)
    return getattr(module, name)


def all_gptq(package: Path) -> None:
    source = (package / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").read_text()
    layer_of = compiled(source.replace("from ..triton_utils.mixin import TritonModuleMixin", ""), "QuantLinear")
    for bits in (2, 3, 4, 8):
        for ordered in (False, True):
            for symmetric in (False, True):
                most = 2**bits - 1
                order = torch.randperm(K, generator=torch.Generator().manual_seed(bits)) if ordered else torch.arange(K)
                index = torch.empty(K, dtype=torch.int32)
                index[order] = (torch.arange(K) // GROUP).int()
                scales, zeros = torch.empty(N, K // GROUP), torch.empty(N, K // GROUP)
                for i in range(K // GROUP):
                    w = W[:, index == i]
                    low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
                    if symmetric:
                        high = torch.maximum(-low, high)
                        low = -high
                    scales[:, i] = ((high - low) / most).half().float()
                    zeros[:, i] = (most + 1) / 2 if symmetric else torch.round(-low / scales[:, i]).clamp(0, most)
                step, zero = scales[:, index.long()], zeros[:, index.long()]
                wanted = step * (torch.clamp(torch.round(W / step) + zero, 0, most) - zero)
                linear = torch.nn.Linear(K, N, bias=True)
                linear.weight.data = wanted.clone()
                layer = layer_of(bits, GROUP, K, N, True)
                layer.pack(linear, scales, zeros, index)
                case = f"gptq{bits}{'_ordered' * ordered}{'_symmetric' * symmetric}"
                config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": ordered}
                tensors = {f"layer.{part}": x for part, x in layer.state_dict().items()}
                keep(case, tensors, wanted, {"quantization_config": config})


def awq(package: Path) -> None:
    source = (package / "awq/modules/linear/gemm.py").read_text()
    head = "import torch\nimport torch.nn as nn\nget_best_device = lambda: 'cpu'\n"
    layer_of = compiled(head + source[source.index("class WQLinear_GEMM") :], "WQLinear_GEMM")
    groups = W.reshape(N, K // GROUP, GROUP)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = torch.round(-low / scales).clamp(0, 15)
    codes = torch.clamp(torch.round(groups / scales[..., None]) + zeros[..., None], 0, 15)
    wanted = (scales[..., None] * (codes - zeros[..., None])).reshape(N, K)
    linear = torch.nn.Linear(K, N, bias=False)
    linear.weight.data = wanted.clone()
    layer = layer_of.from_linear(linear, 4, GROUP, False, scales.T.contiguous(), zeros.T.contiguous())
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    tensors = {f"layer.{part}": x for part, x in layer.state_dict().items()}
    keep("awq", tensors, wanted, {"quantization_config": config})


if __name__ == "__main__":
    torch.manual_seed(0)
    all_compressed(), all_bitsandbytes(), all_hqq(), all_mlx(), all_torchao()
    all_gptq(Path(sys.argv[2])), awq(Path(sys.argv[3]))
    np.savez_compressed(sys.argv[1], **made)  # type: ignore[arg-type]
    print(f"{len(made) // 3} checkpoints")
