"""Cases of a millisecond in one test: pytest takes several to begin and to end one, and a second worker as many."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def looped(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but the test runs through all values; every one that fails is reported by name.

    Args:
        names: of parameters, divided by commas.
        values: one for each case, or as many as there are names.
    """
    words = [name.strip() for name in names.split(",")]
    cases = [dict(zip(words, value if len(words) > 1 else (value,), strict=True)) for value in values]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def all_of_them(**given: Any) -> None:
            failed = []
            for case in cases:
                try:
                    function(**given, **case)
                except Exception as error:
                    error.add_note(f"with {', '.join(f'{name} = {value}' for name, value in case.items())}")
                    failed.append(error)
            if failed:
                raise failed[0] if len(failed) == 1 else ExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)

        given = inspect.signature(function)
        left = [parameter for name, parameter in given.parameters.items() if name not in words]
        all_of_them.__signature__ = given.replace(parameters=left)  # type: ignore[attr-defined]
        return all_of_them

    return decorate
