"""The process around the command line, for `onnxq` and `python -m onnxq`."""

from __future__ import annotations

import logging
import signal
import sys
import warnings

from onnxq.cli import main


def run() -> None:
    """Every way to end unwinds the stack, which sweeps staging folders; warnings are sentences of ours."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    warnings.formatwarning = lambda message, *_, **__: f"onnxq: {message}\n"
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # what it warns of, `load.py` refuses in a sentence
    main()


if __name__ == "__main__":
    run()
