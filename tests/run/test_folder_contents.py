"""What a folder of models is taken for: its parts, files that go with them, and files that are not wanted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
import tiny
from folder_models import X, decoder, encoder, files, put, quantize, rules, run

import onnxq
from onnxq.errors import BadModel, BadRecipe
from onnxq.folders.contents import open_folder
from onnxq.runtime import native

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """An encoder and a decoder as optimum writes them, with a matrix in common."""
    return put(tmp_path / "pair", encoder_model=encoder(), decoder_model=decoder(), config={"a": 1})


# What is taken for what


@pytest.mark.parametrize(
    ("made", "kind", "parts"),
    [
        ({"model": "m", "config": {}}, "transformers", ["model"]),
        ({"model": "m"}, "models", ["model"]),
        ({"encoder_model": "m", "decoder_model": "m", "decoder_model_merged": "m"}, "transformers", None),
        ({"onnx__encoder_model": "m", "onnx__decoder_model": "m"}, "transformers", ["decoder_model", "encoder_model"]),
        ({"model_index": {}, "unet__model": "m", "vae_decoder__model": "m"}, "diffusers", ["unet", "vae_decoder"]),
        ({"a__net": "m", "b__net": "m", "b__onnx__model": "m"}, "models", ["a/net", "b/net", "b"]),
        ({"model": "m", "onnx__model": "m"}, "models", ["model", "onnx/model"]),
        ({"a": "m", "a__model": "m", "a__model__model": "m"}, "models", ["a/model/model", "a/model", "a"]),
    ],
)
def test_parts_have_short_names(tmp_path: Path, made: dict, kind: str, parts: list[str] | None) -> None:
    folder = put(tmp_path / "f", **{name: encoder() if what == "m" else what for name, what in made.items()})
    found = open_folder(folder)
    assert found.kind == kind
    assert [part.name for part in found.parts] == (sorted(made) if parts is None else parts)


def test_other_precisions_and_hidden_folders_are_left_out(pair: Path) -> None:
    for name in ("encoder_model_q4f16", "encoder_model_quantized", "decoder_model_uint8", "decoder_model_qint8_arm64"):
        onnx.save(encoder(), pair / f"{name}.onnx")
    large = encoder()
    onnx.save(
        large, pair / "encoder_model_fp16.onnx", save_as_external_data=True, location="encoder_model_fp16.onnx_data"
    )
    (pair / "encoder_model_bnb4.onnx").write_bytes(b"no model")
    onnx.save(encoder(), pair / "decoder_model_merged.onnx")  # no precision: a part
    (pair / ".git").mkdir()
    (pair / ".git" / "x").touch()
    (pair / ".gitattributes").write_text("hidden, and wanted")
    result = quantize(pair)
    assert files(result.output) == [
        ".gitattributes",
        "config.json",
        "decoder_model.onnx",
        "decoder_model_merged.onnx",
        "encoder_model.onnx",
        "onnxq.json",
    ]
    assert result.left_out.pop(Path(".git")) == "a hidden folder"
    assert len(result.left_out) == 7 and set(result.left_out.values()) == {"another precision of a part"}
    everything = quantize(pair, "all", variants=True)
    assert {*files(pair), "onnxq.json"} - set(files(everything.output)) == {".git/x"}
    assert (everything.output / "encoder_model_bnb4.onnx").read_bytes() == b"no model"


def test_links_that_leave_the_folder_are_refused(pair: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("no part of the folder")
    (pair / "notes.txt").symlink_to(secret)
    with pytest.raises(BadModel, match=r"is a link to .*secret', outside the folder"):
        quantize(pair)
    (pair / "notes.txt").unlink()
    (pair / "notes.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(BadModel, match="outside the folder"):
        quantize(pair)
    (pair / "notes.txt").unlink()
    (pair / "up").symlink_to(tmp_path)
    with pytest.raises(BadModel, match="up' is a link to a folder"):
        quantize(pair)
    (pair / "up").unlink()
    os.mkfifo(pair / "pipe")
    with pytest.raises(BadModel, match="pipe' is not a file"):
        quantize(pair)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pair", "secret"]


def test_a_cache_of_downloads_is_read_through_its_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "12ab"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    onnx.save(encoder(), blobs / "12", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    os.rename(blobs / "model.onnx_data", blobs / "34")
    (blobs / "56").write_text("{}")
    for name, blob in (("model.onnx", "12"), ("model.onnx_data", "34"), ("config.json", "56")):
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / blob)
    result = onnxq.quantize_folder(snapshot, tmp_path / "out", "w8a16")
    assert files(result.output) == ["config.json", "model.onnx", "model.onnx_data", "onnxq.json"]
    assert not any(path.is_symlink() for path in result.output.iterdir())
    (part,) = result.parts
    assert part.result is not None and part.result.check is not None and part.result.check.sqnr > 30


@pytest.mark.parametrize("name", ["sources", "lock"])
def test_a_result_may_be_called_like_what_is_made_on_the_way(tmp_path: Path, name: str) -> None:
    """Its parts are copied first where their data are links: as `sources`, beside the result in the making."""
    whole = put(tmp_path / "in", a=encoder())
    data = tmp_path / "in" / "a.data"
    onnx.save(encoder(), whole / "a.onnx", save_as_external_data=True, location=data.name, size_threshold=0)
    (whole / "real").write_bytes(data.read_bytes())
    data.unlink()
    data.symlink_to("real")
    quantize(whole, name, check=False)
    assert files(tmp_path / name) == ["a.data", "a.onnx", "onnxq.json", "real"]


def test_what_is_no_folder_of_models_is_refused(tmp_path: Path, pair: Path) -> None:
    with pytest.raises(BadModel, match="no such folder"):
        quantize(tmp_path / "missing")
    with pytest.raises(BadModel, match="is not a folder"):
        quantize(pair / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadModel, match="holds no models"):
        quantize(tmp_path / "empty")


# Programs with wishes of their own


CONFIG = {
    "model": {
        "type": "phi3v",
        "decoder": {"filename": "text.onnx", "session_options": {"log_id": "x", "provider_options": []}},
        "vision": {"filename": "vision.onnx", "session_options": {"log_id": "y"}},
        "embedding": {"filename": "embedding.onnx"},
    },
    "search": {"top_k": 50},
}


@pytest.fixture
def genai_folder(tmp_path: Path) -> Path:
    return put(
        tmp_path / "g", genai_config=CONFIG, text=encoder(), vision=decoder(), embedding=encoder(), other=encoder()
    )


def test_parts_of_a_genai_folder_are_those_its_configuration_names(genai_folder: Path) -> None:
    result = quantize(genai_folder)
    assert result.kind == "onnxruntime-genai"
    assert [part.name for part in result.parts] == ["embedding", "text", "vision"]
    assert result.left_out == {Path("other.onnx"): "named by no part of genai_config.json"}
    assert json.loads((result.output / "genai_config.json").read_text()) == CONFIG


@pytest.mark.skipif(native.path() is None, reason="the compiled library is not built")
def test_a_genai_folder_for_onnxq_brings_the_library(genai_folder: Path) -> None:
    result = quantize(genai_folder, target="onnxq", recipe=rules(("vision/*", "keep"), scheme="w4a16"))
    library = onnxq.ops_library()
    assert (result.output / library.name).read_bytes() == library.read_bytes()
    config = json.loads((result.output / "genai_config.json").read_text())
    assert config["model"]["decoder"]["session_options"].pop("custom_ops_library") == library.name
    assert config == CONFIG  # the vision part has no such operators, and the embedding runs with the decoder's options
    config["model"]["decoder"]["session_options"]["custom_ops_library"] = "libother.so"
    (genai_folder / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match=r"sets custom_ops_library to libother.so already"):
        quantize(genai_folder, "again", target="onnxq")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "has no object 'model'"),
        ('{"model": {}}', "names no model"),
        ('{"model": {"decoder": {"filename": "../pair/encoder_model.onnx"}}}', "outside the folder"),
        ('{"model": {"decoder": {"filename": "/etc/x.onnx"}}}', "outside the folder"),
        ('{"model": {"decoder": {"filename": "gone.onnx"}}}', "is not there"),
    ],
)
def test_bad_genai_configurations(genai_folder: Path, config: str, sentence: str) -> None:
    (genai_folder / "genai_config.json").write_text(config)
    with pytest.raises(BadModel, match=sentence):
        quantize(genai_folder)


def test_the_layout_of_transformers_js(pair: Path) -> None:
    onnx.save(encoder(), pair / "encoder_model.onnx", save_as_external_data=True, location="d.bin", size_threshold=0)
    result = quantize(pair, recipe="w4a16", layout="transformers.js")
    assert files(result.output) == [
        "config.json",
        "onnx/decoder_model_q4.onnx",
        "onnx/encoder_model_q4.onnx",
        "onnx/encoder_model_q4.onnx_data",
        "onnxq.json",
    ]
    config = json.loads((result.output / "config.json").read_text())
    told = {"use_external_data_format": {"encoder_model_q4.onnx": True}}
    assert config == {"a": 1, "transformers.js_config": told}
    assert result.notes == ("transformers.js loads it with dtype 'q4'",)
    assert tiny.sqnr(run(pair / "encoder_model.onnx", X), run(result.output / "onnx/encoder_model_q4.onnx", X)) > 12
    with pytest.raises(BadRecipe, match=r"transformers.js has no name for 'mxfp4'"):
        quantize(pair, "x", "mxfp4", layout="transformers.js", target="onnxq")
    with pytest.raises(BadRecipe, match="unknown layout"):
        quantize(pair, "x", layout="flat")


def test_two_models_of_one_name_in_the_layout_of_transformers_js_are_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "two", sub__x=encoder(), sub__onnx__x=decoder(), config={})
    with pytest.raises(BadRecipe, match=r"'sub/onnx/x.onnx' and 'sub/x.onnx' would both become 'sub/onnx/x_int8.onnx'"):
        quantize(folder, layout="transformers.js")
    assert not (tmp_path / "out").exists()
    assert len(quantize(folder).parts) == 2


def test_a_folder_of_diffusers_is_not_for_transformers_js(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", model_index={}, unet__model=encoder(), unet__config={})
    with pytest.raises(BadRecipe, match="is a folder of diffusers"):
        quantize(folder, layout="transformers.js")
    assert files(quantize(folder).output) == ["model_index.json", "onnxq.json", "unet/config.json", "unet/model.onnx"]
