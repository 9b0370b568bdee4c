"""Cases of functions that the user names: what they take, raise and give (`every.py`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from attack import mutants_commands, mutants_functions, scenes
from attack.hostile import Hostile

HAS_TORCH = importlib.util.find_spec("torch") is not None


def calling(command: str, option: str, word: str) -> Callable[[Path], list[str]]:
    """The command with sound files, and one of the functions of `mutants_functions`, or of a library."""

    def make(folder: Path) -> list[str]:
        places, words = mutants_commands.SOUND[command]
        scenes.put(folder, *places)
        (folder / "out").mkdir()
        (folder / "fns.py").write_text(mutants_functions.MODULE)
        effort = ["--effort", "quick"] * (command == "quantize")
        return [*command.split(), *words, option, word if ":" in word else f"fns:{word}", *effort]

    return make


def loss(word: str, says: str, code: int = 1, command: str = "train") -> Hostile:
    return Hostile(
        calling(command, "--loss", word), says if HAS_TORCH else "needs torch", code=code if HAS_TORCH else 1
    )


def score(word: str, says: str) -> Hostile:
    return Hostile(calling("quantize", "--evaluate", word), says)


def data(word: str, says: str) -> Hostile:
    return Hostile(calling("calibrate", "--data", word), says)


def cluster(word: str, says: str) -> Hostile:
    return Hostile(calling("quantize", "--cluster", word), says)


ARGUMENTS = "outputs, labels and inputs"
CASES = {
    "loss of other arguments": loss("json:loads", f"--loss json:loads is called with {ARGUMENTS}, but takes 's', "),
    "loss of two arguments": loss("two", f"--loss fns:two is called with {ARGUMENTS}, but takes 'a' and 'b'"),
    "loss of no argument, for adapters": loss("none_at_all", "but takes nothing", command="lora train"),
    "loss of names only": loss("named", f"is called with {ARGUMENTS}, but takes 'a=…'"),
    "loss of C that does not say what it takes": loss("builtins:dict", f"with {ARGUMENTS}, failed with TypeError"),
    "loss that is complex": loss("imaginary", "gave a tensor of torch.complex64"),
    "loss that is sparse": loss("sparse", "not one real number"),
    "loss of no device": loss("far", "on meta, not one real number"),
    "loss that cannot be printed": loss("unspeakable", "gave something of type Unspeakable"),
    "loss whose gradients fail": loss("late", "--loss, when its gradients were computed, failed with Basic: late"),
    "loss whose gradients fail, for adapters": loss("late", "failed with Basic: late", command="lora train"),
    "loss that goes through a sparse tensor": loss("through_sparse", "", code=0),
    "loss without words": loss("mute", "failed with Mute: Mute"),
    "score beyond floats": score("huge", "gave 1000000000000000000000000000000000000000… for 'model.onnx'"),
    "score of more digits than are printed": score("longer", "gave something of type int for 'model.onnx'"),
    "score of a fraction beyond floats": score("fraction", "gave something of type Fraction"),
    "score of an odd class": score("real", "gave something of type OddReal"),
    "score that hides its class": score("classless", "gave something of type Classless for"),
    "score that does not show itself": score("silent", "gave something of type Silent for"),
    "data that hide their class": data("classless", "fns:classless failed with ZeroDivisionError"),
    "score of two arguments": score("two", "is called with the path of a model, but takes 'a' and 'b'"),
    "score by an exception that is none": score("basic", "failed with Basic: b"),
    "score without a function": score("json:", "--evaluate 'json:' is not spelled module:function"),
    "score by a part of a word": score("fns:two:3", "'fns:two:3' is not spelled module:function"),
    "score by nothing of that name": score("json:nothing", "--evaluate 'json:nothing': 'json' has no 'nothing'"),
    "score by a relative module": score("..x:y", "is not spelled module:function"),
    "data that end as generators do": data("generator_ends", "failed with GeneratorExit"),
    "data that fail as nothing does": data("basic_late", "failed with Basic: b"),
    "data that cannot be gone through": data("odd_iterable", "failed with Basic: iter"),
    "data that are no arrays": data("unreadable", "failed with Basic: unreadable"),
    "data that are nothing": data("none", "fns:none gave None, neither a list of dicts nor a generator of them"),
    "data by a function of two": data("two", "--data 'fns:two' is called without anything, but takes 'a' and 'b'"),
    "data of another folder": data("moved", "fns:moved changed the working folder"),
    "data without a place to print": data("unprinted", "holds no samples"),
    "score of another folder": score("moved", "changed the working folder"),
    "cluster of other arguments": cluster("json:loads", "is called without anything, but takes 's', "),
    "cluster that exits": cluster("sys:exit", "--cluster 'sys:exit', called without anything, failed with SystemExit"),
    "cluster that is a text": cluster("os:getcwd", "not a Dask cluster"),
    "cluster that is none": cluster("NoCluster", "makes something of type NoCluster, not a Dask cluster"),
    "cluster that fails when asked": cluster("Property", "failed with Basic: address"),
    "cluster without certificates": cluster("tls://127.0.0.1:1", "no Dask scheduler answers at 'tls://127.0.0.1:1'"),
    "cluster of a transport that is not there": cluster("ucx://127.0.0.1:1", "no Dask scheduler answers at 'ucx://"),
}  # fmt: skip
if importlib.util.find_spec("distributed") is None:
    CASES = {
        name: Hostile(case.make, "needs Dask") if name.startswith("cluster") else case for name, case in CASES.items()
    }
