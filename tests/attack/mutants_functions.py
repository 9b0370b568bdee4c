"""Functions of the user's own that take, raise or give what nobody expects: a kind of case for `mutants.py`."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack import mutants_commands, scenes
from attack.mutants_data import Case
from attack.mutants_options import traps

#: What functions give or raise, by name; `_` is what they were called with.
GIVES = {
    "none": "None",
    "text": "'\\x1b[2J' * 99",
    "huge": "10 ** 400",
    "longer": "10 ** 6000",
    "fraction": "Fraction(10 ** 400, 3)",
    "number": "0.5",
    "nan": "float('nan')",
    "half_nan": "np.float16('nan')",
    "boolean": "np.bool_(True)",
    "complex": "1j",
    "array": "np.ones(3)",
    "thing": "object()",
    "module": "np",
    "unspeakable": "Unspeakable('x')",
    "real": "OddReal()",
    "lambda_": "lambda: 1",
    "empty": "[]",
    "mixed": "[{'x': ONE}, 3]",
    "dicts": "[{'x': ONE}] * 3",
    "wrong_keys": "[{1: ONE}]",
    "ragged": "[{'x': [[1], [1, 2]]}]",
    "nothing_in_it": "[{'x': None}]",
    "strings": "[{'x': 'abc'}]",
    "dates": "[{'x': np.zeros((1, 16), 'datetime64[s]')}]",
    "fields": "[{'x': np.zeros((1, 16), [('a', 'f4')])}]",
    "unreadable": "[{'x': Unreadable()}]",
    "odd_mapping": "[OddMapping(x=1)]",
    "odd_iterable": "OddIterable()",
    "classless": "Classless()",
    "silent": "Silent(1)",
    "first": "next(iter(_[0].values())).sum()",
    "imaginary": "next(iter(_[0].values())).sum() * 1j",
    "sparse": "next(iter(_[0].values())).sum().reshape(1, 1).to_sparse()",
    "many": "next(iter(_[0].values()))",
    "zeroed": "next(iter(_[0].values())).zero_().sum()",
    "cleared": "(next(iter(_[0].values())).sum(), _[0].clear(), _[2].clear())[0]",
    "infinite": "next(iter(_[0].values())).sum() / 0",
    "far": "torch.ones((), device='meta', requires_grad=True)",
    "leaf": "torch.ones((), requires_grad=True)",
    "late": "Late.apply(next(iter(_[0].values())).sum())",
    "integer": "torch.tensor(1)",
    "moved": "(os.chdir('/'), [{'x': ONE}] * 4)[1]",
    "unprinted": "(setattr(sys, 'stdout', None), [])[1]",
    "strict": "(np.seterr(all='raise'), [{'x': ONE}] * 4)[1]",
    "through_sparse": "torch.sparse.sum(next(iter(_[0].values())).to_sparse())",
}
RAISES = {
    "exits": "SystemExit(0)",
    "exits_in_words": "SystemExit('words\\nand more')",
    "generator_ends": "GeneratorExit()",
    "stops": "StopIteration(3)",
    "mute": "Mute()",
    "basic": "Basic('b')",
    "memory": "MemoryError()",
    "deep": "RecursionError()",
    "warns": "UserWarning('w')",
    "broken": "BrokenPipeError(32, 'x')",
    "full": "OSError(28, 'x')",
    "key": "KeyError('a\\nb')",
    "unicode": "UnicodeDecodeError('utf-8', b'\\xff', 0, 1, 'x')",
    "group": "ExceptionGroup('g', [ValueError('v')])",
}
TAKES = {
    "two": "a, b",
    "none_at_all": "",
    "named": "*, a",
    "three": "a, b, c",
    "session_": "session",
    "many_more": "a, b, c, d, e, f, g, h, i, j, *k, l, **m",
}
#: Callables of libraries.
FOREIGN = (
    *("json:loads", "json:load", "os:getcwd", "builtins:len", "builtins:print", "builtins:dict", "builtins:type"),
    *("builtins:map", "builtins:object", "builtins:int", "operator:add", "sys:exit", "json:JSONDecoder", "math:pi"),
    *("fns:", ":fns", "fns:a.b", "..x:y", "fns:two:3", "no_such:f", "math:nothing", "distributed:LocalCluster.x"),
)
HEAD = """
import os, sys
import numpy as np
from fractions import Fraction
from numbers import Real
ONE = np.ones((1, 16), np.float32)
class Basic(BaseException): pass
class Mute(Exception):
    def __str__(self): raise ValueError("mute")
class Unspeakable(str):
    def __repr__(self): raise ValueError("unspeakable")
    __str__ = __repr__
class OddReal(int):
    def __float__(self): raise ValueError("odd")
class Unreadable:
    def __array__(self, *a, **k): raise Basic("unreadable")
class OddMapping(dict):
    def items(self): raise RuntimeError("items")
class OddIterable:
    def __iter__(self): raise Basic("iter")
class Classless:
    __class__ = property(lambda self: 1 / 0)
class Silent(np.complex64):
    def __repr__(self): raise RuntimeError("silent")
class Class: pass
class Failing:
    def __init__(self): raise KeyError("x")
class NoCluster:
    scheduler_address = 3
    def close(self): raise Basic("close")
class Unclosed:
    scheduler_address = "tcp://x"
class Property:
    @property
    def scheduler_address(self): raise Basic("address")
class Signed:
    __signature__ = 3
    def __call__(self, *_): return 0.5
signed = Signed()
"""
TORCH = """
import torch
class Late(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, g): raise Basic("late")
"""


def _module() -> str:
    lines = [HEAD, TORCH if importlib.util.find_spec("torch") else ""]
    for name, value in GIVES.items():
        lines.append(f"def {name}(*_): return {value}")
        lines.append(f"def {name}_yielded(*_):\n yield {{'x': ONE}}\n yield {value}")
    for name, error in RAISES.items():
        lines.append(f"def {name}(*_): raise {error}")
        lines.append(f"def {name}_late(*_):\n yield {{'x': ONE}}\n raise {error}")
    lines += [f"def {name}({parameters}): return 0.5" for name, parameters in TAKES.items()]
    return "\n".join(lines)


MODULE = _module()
CLASSES = ("Class", "Failing", "NoCluster", "Unclosed", "Property", "signed", "OddIterable", "OddMapping")
NAMES = (
    *(f"{name}{end}" for name in GIVES for end in ("", "_yielded")),
    *(f"{name}{end}" for name in RAISES for end in ("", "_late")),
    *TAKES,
    *CLASSES,
)
#: Options that name a function, and a command that has each.
PLACES = (
    ("train", "--loss"),
    ("lora train", "--loss"),
    ("quantize", "--evaluate"),
    ("quantize", "--cluster"),
    ("quantize", "--data"),
    ("calibrate", "--data"),
    ("check", "--data"),
    ("analyze", "--data"),
    ("train", "--data"),
    ("doctor", "--data"),
)


def function(case: Case, folder: Path) -> list[str]:
    """A command that calls a function, of any signature and result."""
    r = case.r
    name, option = PLACES[case.command % len(PLACES)]
    places, words = mutants_commands.SOUND[name]
    scenes.put(folder, *places)
    traps(folder)
    (folder / "fns.py").write_text(MODULE)
    chosen = random.Random(case.seeds[0]).choice(NAMES) if case.seeds and r.random() < 0.85 else None
    word = r.choice(FOREIGN) if chosen is None else f"fns:{chosen}"
    more = {"quantize": ["--effort", "quick"], "train": ["-f"]}.get(name, [])
    return [*name.split(), *words, option, word, *more]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"function": function}
