"""Folders as their own exporters write them, of models so small that this takes seconds, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = 512
SIZES = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def require(*modules: str) -> Any:
    """The last of these modules; the test is skipped where one is not installed, or does not fit another."""
    return [pytest.importorskip(name, exc_type=ImportError) for name in modules][-1]


def tokenizer() -> Any:
    """A letter each, as the byte-pair tokenizers of today's decoders do where they know no longer piece."""
    tokenizers, transformers = require("tokenizers"), require("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *letters])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(words, [], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=names, **special)


def genai(folder: Path) -> Path:
    """A Llama by onnxruntime-genai's builder."""
    torch, transformers = require("torch", "onnxruntime_genai") and require("torch"), require("transformers")
    builder = require("onnxruntime_genai.models.builder")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **SIZES,
    )
    source = folder.with_name(f"{folder.name}-torch")
    transformers.LlamaForCausalLM(config).save_pretrained(source)
    tokenizer().save_pretrained(source)
    builder.create_model("", str(source), str(folder), "fp32", "cpu", str(folder.with_name("cache")))
    return folder


def _export(folder: Path, model: Any, task: str, *processors: Any) -> Path:
    exporters = require("onnxruntime", "optimum.onnxruntime", "optimum.exporters.onnx")
    source = folder.with_name(f"{folder.name}-torch")
    model.eval().save_pretrained(source)
    for processor in processors:
        processor.save_pretrained(source)
    options = {"device": "cpu", "do_validation": False, "local_files_only": True}
    exporters.main_export(str(source), folder, task=task, **options)
    for processor in processors:
        processor.save_pretrained(folder)
    return folder


def bert(folder: Path) -> Path:
    torch, transformers = require("torch"), require("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = transformers.BertModel(transformers.BertConfig(max_position_embeddings=64, **sizes, **SIZES))
    return _export(folder, model, "feature-extraction", tokenizer())


def gpt2(folder: Path) -> Path:
    torch, transformers = require("torch"), require("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_positions=64, n_embd=64, n_layer=2, n_head=4, **SIZES)
    )
    return _export(folder, model, "text-generation-with-past", tokenizer())


def t5(folder: Path) -> Path:
    torch, transformers = require("torch"), require("transformers")
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    sizes |= {"tie_word_embeddings": False}  # tied, random ones repeat the last token for ever
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **SIZES))
    return _export(folder, model, "text2text-generation-with-past", tokenizer())


def whisper(folder: Path) -> Path:
    torch, transformers = require("torch"), require("transformers")
    torch.manual_seed(0)
    sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _SIDE.items()}
    no_tokens = {"begin_suppress_tokens": None, "suppress_tokens": None, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        d_model=64, num_mel_bins=16, max_target_positions=64, **sides, **no_tokens, **SIZES
    )
    model = transformers.WhisperForConditionalGeneration(config)
    features = transformers.WhisperFeatureExtractor(feature_size=16)
    return _export(folder, model, "automatic-speech-recognition-with-past", features, tokenizer())


_SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}


def diffusion(folder: Path) -> Path:
    """Stable Diffusion, small: text encoder, U-Net, both halves of the autoencoder."""
    torch, transformers, diffusers = require("torch"), require("transformers"), require("diffusers")
    exporters = require("onnxruntime", "optimum.onnxruntime", "optimum.exporters.onnx")
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(vocab_size=190, max_position_embeddings=16, **sizes, **ends)
    )
    source = folder.with_name(f"{folder.name}-torch")
    parts = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = diffusers.StableDiffusionPipeline(
        vae, text, _clip_tokenizer(folder.with_name("clip")), unet, scheduler=diffusers.DDIMScheduler(), **parts
    )
    pipeline.save_pretrained(source)
    options = {"device": "cpu", "do_validation": False, "local_files_only": True}
    exporters.main_export(str(source), folder, task="text-to-image", **options)
    return folder


def _clip_tokenizer(folder: Path) -> Any:
    """A letter each."""
    folder.mkdir()
    letters = [chr(code) for code in range(33, 127)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    return require("transformers").CLIPTokenizer(*files, model_max_length=16, pad_token="<|endoftext|>")
