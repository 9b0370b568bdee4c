"""Every command that there is, with any of its options and any value of their types: a kind of case for `mutants.py`.

What options there are is asked of the command line itself, so that the next command is attacked without a word here;
`SOUND` only says with which files one has something to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from attack import mutate, scenes
from attack.mutants_data import Case
from attack.mutants_options import BOUNDS, FORMATS, NUMBERS, traps

from onnxq import cli

Path_ = tuple[str, ...]
#: Scenes and words with which a command has something to do. One that is not here gets its options alone.
SOUND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "analyze": (("model",), ("model.onnx", "-w", "int8")),
    "bench": (("model", "quantized"), ("model.onnx", "q.onnx", "--seconds", "0.01", "--threads", "1")),
    "benchmark": (("model",), ("model.onnx", "-w", "int8")),
    "calibrate": (("model",), ("model.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out/c.ranges")),
    "check": (("model", "quantized"), ("model.onnx", "q.onnx")),
    "completion": ((), ("bash",)),
    "convert": (("quantized",), ("q.onnx", "--to", "onnx", "-o", "out/c.onnx")),
    "decode": (("encoded",), ("w.gguf", "-o", "out/w.npz")),
    "dequantize": (("quantized",), ("q.onnx", "-o", "out/f.onnx")),
    "doctor": (("model",), ("model.onnx",)),
    "encode": (("model",), ("data.npz", "-w", "int8", "-o", "out/w.npz")),
    "explain": ((), ()),
    "export": (("model",), ("model.onnx", "-o", "out/b")),
    "import-weights": (("foreign", "model"), ("theirs", "-o", "out/i.onnx")),
    "inspect": (("quantized",), ("q.onnx",)),
    "lora base": (("base",), ("base.onnx", "-o", "out/t.onnx")),
    "lora convert": (("base",), ("base.onnx", "a.onnx_adapter", "-o", "out/peft")),
    "lora merge": (("base",), ("base.onnx", "a.onnx_adapter", "-o", "out/m.onnx")),
    "lora train": (
        ("base",),
        (*("base.onnx", "--data", "base.npz", "--labels", "y", "-o", "out/a.onnx_adapter"), "--epochs", "1"),
    ),
    "plan": (("model",), ("model.onnx",)),
    "profile": (("model",), ("model.onnx", "-o", "out/p.json")),
    "quantize": (("model",), ("model.onnx", "-s", "w8a8", "--data", "data.npz", "-o", "out/q.onnx")),
    "report": (("quantized", "model", "report", "plan"), ("q.onnx", "-o", "out/page.html")),
    "search": (("model",), ("model.onnx", "--effort", "quick", "--report", "out/s.json")),
    "train": (
        ("model",),
        (*("model.onnx", "--data", "data.npz", "-o", "out/t.onnx", "--steps", "2"), "--block-steps", "1"),
    ),
    "verify": (("bundle",), ("bundle",)),
}
#: What stands for a file or a folder that is read.
READ = (
    *("model.onnx", "q.onnx", "data.npz", "bundle", "base.onnx", "a.onnx_adapter", "peft", "report.json", "plan.json"),
    *(
        "w.gguf",
        "w.safetensors",
        "theirs",
        "pipe",
        "/dev/zero",
        "/proc/kmsg",
        "/proc/self/mem",
        ".",
        "link",
        "no/such",
        "",
        "n" * 5000,
        "\udcff",
        "out",
    ),
    *(
        "file:///etc/passwd",
        "memory://no/such",
        "http://127.0.0.1:1/x.onnx",
        "s3://",
        "http://",
        "simplecache::http://",
    ),
)
#: What stands for a file or a folder that is written: what may be made lies in `out`.
WRITTEN = (
    *("out/x.onnx", "out/x.json", "out/x.html", "out/x.npz", "out/x", "out/x.onnx_adapter", "out/x.png", "out/x.txt"),
    *("model.onnx", "data.npz", "pipe", "/dev/full", ".", "out", "", "no/such/x.onnx", "n" * 5000, "link", "bundle"),
    *("memory://out/x.onnx", "http://127.0.0.1:1/x.onnx", "out/\x1b[2J.onnx", "out/a\nb.json", "\udcff/x"),
)
#: Options of the same name mean the same everywhere. Those that are not here get what their type says.
TEXTS: dict[str, tuple[str, ...]] = {
    "data": ("data.npz", "base.npz", "pipe", ".", "/dev/zero", "no/such", "", "json:loads", "x:y:z", "\0", "w.gguf"),
    "cluster": ("local:0", "local:x", "x:y", "", "\0", "json:loads", "os:getcwd", "tcp://", "tls://x", "dask:x"),
    "budget": BOUNDS,
    "at": BOUNDS,
    "formats": FORMATS,
    "weights": (*FORMATS, "nf4_dq", "uniform999", "uniform3", "int5", "mxfp4"),
    "granularity": ("tensor", "channel", "block32", "block0", "block" + "9" * 30, "x", "block32/2"),
    "evaluate": ("json:loads", ":", "x", "", "builtins:len"),
    "loss": ("json:loads", ":", "x", "", "builtins:len", "adapters:constant", "builtins:print"),
    "labels": ("y", "x", "t", "", "\0", "\x1b[2J"),
    "logits": ("y", "h", "x", "none", "", "\x1b[2J"),
    "metric": ("top1", "nll", "kld", "psnr", "", "TOP1", "x"),
    "lora": ("8", "0", "*=0", "*=" + "9" * 30, "re:(=3", "a=b=c", "=", "*", "*down*=2", "-1", "1e3"),
    "learn": ("scales", "codes", "weights", "ranges", "floats", "", ",", "x", "codes,codes"),
    "device": ("cpu", "cuda", "meta", "x", "", "cpu:99", "mps", "\0", "xla"),
    "makers": ("normal", "x", "", "normal=nan", "laplace"),
    "sizes": ("8x8", "0x0", "9999999x9999999", "x", "", "-1x4", "1e9x1"),
    "keep": ("re:(", "*", "", "re:(a*)*$", "[", "\0"),
    "sets": ("*=nf4", "=", "*=int3+gptq", "up=keep", "*=", "a=b=c", "re:(x+x+)+y=int4"),
    "max_memory": ("1", "0", "1GB", "9e9", "nan", "-1", "9" * 17 + "T"),
    "memory": ("1", "0", "1GB", "9e9", "nan", "-1", "1kB"),
    "shard_size": ("1", "0", "1kB", "layer", "9e9", "x", "-1"),
    "checkpoint_every": ("1", "0", "0s", "1e9s", "nan"),
    "shard": ("1/2", "0/2", "3/2", "x", "1/" + "9" * 30),
    "fail_below": ("sqnr=30", "sqnr=nan", "x=1", "", "=", "sqnr=1e999", "cosine=2", "sqnr=1,sqnr=2"),
    "preprocess": ("size=8x8", "x", "mean=nan", "", "size=0x0", "a=b=c"),
    "lengths": ("1", "8", "0", "-1", "x", "1,2", "8:1", "9" * 30, "", "nan"),
    "words": ("scheme", "int4", "", "x", "\x1b[2J", "w4a16", "n" * 5000, "../x", "%s"),
    "ignore": ("x", "", "*", "\x1b[2J"),
    "levels": ("0", "1,2", "nan", "", "x", "1," * 999, "0,0", "inf,1"),
    "percentile": (*NUMBERS, "99.9,99.99", "100,0"),
    "momentum": NUMBERS,
    "bins": (*NUMBERS, "16", "4294967297"),
    "add": ("=", "a=", "=b", "up=a", "a=up", "a=b=c", "up=y", "new=x", "new=w", "\x1b[2J=x"),
}


def commands() -> dict[str, click.Command]:
    """All of them, by their words; of a group those that are in it."""

    def below(group: click.Group, words: Path_) -> Iterator[tuple[str, click.Command]]:
        for word in group.commands:
            found = group.commands[word]
            if isinstance(found, click.Group):
                yield from below(found, (*words, word))
            else:
                yield " ".join((*words, word)), found

    return dict(below(cli.main, ()))  # type: ignore[arg-type]


def _value(option: click.Parameter, r: random.Random) -> str:
    """Any that somebody might give."""
    from onnxq.cli._options import WRITTEN as OUTPUTS

    kind, name = option.type, option.name or ""
    if r.random() < 0.05:
        return r.choice([*mutate.TEXTS[:8], *NUMBERS])
    if name in TEXTS:
        return r.choice(TEXTS[name])
    if isinstance(kind, click.Choice):
        return r.choice(list(map(str, kind.choices)))
    if isinstance(kind, click.Path):
        return r.choice(WRITTEN if name in OUTPUTS or name in ("progress", "save_profile") else READ)
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        return r.choice([*NUMBERS, "1", "2", "1"])
    return r.choice([*mutate.TEXTS, *NUMBERS])


def command(case: Case, folder: Path) -> list[str]:
    """A command with options of any value."""
    every = commands()
    name = list(every)[case.command % len(every)]
    places, words = SOUND.get(name, ((), ()))
    scenes.put(folder, *places)
    traps(folder)
    said, options = list(words), every[name].params
    for seed in case.seeds:
        r = random.Random(seed)
        option = r.choice(options)
        if isinstance(option, click.Argument):
            at = [i for i, word in enumerate(words) if i == 0 or (not word.startswith("-") and i == 1)]
            if at and said:
                said[r.choice(at)] = _value(option, r)
            else:
                said.append(_value(option, r))
        elif isinstance(option, click.Option):
            spelled = r.choice([*option.opts, *option.secondary_opts])
            said += [spelled] if option.is_flag else [spelled, _value(option, r)]
    return [*name.split(), *said]


#: Stems of files; of which there is one, unlike those in `READ`.
NAMES = (
    *("\udcff", "a\nb", "\x1b[2J", " ", "-", "re:x", "[bold]", "%s{0}", "x=y", "a'b", "é" * 120, "n" * 245, "n" * 250),
    *("\u202ex", "*", "?", "a,b", "CON", "$HOME", "`ls`", "#", "a:b", "~", "..x", "x.onnx"),
)


def named(case: Case, folder: Path) -> list[str]:
    """A command with sound files, one of which has an odd name, and perhaps its output as well."""
    every = {name: sound for name, sound in SOUND.items() if any(word.endswith(".onnx") for word in sound[1][:2])}
    name = list(every)[case.command % len(every)]
    places, words = every[name]
    scenes.put(folder, *places)
    (folder / "out").mkdir()
    stem = case.r.choice(NAMES)
    read = next(word for word in words if word.endswith(".onnx"))
    (folder / read).rename(folder / f"{stem}.onnx")
    is_output = case.seeds[0] % 2
    said = [f"./{stem}.onnx" if word == read else word for word in words]
    said = [f"out/{stem}{Path(word).suffix}" if is_output and word.startswith("out/") else word for word in said]
    return [*name.split(), *said]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"command": command, "named": named}
