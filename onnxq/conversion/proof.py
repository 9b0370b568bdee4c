"""Compare what was written with the quantized model that it was made of, by running both."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxq.checking.models import Check, check_models
from onnxq.job import WHOLE_MODEL_BYTES, Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.output import write
from onnxq.runtime.session import Session


def prove(model: Path, restored: ir.Model, staged: Path, environment: Environment) -> Check | None:
    """What the written model computes against the quantized one, on made-up inputs; None for a model that is too large.

    Args:
        model: the quantized one.
        restored: the same with float weights, of which inputs are made up that it takes.
        staged: the written one.

    Raises:
        CheckFailed: it does not load, does not run, or has other outputs.
    """
    environment.progress.start("checking the saved file")
    if write.nbytes_to_write(restored) > WHOLE_MODEL_BYTES:
        return None
    trials = make_up(restored, scout(restored))
    return check_models(Session(model, threads=environment.threads), staged, trials, threads=environment.threads)
