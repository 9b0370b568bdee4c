"""Networks of transformers, with tiny configurations and random weights, as the exporters of today write them.

Nothing is downloaded: a configuration is enough for a model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from exports.builder import Architecture, Feed, images, tokens

os.environ["HF_HUB_OFFLINE"] = "1"
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {"vocab_size": 99, **SMALL}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
DECODER = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64, "attn_implementation": "eager"}

#: A module and an example of its inputs by name, and their axes of any size.
Made = tuple[Any, dict[str, Any], dict[str, dict[int, str]]]


def _first_output(model: Any) -> Any:
    import torch

    class First(torch.nn.Module):
        """Without the caches and pooled states that come after it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return next(iter(self.model(*inputs).values()))

    return First().eval()


def _text(make: Callable[[Any], Any], *, mask: bool = False) -> Callable[[], Made]:
    def made() -> Made:
        import torch
        import transformers

        torch.manual_seed(0)
        model = make(transformers)
        model.config.use_cache = False
        ids = torch.randint(1, 90, (2, 12))
        inputs = {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}
        return _first_output(model), inputs, {name: {0: "batch", 1: "length"} for name in inputs}

    return made


def _image(make: Callable[[Any], Any]) -> Callable[[], Made]:
    def made() -> Made:
        import torch
        import transformers

        torch.manual_seed(0)
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
        return _first_output(make(transformers)), inputs, {"pixel_values": {0: "batch"}}

    return made


def _sound(make: Callable[[Any], Any], name: str, *shape: int) -> Callable[[], Made]:
    def made() -> Made:
        import torch
        import transformers

        torch.manual_seed(0)
        return _first_output(make(transformers)), {name: torch.randn(2, *shape)}, {name: {0: "batch"}}

    return made


def export(made: Callable[[], Made], exporter: str) -> Callable[[Path], Path]:
    """By `torch.onnx.export`: "dynamo", which writes weights beside the model, or "script", the older one."""

    def write(folder: Path) -> Path:
        import torch

        module, inputs, axes = made()
        path = folder / "model.onnx"
        arguments = tuple(inputs.values())
        if exporter == "dynamo":
            sizes = {word: torch.export.Dim(word, min=1, max=64) for word in ("batch", "length")}
            shapes = tuple({axis: sizes[word] for axis, word in axes[name].items()} for name in inputs)
            torch.onnx.export(
                module, arguments, path, input_names=list(inputs), dynamic_shapes=(shapes,), verbose=False
            )
        else:
            names = {"input_names": list(inputs), "dynamic_axes": axes}
            torch.onnx.export(module, arguments, str(path), dynamo=False, opset_version=17, **names)
        return path

    return write


def _noise(name: str, *shape: int) -> Callable[[np.random.Generator, int, int], Feed]:
    def draw(rng: np.random.Generator, batch: int, length: int) -> Feed:
        return {name: rng.standard_normal((batch, *shape)).astype(np.float32)}

    return draw


def _causal(t: Any, family: str, **more: object) -> Any:
    config = getattr(t, f"{family}Config")(**DECODER, **more)
    return getattr(t, f"{family}ForCausalLM")(config)


def _whisper(t: Any) -> Any:
    layers = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in
              (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))}  # fmt: skip
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"vocab_size": 99, "d_model": 64, "num_mel_bins": 16, "max_source_positions": 50}
    return t.WhisperModel(t.WhisperConfig(**layers, **ids, **sizes, max_target_positions=32))


def _clip(t: Any) -> Any:
    text = {**TEXT, "max_position_embeddings": 32, "eos_token_id": 98}
    return t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))


def _wav2vec2(t: Any) -> Any:
    convolutions = {"conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
    places = {"num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**{**TEXT, "vocab_size": 32}, **convolutions, **places))


def _distilbert(t: Any) -> Any:
    return t.DistilBertModel(t.DistilBertConfig(vocab_size=99, dim=64, n_layers=2, n_heads=4, hidden_dim=128))


def _gpt2(t: Any) -> Any:
    config = {"vocab_size": 99, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return t.GPT2LMHeadModel(t.GPT2Config(**config, attn_implementation="eager"))


def _t5(t: Any) -> Any:
    return t.T5EncoderModel(t.T5Config(vocab_size=99, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4))


def _resnet(t: Any) -> Any:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 48], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return t.ResNetForImageClassification(t.ResNetConfig(**sizes))


def _convnext(t: Any) -> Any:
    config = t.ConvNextConfig(hidden_sizes=[32, 32, 32, 48], depths=[1, 1, 1, 1])
    return t.ConvNextForImageClassification(config)


def _mobilenet(t: Any) -> Any:
    return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(image_size=32, depth_multiplier=0.35))


MASKED, BARE = tokens(90, mask=True), tokens(90)
#: What makes it and what feeds it; the batch alone may change where a length is None.
NETWORKS: dict[str, tuple[Callable[[], Made], Any, int | None]] = {
    "bert": (_text(lambda t: t.BertModel(t.BertConfig(**TEXT)), mask=True), MASKED, 9),
    "distilbert": (_text(_distilbert, mask=True), MASKED, 9),
    "t5": (_text(_t5, mask=True), MASKED, 9),
    "gpt2": (_text(_gpt2), BARE, 9),
    "llama": (_text(lambda t: _causal(t, "Llama")), BARE, 9),
    "mistral": (_text(lambda t: _causal(t, "Mistral")), BARE, 9),
    "qwen2": (_text(lambda t: _causal(t, "Qwen2", tie_word_embeddings=True)), BARE, 9),
    "vit": (_image(lambda t: t.ViTForImageClassification(t.ViTConfig(**VISION))), images(3, "pixel_values"), None),
    "convnext": (_image(_convnext), images(3, "pixel_values"), None),
    "mobilenet-v2": (_image(_mobilenet), images(3, "pixel_values"), None),
    "resnet": (_image(_resnet), images(3, "pixel_values"), None),
    "clip-vision": (_image(lambda t: _clip(t).vision_model), images(3, "pixel_values"), None),
    "wav2vec2": (_sound(_wav2vec2, "input_values", 1600), _noise("input_values", 1600), None),
    "whisper": (_sound(lambda t: _whisper(t).encoder, "mel", 16, 100), _noise("mel", 16, 100), None),
}


def architecture(name: str, exporter: str) -> Architecture:
    made, draw, length = NETWORKS[name]
    sizes: Sequence[tuple[int, int]] = [(2, 32), (1, 32), (3, 32)]
    if length is not None:
        sizes = [(2, length), (1, 1), (3, 14)]
    return Architecture(export(made, exporter), draw, tuple(sizes))
