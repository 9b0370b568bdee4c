"""Every output option of every command: what is read is never written, and what is there is not replaced unasked.

Which commands and options there are is asked of the command line itself; `mutants_commands.SOUND` gives each something
to read. So a new option whose file does not go through the guard fails here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest
from attack import scenes
from attack.mutants_commands import SOUND, commands
from click.testing import CliRunner

from onnxq import cli
from onnxq.bundles.manifest import MANIFEST
from onnxq.cli._options import WRITTEN
from onnxq.files import mirror
from onnxq.output.place import REPORT

#: Commands that need torch to come as far as their outputs.
TORCH = ("train", "lora train")
#: Written, though by a name of its own; it is read first where it is there.
ALSO = {"progress"}
WRITING = [
    (name, option.opts[0])
    for name, command in commands().items()
    for option in command.params
    if isinstance(option, click.Option) and isinstance(option.type, click.Path) and option.name in WRITTEN | ALSO
]


@pytest.fixture(autouse=True)
def quick_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxq.bundles import measure

    monkeypatch.setattr(measure, "SECONDS", 0.001)


def scene(name: str, folder: Path) -> list[str]:
    """What a command reads, models with their weights in files of their own; the words without those of outputs."""
    places, words = SOUND[name]
    scenes.put(folder, *places)
    (folder / "out").mkdir()
    for path in folder.glob("*.onnx"):
        proto = onnx.load(path)
        path.unlink()
        onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location=f"{path.stem}.weights")
    return list(words)


def without(words: list[str], options: set[str]) -> list[str]:
    """The words without these options and their values."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if word not in options and before not in options]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def named(name: str, option: str) -> set[str]:
    """The option by all its names, and the outputs that `SOUND` names."""
    given = next(each for each in commands()[name].params if option in each.opts)
    return {*given.opts, "-o"} if "-o" in given.opts else {*given.opts}


def read_by(name: str, words: list[str], folder: Path) -> Iterator[Path]:
    """The files that a command line reads, and those that the models among them lie in."""
    for word in words:
        path = folder / word
        if path.is_file():
            yield path
            yield from [weights for weights in [path.with_suffix(".weights")] if weights.exists()]
        elif path.is_dir() and word not in ("", "out"):
            yield from sorted(each for each in path.iterdir() if each.is_file())


def run(name: str, words: list[str]) -> tuple[int, str]:
    found = CliRunner().invoke(cli.main, [*name.split(), *words])
    return found.exit_code, found.output


def test_there_are_outputs_of_all_kinds() -> None:
    """So that none is overlooked for its name: whatever else takes a path is read."""
    assert {"-o", "--output"} & {option for _, option in WRITING}
    assert len({name for name, _ in WRITING}) >= 18
    reading = {
        option.name
        for command in commands().values()
        for option in command.params
        if isinstance(option, click.Option)
        and isinstance(option.type, click.Path)
        and option.name not in WRITTEN | ALSO
    }
    assert reading == {
        "recipe",
        "plan_file",
        "profile",
        "like",
        "tokenizer",
        "reference",
        "against",
        "teacher",
        "add_to",
    }


def sound(name: str, option: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a command that succeeds in that folder, without one of its options."""
    if name in TORCH:
        pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    return without(scene(name, folder), named(name, option))


@pytest.mark.parametrize(("name", "option"), WRITING, ids=lambda word: word.replace(" ", "-"))
def test_what_is_read_stays_as_it_is(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    words = sound(name, option, tmp_path, monkeypatch)
    before, linked = contents(tmp_path), tmp_path / "linked.onnx"
    files = list(dict.fromkeys(read_by(name, words, tmp_path)))
    assert files or name == "benchmark"
    for path, forced in itertools.product(files, ([], ["--force"])):
        if forced and not any("--force" in each.opts for each in commands()[name].params):
            continue
        for place in (path, linked):
            linked.unlink(missing_ok=True)
            if place is linked:  # the same file by a name that a model may have
                linked.hardlink_to(path)
            code, said = run(name, [*words, *forced, option, os.path.relpath(place, tmp_path)])
            assert code in (1, 2), (path, place, said)
            linked.unlink(missing_ok=True)
            assert contents(tmp_path) == before, (path, place, said)


SUFFIXES = (".onnx", ".json", ".html", ".npz", ".png", ".onnx_adapter", ".ranges")


@pytest.mark.parametrize(("name", "option"), WRITING, ids=lambda word: word.replace(" ", "-"))
def test_what_is_there_is_not_replaced_unasked(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    words = sound(name, option, tmp_path, monkeypatch)
    places = [tmp_path / f"precious{suffix}" for suffix in SUFFIXES] + [tmp_path / "precious"]
    for path in places:
        path.write_bytes(b"precious")
    (tmp_path / "link.onnx").symlink_to("precious.onnx")
    (tmp_path / "dangling.onnx").symlink_to("nothing")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_bytes(b"precious")
    before = contents(tmp_path)
    for path in (*places, tmp_path / "link.onnx", tmp_path / "dangling.onnx", tmp_path / "folder"):
        code, said = run(name, [*words, option, path.name])
        assert code in (1, 2) or path.name == "folder", (path, said)  # where an adapter of PEFT may be put
        now = contents(tmp_path)
        assert now == before if code else now.items() >= before.items(), (path, said)


USUAL = {"--html": ".html", "--plot": ".png", "--ranges": ".ranges", "--evidence": ".npz"}


@pytest.mark.parametrize(("name", "option"), WRITING, ids=lambda word: word.replace(" ", "-"))
def test_what_is_in_a_store_is_replaced_where_that_is_asked_for(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    fsspec = pytest.importorskip("fsspec")
    words, given = sound(name, option, tmp_path, monkeypatch), SOUND[name][1]
    store, names = fsspec.filesystem("memory"), named(name, option)
    if store.exists("/outputs"):
        store.rm("/outputs", recursive=True)
    suffixes = [Path(word).suffix for before, word in itertools.pairwise(given) if before in names]
    at = f"memory://outputs/there{(suffixes or [USUAL.get(option, '.json')])[0]}"
    monkeypatch.setattr(mirror, "_outputs", {})
    if run(name, [*words, option, at])[0]:
        pytest.skip("lacks another option")
    made = store.find("/outputs")
    assert made or option == "--checkpoint"  # which goes when the training is done
    if option in ("--ranges", "--evidence") or not any("--force" in each.opts for each in commands()[name].params):
        return  # what is there is read
    for path in made:
        is_report = path.rpartition("/")[2] in (MANIFEST, REPORT)  # by which a folder is known to be ours
        if path.endswith((".json", ".html", ".npz", ".onnx", ".ranges")) and not is_report:
            store.pipe_file(path, b"theirs")
    monkeypatch.setattr(mirror, "_outputs", {})
    code, said = run(name, [*words, "--force", option, at])
    assert code == 0, said
    assert all(store.cat_file(path) != b"theirs" for path in store.find("/outputs")), said
