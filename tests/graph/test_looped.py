"""Every case of a looped test runs, and those that fail are named."""

from __future__ import annotations

import inspect
import itertools

import pytest
from looped import looped


def test_every_case_runs_and_takes_fixtures() -> None:
    seen = []

    @looped("a, b", itertools.product("xy", (1, 2)))
    @looped("c", range(3))
    def test(a: str, fixture: object, b: int, c: int) -> None:
        seen.append((a, b, c, fixture))

    assert list(inspect.signature(test).parameters) == ["fixture"]
    test(fixture=None)
    assert seen == [(a, b, c, None) for a, b, c in itertools.product("xy", (1, 2), range(3))]


@pytest.mark.parametrize(("bad", "names"), [({3}, ["with a = 3"]), ({1, 4}, ["with a = 1", "with a = 4"])])
def test_those_that_fail_are_named(bad: set[int], names: list[str]) -> None:
    seen = []

    @looped("a", range(6))
    def test(a: int) -> None:
        seen.append(a)
        assert a not in bad

    with pytest.raises((AssertionError, ExceptionGroup)) as failed:
        test()
    errors = failed.value.exceptions if isinstance(failed.value, ExceptionGroup) else [failed.value]
    assert [error.__notes__[0] for error in errors] == names
    assert seen == list(range(6))
