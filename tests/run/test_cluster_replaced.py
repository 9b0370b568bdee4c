"""What workers see is of the model and the data that are asked for, whatever they have opened before."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import tiny
from schedulers import QUIET, in_this_process

import onnxq
from onnxq.calibration import shards
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort
from onnxq.cluster import dask_cluster
from onnxq.errors import BadRecipe
from onnxq.job import open_job
from onnxq.samples.reading import reading_of
from onnxq.samples.sampling import Sampling

pytestmark = QUIET
TEXT = """g (float[n, 96] x) => (float[n, 48] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(dask_cluster.engine, "KEEP_BYTES_A_SECOND", 1e12)
    monkeypatch.chdir(tmp_path)
    save_model(1)
    save_data(1)


def save_model(size: float) -> None:
    tiny.save(tiny.model(TEXT, {"w": tiny.normal(96, 128) * np.float32(size), "v": tiny.normal(128, 48)}), Path())


def save_data(size: float) -> None:
    np.savez("data.npz", x=tiny.normal(41, 1, 96) * np.float32(size))


def calibrated(word: str | None) -> Any:
    """The file of ranges that `quantize` leaves."""
    Path("kept.ranges").unlink(missing_ok=True)
    recipe = onnxq.Recipe("w8a8", calibration="minmax", keep_slow=True, effort="quick")
    options = {"ranges": "kept.ranges", "effort": Effort(cluster=word), "check": False, "force": True}
    onnxq.quantize("model.onnx", "q.onnx", recipe, data="data.npz", **options)
    return json.loads(Path("kept.ranges").read_text())


def test_another_model_or_other_data_at_the_same_path_are_opened_anew() -> None:
    with in_this_process(1) as found:
        calibrated(found.scheduler_address)
        for save in (save_model, save_data):
            save(3)
            again = calibrated(found.scheduler_address)
            assert again == calibrated(found.scheduler_address) == calibrated(None)


def another_model(table: dict[str, Any]) -> None:
    table["model"] = "another"


def other_data(table: dict[str, Any]) -> None:
    table["data"] = "other"


def fewer_samples(table: dict[str, Any]) -> None:
    table["samples"] -= 1


def of_each(**values: object) -> Callable[[dict[str, Any]], None]:
    def lie(table: dict[str, Any]) -> None:
        for summary in table["summaries"].values():
            summary.update(values)

    return lie


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (another_model, "reads another model at '.*model.onnx' than this process"),
        (other_data, "gets other samples of --data '.*data.npz' than this process"),
        (fewer_samples, "sent something else than what it saw of the shard"),
        (of_each(momentum=0.5), "sent something else than what it saw of the shard"),
        (of_each(trail=None), "sent something else than what it saw of the shard"),
        (of_each(axis=1), "sent something else than what it saw of the shard"),
        (of_each(channel_low=[0.0], channel_high=[0.0]), "sent something else than what it saw"),
    ],
    ids=["model", "data", "samples", "momentum", "trail", "axis", "channels"],
)
def test_what_is_seen_of_others_is_refused_and_not_kept(
    lie: Callable[[dict[str, Any]], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(real := shards.observe_shard)
    def lies(*arguments: Any) -> bytes:
        lie(table := json.loads(real(*arguments)))
        return json.dumps(table).encode()

    with in_this_process(1) as found:
        with monkeypatch.context() as lying:
            lying.setattr(shards, "observe_shard", lies)
            with pytest.raises(BadRecipe, match=rf"^worker tcp://\S+ {said}"):
                calibrated(found.scheduler_address)
        assert calibrated(found.scheduler_address) == calibrated(None)


def test_ranges_of_scaled_channels_are_those_of_one_process() -> None:
    gain = np.where(np.arange(96) % 32 == 7, np.float32(100), np.float32(1))
    text = """g (float[n, 96] x) => (float[n, 48] y) {
        h = LayerNormalization <axis = -1> (x, G) a = MatMul(h, W) r = Relu(a) y = MatMul(r, V) }"""
    weights = {"G": gain, "W": tiny.normal(96, 128) / gain[:, None], "V": tiny.normal(128, 48)}
    tiny.save(tiny.model(text, weights), Path())
    np.savez("data.npz", x=tiny.normal(16, 40, 96))
    recipe, made = onnxq.Recipe("w8a8", calibration="minmax", keep_slow=True, effort="quick"), []
    for jobs in (1, 2):
        options = {"target": "onnx", "data": "data.npz", "effort": Effort(jobs=jobs), "check": False, "force": True}
        result = onnxq.quantize("model.onnx", "q.onnx", recipe, **options)
        assert any("channels were scaled" in note for note in result.notes)
        made.append(Path("q.onnx").read_bytes())
    assert made[0] == made[1]


def test_a_worker_prepares_the_model_for_all_that_may_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data at a path of this folder are those that it opens in another one."""
    text = "g (float[n, 96] x) => (float[n, 48] y) { m = ReduceMean <axes = [1]> (x) d = Sub(x, m) y = MatMul(d, w) }"
    tiny.save(tiny.model(text, {"w": tiny.normal(96, 48)}), tmp_path)
    job = open_job("model.onnx", onnxq.Recipe("w8a8", keep_slow=True), "onnx", "data.npz", also=["uint4"])
    by = shards.opened_by(job)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = shards.open_again(by)
    assert hash_model(again.model) == hash_model(job.model)
    assert hash_model(again.model) != hash_model(shards.open_again(dataclasses.replace(by, also=())).model)
    assert again.data is not None and again.data.hash() == by.data


def test_a_tokenizer_at_a_path_of_this_folder_is_the_same_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tok").mkdir()
    corpora.tokenizer(tmp_path / "tok")
    corpora.text(tmp_path / "t.txt")
    tiny.save(corpora.encoder(), tmp_path)
    sampling = Sampling("t.txt", reading_of(tokenizer="tok"))
    job = open_job("model.onnx", onnxq.Recipe("w8a8", keep_slow=True), "onnx", sampling)
    by = shards.opened_by(job)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = shards.open_again(by)
    assert job.data is not None and again.data is not None and again.data.hash() == by.data
    inputs = {value.name for value in job.model.graph.inputs if value.const_value is None}
    assert next(iter(again.data)).keys() == inputs
