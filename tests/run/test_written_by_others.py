"""Weights of a trained model, packed by other projects' own code here and now: into a model, and out for their readers.

GPTQ's and AWQ's code runs on GPUs only: what it made is in `models/foreign_checkpoints.npz`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from test_checkpoint_folders import by_compressed_tensors, by_torchao

from onnxq import quantize
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.conversion.convert import convert
from onnxq.conversion.export_folder import KINDS, export_folder
from onnxq.conversion.export_weights import export_weights
from onnxq.recipe import Recipe

# Of other projects.
pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.filterwarnings("ignore")]
MODEL = Path(__file__).parents[2] / "models" / "text_transformer.onnx"
EXACT = ImportOptions(accuracy_level=0)
GROUP = 32
Arrays = dict[str, NDArray[Any]]
#: Writes the weights, [outputs, inputs], into a folder; what the project itself decodes them to.
Writer = Callable[[Arrays, Path], Arrays]


@functools.cache
def trained() -> Arrays:
    """Matrices of the model's products by the layer's name, as torch has them."""
    graph = onnx.load(MODEL).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in arrays]
    return {node.name.rpartition("/")[0]: np.ascontiguousarray(arrays[node.input[1]].T) for node in products}


def saved(folder: Path, tensors: Any, config: Any = None, metadata: Any = None) -> None:
    from safetensors.torch import save_file

    contiguous = {name: x.contiguous() for name, x in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata=metadata)
    (folder / "config.json").write_text(json.dumps(config or {}))


def of_compressed_tensors(weights: Arrays, folder: Path, *, bits: int, symmetric: bool) -> Arrays:
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=GROUP, symmetric=symmetric)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor, tensors, wanted = BaseCompressor.get_value_from_registry("pack-quantized"), {}, {}
    for name, array in weights.items():
        w = torch.from_numpy(array.copy())
        groups = w.reshape(len(w), -1, GROUP)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        packed = compressor.compress({"weight": w, "weight_scale": scale, "weight_zero_point": zero}, scheme)
        tensors |= {f"{name}.{part}": x for part, x in packed.items()}
        wanted[name] = compressor.decompress(dict(packed), scheme)["weight"].float().numpy()
    groups_said = {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}
    said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups_said}
    saved(folder, tensors, {"quantization_config": said})
    return wanted


def of_torchao(weights: Arrays, folder: Path, *, bits: int) -> Arrays:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    model = torch.nn.ModuleDict()
    for name, array in weights.items():
        linear = torch.nn.Linear(*array.shape[::-1], bias=False)
        linear.weight.data = torch.from_numpy(array.copy())
        model[name.replace(".", "/")] = linear
    four = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP))
    quantize_(model, four if bits == 4 else Int8WeightOnlyConfig())
    wanted = {name: model[name.replace(".", "/")].weight.dequantize().float().detach().numpy() for name in weights}
    state = {name.replace("/", "."): x for name, x in model.state_dict().items()}
    tensors, metadata = flatten_tensor_state_dict(state)
    saved(folder, tensors, metadata=metadata)
    return wanted


def of_bitsandbytes(weights: Arrays, folder: Path, *, word: str, nested: bool) -> Arrays:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes").functional
    tensors, wanted = {}, {}
    for name, array in weights.items():
        w = torch.from_numpy(array.copy())
        codes, state = functional.quantize_4bit(w, blocksize=64, quant_type=word, compress_statistics=nested)
        tensors[f"{name}.weight"] = codes
        tensors |= {f"{name}.weight.{part}": x for part, x in state.as_dict(packed=True).items()}
        wanted[name] = functional.dequantize_4bit(codes, state).float().numpy()
    saved(folder, tensors)
    return wanted


def of_hqq(weights: Arrays, folder: Path, *, bits: int) -> Arrays:
    torch = pytest.importorskip("torch")
    pytest.importorskip("hqq")
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    tensors, wanted = {}, {}
    for name, array in weights.items():
        linear = torch.nn.Linear(*array.shape[::-1], bias=False)
        linear.weight.data = torch.from_numpy(array.copy())
        config = BaseQuantizeConfig(nbits=bits, group_size=GROUP, axis=1)
        layer = HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu", del_orig=False)
        tensors |= {f"{name}.{part}": x for part, x in layer.state_dict().items()}
        wanted[name] = layer.dequantize().detach().numpy()
    saved(folder, tensors)
    return wanted


def of_mlx(weights: Arrays, folder: Path, *, bits: int) -> Arrays:
    mx = pytest.importorskip("mlx.core")
    tensors, wanted = {}, {}
    for name, array in weights.items():
        q, scales, low = mx.quantize(mx.array(array), group_size=GROUP, bits=bits)
        tensors |= {f"{name}.weight": q, f"{name}.scales": scales, f"{name}.biases": low}
        wanted[name] = np.array(mx.dequantize(q, scales, low, group_size=GROUP, bits=bits))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps({"quantization": {"group_size": GROUP, "bits": bits}}))
    return wanted


def of_gguf(weights: Arrays, folder: Path, *, word: str) -> Arrays:
    gguf = pytest.importorskip("gguf")
    kind, wanted = gguf.GGMLQuantizationType[word], {}
    writer = gguf.GGUFWriter(folder / "w.gguf", "other")
    for name, array in weights.items():
        codes = gguf.quants.quantize(array, kind)
        writer.add_tensor(f"{name}.weight", codes, raw_dtype=kind)
        wanted[name] = gguf.quants.dequantize(codes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


#: Those of which a block may have a minimum, for which other targets have no form.
HAVE_MINIMA = ("hqq 4", "mlx 4", "gguf Q5_1")
#: By name: the writer, and how much further a number may be than one float32 rounding of a scale; None: not at all.
WRITERS: dict[str, tuple[Writer, float | None]] = {
    "compressed-tensors 4": (functools.partial(of_compressed_tensors, bits=4, symmetric=True), None),
    "compressed-tensors 8, zero points": (functools.partial(of_compressed_tensors, bits=8, symmetric=False), None),
    "torchao 4": (functools.partial(of_torchao, bits=4), None),
    "torchao 8": (functools.partial(of_torchao, bits=8), None),
    "bitsandbytes nf4": (functools.partial(of_bitsandbytes, word="nf4", nested=False), None),
    "bitsandbytes nf4, nested": (functools.partial(of_bitsandbytes, word="nf4", nested=True), 1e-6),
    "bitsandbytes fp4": (functools.partial(of_bitsandbytes, word="fp4", nested=False), None),
    "hqq 4": (functools.partial(of_hqq, bits=4), 1e-6),  # (q − z) · s: one more rounding
    "mlx 4": (functools.partial(of_mlx, bits=4), 1e-6),
    "gguf Q4_0": (functools.partial(of_gguf, word="Q4_0"), None),
    "gguf Q5_1": (functools.partial(of_gguf, word="Q5_1"), 1e-6),
    "gguf Q8_0": (functools.partial(of_gguf, word="Q8_0"), None),
}


def near(found: NDArray[Any], wanted: NDArray[Any], most: float | None, about: str) -> None:
    if most is None:
        np.testing.assert_array_equal(found, wanted, about)
    else:
        np.testing.assert_allclose(found, wanted, most, most * np.abs(wanted).max(), err_msg=about)


def equal(wanted: Arrays, found: Arrays) -> None:
    """Each that is wanted is among those found, which have names of their own, number for number."""
    for layer, w in wanted.items():
        assert any(w.shape == x.shape and np.array_equal(w, x) for x in found.values()), layer


def opened(path: Path) -> onnxruntime.InferenceSession:
    """Nothing is fused: kernels that round activations stay out, and own operators are their functions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def logits(path: Path) -> NDArray[Any]:
    ids = np.random.default_rng(0).integers(1, 96, (2, 24))
    return np.asarray(opened(path).run(None, {"ids": ids})[0])


def with_weights(weights: Arrays, folder: Path) -> Path:
    """The trained model with these in the place of its own."""
    model = onnx.load(MODEL)
    names = {node.input[1]: node.name.rpartition("/")[0] for node in model.graph.node if node.op_type == "MatMul"}
    for tensor in model.graph.initializer:
        layer = names.get(tensor.name)
        if layer in weights:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weights[layer].T), tensor.name))
    onnx.save(model, folder / "theirs.onnx")
    return folder / "theirs.onnx"


@pytest.mark.sweep
@pytest.mark.parametrize("case", WRITERS)
def test_what_they_write_comes_in(case: str, tmp_path: Path) -> None:
    """Each matrix as onnxruntime multiplies by it; and in the trained model, from which it goes on to other targets."""
    writer, most = WRITERS[case]
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    # Blocks of bitsandbytes run over the ends of rows that are no multiple of 64.
    rows = 64 if case.startswith("bitsandbytes") else GROUP
    weights = {name: w for name, w in trained().items() if w.shape[1] % rows == 0}
    wanted = writer(weights, folder)
    source = next(folder.glob("*.gguf"), folder)
    alone = import_weights(None, source, tmp_path / "alone.onnx", target="onnxq", options=EXACT)
    assert set(alone.match.prefixes.values()) == set(weights) and not alone.match.rounded
    session = opened(alone.output)
    feed = {x.name: np.eye(*2 * (x.shape[-1],), dtype=np.float32) for x in session.get_inputs()}
    found = session.run(None, feed)
    assert len(found) == len(weights)
    for output, y in zip(session.get_outputs(), found, strict=True):
        layer = output.name.removesuffix(".y") if len(weights) > 1 else next(iter(weights))
        near(y.T, wanted[layer], most, f"{case} {layer}")  # one number times 1, and zeros
    done = import_weights(
        MODEL, source, tmp_path / "onnxq.onnx", target="onnxq", options=dataclasses.replace(EXACT, partial=True)
    )
    assert set(done.match.prefixes.values()) == set(weights) and not done.match.rounded
    reference = logits(with_weights(wanted, tmp_path))
    assert tiny.sqnr(reference, logits(done.output)) > 100
    for target in ("ort-cpu", "onnx"):
        made = convert(done.output, target, tmp_path / f"{target}.onnx", accuracy_level=0)
        if not made.again:
            assert len(made.kept) == len(weights) and tiny.sqnr(reference, logits(made.output)) > 100
        else:
            assert case in HAVE_MINIMA and min(db for _, db in made.again.values()) > 35


def as_unpacked(path: Path) -> Arrays:
    """What onnxruntime makes of the codes of each product: outputs of DequantizeLinear, [outputs, inputs]."""
    model = onnx.load(path)
    by = {name: node for node in model.graph.node for name in node.output}
    layers = {}
    for node in model.graph.node:
        made = by.get(node.input[1]) if node.op_type == "MatMul" else None
        made = by.get(made.input[0]) if made is not None and made.op_type == "Transpose" else made
        if made is not None and made.op_type == "DequantizeLinear":
            layers[node.input[1]] = node.name.rpartition("/")[0]
            model.graph.output.append(helper.make_tensor_value_info(node.input[1], TensorProto.FLOAT, None))
    onnx.save(model, path.with_suffix(".seen.onnx"))
    found = opened(path.with_suffix(".seen.onnx")).run(list(layers), {"ids": np.ones((1, 4), np.int64)})
    return {layer: np.asarray(x).T for layer, x in zip(layers.values(), found, strict=True)}


@pytest.mark.parametrize("word", ["int4", "uint4", "int8"])
def test_what_is_written_for_them_is_what_onnxruntime_unpacks(word: str, tmp_path: Path) -> None:
    """Out of a quantized trained model: each project's reader and onnxruntime's DequantizeLinear have equal numbers."""
    small = tmp_path / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, block_size=GROUP)
    quantize(MODEL, small, recipe, target="onnxq", check=False)  # whose scales are of float16, which GGUF's are
    wanted = as_unpacked(convert(small, "onnx", tmp_path / "onnx.onnx", check=False).output)
    assert len(wanted) >= 9
    for to in KINDS:
        try:
            pytest.importorskip("torch"), pytest.importorskip(to.replace("-", "_"))
        except pytest.skip.Exception:
            continue
        rows = export_folder(small, to, tmp_path / to).rows
        coded = {row.name.removesuffix(".weight") for row in rows if row.format is not None}
        read = by_compressed_tensors if to == "compressed-tensors" else by_torchao
        layers = [row.name.removesuffix(".weight") for row in rows if len(row.shape) == 2]
        equal(wanted, {name: w for name, w in read(tmp_path / to, layers).items() if name in coded})
    gguf = pytest.importorskip("gguf")
    export_weights(small, tmp_path / "w.gguf")
    tensors = gguf.GGUFReader(tmp_path / "w.gguf").tensors
    equal(wanted, {x.name: gguf.quants.dequantize(x.data, x.tensor_type) for x in tensors if len(x.shape) == 2})
