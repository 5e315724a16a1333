"""One boot for all the tests of a run that each want a script's result: booting takes as long as most scripts.

A test says what it wants with `@pytest.mark.guest(script, arguments)`; of the tests selected, the first to ask boots
the guest for all of them. Each script runs in a process of its own, on one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vm.guest import BootOutcome, boot_for, result_of, run_in_guest
from vm.image import GuestOrder

TIMEOUT_S = 700.0
ALONE_TIMEOUT_S = 400.0
OUTCOME = pytest.StashKey[tuple[dict[str, int], BootOutcome]]()


def result_in_guest(item: pytest.Item) -> dict[str, Any]:  # Any: the script's JSON
    """What the script of `item` returned, with seed 1. Raises GuestError."""
    order = _order_of(item)
    assert order is not None, f"{item.nodeid} has no mark `guest`"
    numbers, outcome = _booted(item.session)
    if numbers[item.nodeid] < len(outcome.answers):
        return result_of(order.script, outcome, numbers[item.nodeid])
    # The guest ended early: alone, whatever ended it is found, and nobody else suffers for it.
    return run_in_guest(order.script, order.arguments, ALONE_TIMEOUT_S)


def check_in_guest(item: pytest.Item, check: Callable[[dict[str, Any]], None]) -> None:
    """Run and `check` the result; where an assertion fails, once more in a guest of its own with other luck.

    With one seed a guest measures the same until the kernel, Python, qemu, our code or the choice of tests change;
    each such change is a fresh draw, which may miss a statistical bound by chance. What is wrong misses it again.
    """
    try:
        check(result_in_guest(item))
    except AssertionError as error:
        print(f"with seed 1: {error}")
        order = _order_of(item)
        assert order is not None
        check(run_in_guest(order.script, order.arguments, ALONE_TIMEOUT_S, seed=2))


def _booted(session: pytest.Session) -> tuple[dict[str, int], BootOutcome]:
    """The place of every test's answer, and the outcome of the only boot for them."""
    if OUTCOME not in session.stash:
        orders = {item.nodeid: order for item in session.items if (order := _order_of(item)) is not None}
        numbers = {name: number for number, name in enumerate(orders)}
        session.stash[OUTCOME] = numbers, boot_for(list(orders.values()), TIMEOUT_S)
    return session.stash[OUTCOME]


def _order_of(item: pytest.Item) -> GuestOrder | None:
    mark = item.get_closest_marker("guest")
    return None if mark is None else GuestOrder(*mark.args)
