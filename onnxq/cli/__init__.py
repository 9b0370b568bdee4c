"""The command line: parse, call, print. The one place where an exception becomes an exit code.

One file each; the file name is the command's word, with dashes for underscores, and the name of the function inside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from onnxq.boundary import as_sentence
from onnxq.cli._commands import SETTINGS, WORDS, Commands
from onnxq.errors import Exit, OnnxqError
from onnxq.files import mirror
from onnxq.version import __version__

_EXIT_STATUS = """\b
Exit status: 0 done, 1 it cannot be done, 2 the command line does not parse, 3 done but for a check;
'onnxq explain exit 1' says more of one, 'onnxq explain' lists all.
"""
#: What the system says of a stream that takes no more.
_OF_WRITING = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EAGAIN, errno.EINVAL}


class _Errors(click.Group):
    """Turns every exception into a sentence and an exit code (`errors.Exit`)."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Whatever is printed is printed when this returns: what a full disk or a closed pipe does not take is told."""
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()
        except OSError as error:
            _end_unread(error)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> click.Context:
        """What was typed is kept, for reports to say."""
        words = list(args)
        try:
            context = super().make_context(info_name, args, *more, **options)
        except click.ClickException as error:
            _end_unparsed(error)
        except KeyboardInterrupt:  # as in `invoke`: click would call it 1
            _end_interrupted()
        context.meta[WORDS] = words
        if os.environ.get("NO_COLOR"):
            context.color = False
        return context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In groups, without importing any."""
        commands = self.commands
        assert isinstance(commands, Commands)
        for title, some in commands.grouped():
            with formatter.section(title):
                formatter.write_dl([(word, commands.short_help(word)) for word in some])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            found = self._published(ctx)
            sys.stdout.flush()
            return found
        except click.ClickException as error:
            _end_unparsed(error)
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _end_interrupted()
        except Exception as error:
            sentence = error if isinstance(error, OnnxqError) else as_sentence(error)
            if ctx.params.get("debug"):
                traceback.print_exc()
            if _is_of_stdout(error):
                _end_unread(error)
            text = mirror.as_given(str(sentence))
            if sentence.exit_code:
                _tell(text)
            else:
                click.echo(text)
            sys.exit(int(sentence.exit_code))

    def _published(self, ctx: click.Context) -> Any:
        """What the command gives. What it wrote goes to its store though its end is a status, or nobody reads what it
        prints: as what it wrote here is there then."""
        try:
            found = super().invoke(ctx)
        except (SystemExit, OSError) as error:
            if type(error) is SystemExit or (isinstance(error, OSError) and _is_of_stdout(error)):  # not by a signal
                mirror.publish_rest()
            raise
        mirror.publish_rest()
        return found


def _tell(sentence: str) -> None:
    """The last that is said; the exit status says it too where nothing can be printed."""
    with contextlib.suppress(OSError):
        click.echo(f"onnxq: {sentence}", err=True)


def _end_unparsed(error: click.ClickException) -> NoReturn:
    with contextlib.suppress(OSError):
        error.show()
    sys.exit(error.exit_code)


def _end_interrupted() -> NoReturn:
    _tell("interrupted")
    sys.exit(Exit.INTERRUPTED)


def _is_of_stdout(error: Exception) -> bool:
    """Whether what could not be written is what is printed. Of files, `output/write.py` tells in sentences."""
    if not isinstance(error, OSError) or isinstance(error, OnnxqError):
        return False
    return error.filename is None and error.errno in _OF_WRITING


def _end_unread(error: Exception) -> None:
    """Nobody takes what is printed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what the interpreter still wants to flush
    is_closed = isinstance(error, BrokenPipeError)
    why = "nobody reads it any more" if is_closed else getattr(error, "strerror", None) or "the system refused it"
    _tell(f"the output could not be printed: {why}; files that were written stay")
    sys.exit(Exit.UNREAD if is_closed else Exit.CANNOT)


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """The version, and what else decides what is computed and how fast."""
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"onnxq, version {__version__}")
    from onnxq.cli._version import surroundings

    try:
        for word, text in surroundings():
            click.echo(f"{word:8} {text}")
    except OnnxqError as error:  # of a library that was named
        click.echo(f"onnxq: {error}", err=True)
        ctx.exit(int(error.exit_code))
    ctx.exit()


@click.group(
    cls=_Errors,
    commands=Commands(Path(__file__).parent),
    context_settings=SETTINGS,
    epilog=_EXIT_STATUS,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, and those of the library and the runtime.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of what goes wrong.")
def main(debug: bool) -> None:
    """A quantization compiler for ONNX.

    \b
    onnxq quantize model.onnx                        4-bit weights, no data needed
    onnxq quantize model.onnx --data samples.npz     int8 weights and activations
    onnxq quantize model.onnx -s nf4 -o small.onnx   a format by name

    The result runs in stock onnxruntime. What is not worth quantizing stays in float, with the reason.
    'onnxq COMMAND --help' says more, 'onnxq explain WORD' what a word means.
    """
