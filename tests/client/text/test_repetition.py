"""Where an answer goes round in circles, and where it only looks like that."""

import pytest

from outrider_client.text.repetition import goes_in_circles, repeats_a_phrase

BLOCK = tuple(range(100, 122))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((), False),
        ((1, 2, *BLOCK * 3), True),
        ((*BLOCK * 2, *BLOCK[:-1]), False),
        ((*BLOCK * 3, 5), False),  # it has found its way out
        ((1, *(7, 8) * 32), True),
        ((1, *(7, 8) * 31), False),  # a line of zeros, say
        ((9,) * 64, True),
        ((9,) * 63, False),
        ((*BLOCK, 1, *BLOCK, 2, *BLOCK, 3), False),
        (tuple(range(2048)), False),
    ],
)
def test_circles(tokens, expected):
    assert goes_in_circles(tokens) == expected
    assert goes_in_circles([0, *tokens]) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((), False),
        (BLOCK, False),
        ((*BLOCK, 1, *BLOCK, 2, *BLOCK), True),
        ((9,) * 10, True),
        ((*BLOCK, 1, *BLOCK), False),
    ],
)
def test_phrases(tokens, expected):
    assert repeats_a_phrase(tokens) == expected
