"""The commands: which there are, in groups, found by their files and imported when they are asked for."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import click

from onnxq.cli._examples import EXAMPLES
from onnxq.errors import Exit, NothingToDo
from onnxq.files import mirror

#: Of the group, and of each command: one that is asked on its own is to know the same words.
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
#: Where the group keeps the words of its command line.
WORDS = "onnxq.words"
#: What is shown together. A command that none names comes last.
GROUPS = {
    "Make a quantized model": ("quantize", "plan", "search", "train", "lora"),
    "Look at models": ("inspect", "check", "doctor", "report", "bench", "analyze", "verify"),
    "Turn models and weights into others": ("convert", "dequantize", "import-weights", "export", "encode", "decode"),
    "Prepare": ("calibrate", "profile"),
    "Learn": ("explain", "benchmark", "completion"),
}
#: Which options of a command are shown together, by their names; the others come last.
SECTIONS = {
    "What it becomes": (
        *("output", "scheme", "weights", "target", "recipe", "keep", "sets", "block_size", "granularity", "symmetric"),
        *("algorithm", "balance", "reduce_range", "requantize", "accuracy_level", "keep_slow"),
    ),
    "Data": (
        *("data", "preprocess", "tokenizer", "lengths", "limit", "seed", "metric", "labels", "logits", "evaluate"),
        *("max_drop", "shard"),
    ),
    "Ranges of activations": ("calibration", "percentile", "momentum", "bins", "ranges", "evidence"),
    "What wins, and how much is measured": (
        *("prefer", "effort", "min_sqnr", "budget", "formats", "at", "points", "latency", "by_layer", "fail_below"),
        *("profile", "save_profile", "threads", "batches", "seconds", "no_check", "strict"),
    ),
    "Work": ("jobs", "max_memory", "checkpoint_every"),
    "Again": ("plan_file", "like"),
    "What is written": ("json_file", "as_json", "report", "html", "trace", "plot", "force"),
}
#: Fewer options need no sections.
FEW = 12


class Commands(MutableMapping[str, click.Command]):
    """By word; a module is imported when its command is asked for.

    Args:
        folder: with one file for each, dashes for underscores.
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("[!_]*.py"))
        self._files = {path.stem.replace("_", "-"): path for path in files}
        self._loaded: dict[str, click.Command] = {}

    def short_help(self, word: str) -> str:
        """What a command is for, read off its file: importing all of them takes a second."""
        tree = ast.parse(self._files[word].read_text(encoding="utf-8"))
        calls = (each for node in ast.walk(tree) if isinstance(node, ast.Call) for each in node.keywords)
        return next((str(ast.literal_eval(each.value)) for each in calls if each.arg == "short_help"), "")

    def __getitem__(self, word: str) -> click.Command:
        if word not in self._loaded:
            stem = self._files[word].stem
            found = getattr(importlib.import_module(f"onnxq.cli.{stem}"), stem)
            if isinstance(found, click.Group):  # which has commands of its own, and help of theirs
                self._loaded[word] = found
                return found
            lines = "\n".join(f"  {line}" for line in EXAMPLES.get(word, ()))
            self._loaded[word] = Sectioned(
                word,
                callback=found.callback,
                params=found.params,
                help=found.help,
                short_help=found.short_help,
                epilog=found.epilog or (f"\b\nExamples:\n{lines}" if lines else None),
                context_settings=SETTINGS | found.context_settings,
            )
        return self._loaded[word]

    def __setitem__(self, word: str, command: click.Command) -> None:
        self._loaded[word] = command

    def __delitem__(self, word: str) -> None:
        del self._files[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def grouped(self) -> Iterator[tuple[str, list[str]]]:
        """The words of each group that there are."""
        left = sorted(self)
        for title, words in (*GROUPS.items(), ("Others", tuple(left))):
            some = [word for word in words if word in left]
            left = [word for word in left if word not in some]
            if some:
                yield title, some


class Sectioned(click.Command):
    """A command whose options are shown in sections, where there are many."""

    def invoke(self, ctx: click.Context) -> Any:
        """Where nothing is to be done, that is a failure for whoever named a file that is to be written, and a table
        for a program that reads one."""
        try:
            return super().invoke(ctx)
        except NothingToDo as nothing:
            if any(ctx.params.get(name) is not None for name in ("output", "evidence")):
                nothing.exit_code = Exit.CANNOT
            if nothing.exit_code or not ctx.params.get("as_json"):
                raise
            click.echo(json.dumps({"output": None, "nothing_to_do": mirror.as_given(str(nothing))}, indent=1))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [(param.name, row) for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        if len(shown) <= FEW:
            super().format_options(ctx, formatter)
            return
        for title, names in (*SECTIONS.items(), ("Others", tuple(name for name, _ in shown))):
            rows = [row for name, row in shown if name in names]
            shown = [(name, row) for name, row in shown if name not in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
