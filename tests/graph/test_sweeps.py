"""Which tests of a long product the default run takes."""

from __future__ import annotations

import itertools

from sweeps import covering


def pairs_of(rows: list[dict[int, int]]) -> set[object]:
    return set().union(*(itertools.combinations(row.items(), 2) for row in rows))


def test_every_two_values_meet_in_what_is_taken() -> None:
    rows = [dict(enumerate(values)) for values in itertools.product(range(7), range(6), range(5), range(2))]
    rows = [row for row in rows if row[0] != row[1]]  # pairs that no row holds are not asked for
    taken = covering(rows, 2)
    assert pairs_of([rows[i] for i in taken]) == pairs_of(rows)
    assert 7 * 6 - 6 <= len(taken) < len(rows) / 4
    assert covering(rows, 2) == taken


def test_without_pairs_everything_is_taken() -> None:
    assert covering([{0: i} for i in range(9)], 2) == set(range(9))
    assert covering([{0: i, 1: j} for i in range(3) for j in range(4)], 2) == set(range(12))
    assert covering([], 2) == set()


def test_every_value_is_in_what_is_taken() -> None:
    rows = [dict(enumerate(values)) for values in itertools.product(range(7), range(6), range(5))]
    taken = covering(rows, 1)
    assert len(taken) == 7
    assert [{rows[i][j] for i in taken} for j in range(3)] == [set(range(size)) for size in (7, 6, 5)]
