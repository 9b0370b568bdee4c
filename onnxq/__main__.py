"""The process around the command line, for `onnxq` and `python -m onnxq`."""

from __future__ import annotations

import logging
import os
import sys
import warnings

from onnxq.errors import is_of_memory
from onnxq.runtime.process import endings
from onnxq.runtime.process.lazy_imports import postpone
from onnxq.runtime.supervisor import supervised

_NO_MEMORY = b"onnxq: there is not enough memory to begin: is there a limit ('ulimit -v')?\n"


def run() -> None:
    """Every way to end unwinds the stack, which sweeps staging folders; warnings are sentences of ours."""
    _open_closed_streams()
    supervised(work)


def _open_closed_streams() -> None:
    """Streams that the caller closed (`>&-`) lead nowhere. Else the next file that is opened, perhaps the one that is
    being written, would take their numbers, and with them what libraries print.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def work() -> None:
    """What the command line does, in this process."""
    try:
        _told()
    except SystemExit as end:
        endings.not_wait_long(end.code)
        raise


def _told() -> None:
    try:
        _work()
    except KeyboardInterrupt:  # while modules are being imported, which takes half a second
        print("onnxq: interrupted", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, ImportError, RuntimeError, SystemError, OSError) as error:  # so is this
        if not is_of_memory(error):
            raise
        os.write(2, _NO_MEMORY)  # what else one does needs some
        os._exit(1)


def _work() -> None:
    endings.listen()
    postpone()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # terminals that know only ASCII
    from onnxq.cli import main
    from onnxq.errors import one_line

    warnings.formatwarning = lambda message, *_, **__: f"onnxq: {one_line(str(message))}\n"
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # what it warns of, `model/load.py` refuses in a sentence
    main()


if __name__ == "__main__":
    run()
