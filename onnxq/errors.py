"""What can go wrong, in one sentence each: what, where, what to do.

Every exception a user may see is an `OnnxqError`; the command line prints its text and turns `exit_code` into the
exit status. Anything else that escapes is a bug of ours.
"""


class OnnxqError(Exception):
    """A failure the user can act on; `str(error)` is one sentence."""

    exit_code = 1


class BadModel(OnnxqError):
    """The input is not a model that can be read, checked or run."""


class BadData(OnnxqError):
    """The calibration data do not fit the model's inputs."""


class BadRecipe(OnnxqError):
    """A word, rule or file the user gave is not understood."""


class BadOutput(OnnxqError):
    """The result cannot be written where the user asked."""


class CheckFailed(OnnxqError):
    """The saved file does not load, does not run or is too far from the float model; it was not kept."""


class MissingRuntime(OnnxqError):
    """A package that this step needs is not installed."""


class NothingToDo(OnnxqError):
    """The model holds nothing that this scheme and target could quantize. Not a failure."""

    exit_code = 0


def root_cause(error: BaseException) -> BaseException:
    """Where a chain of "raised from" began; of ours, if one of the chain is an `OnnxqError`."""
    while error.__cause__ is not None and not isinstance(error, OnnxqError):
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, for use inside a sentence of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
