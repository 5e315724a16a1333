"""Marks of tests: which values of a parameter `make test` leaves out, and what needs a processor that can."""

from collections.abc import Sequence

import pytest

from outrider_drafters.quantization.codes import has_exact_int8

needs_int8 = pytest.mark.skipif(not has_exact_int8(), reason="this processor does not multiply int8 exactly")


def slow(*values) -> list:
    """Values, or tuples of several parameters' values, that only `make test-all` runs."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]


def in_turn(cases: Sequence, modes: Sequence[str]) -> list:
    """Every case in every mode; `make test` runs one mode a case."""
    return [
        pytest.param(case, mode, marks=() if number == turn % len(modes) else pytest.mark.slow, id=f"{case}-{mode}")
        for turn, case in enumerate(cases)
        for number, mode in enumerate(modes)
    ]
