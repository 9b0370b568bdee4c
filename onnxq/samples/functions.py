"""Functions of the user's own, named as `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from onnxq.errors import BadData, first_line


def import_function(source: str, option: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the current folder are found first.

    Raises:
        BadData: there is none, or its module fails.
    """
    module, _, function = source.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # whatever the caller's own module raises
        raise BadData(f"{option} '{source}' failed with {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise BadData(f"{option} '{source}' is not a function")
    return found
