"""One boot for all the tests of a run that each want a script's result: booting takes as long as most scripts.

A test says what it wants with `@pytest.mark.guest(script, arguments)`; of the tests selected, the first to ask boots
the guest for all of them. Each script runs in a process of its own, on one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vm.guest import BootOutcome, boot_for, result_of
from vm.image import GuestOrder

TIMEOUT_S = 700.0
ALONE_TIMEOUT_S = 400.0
OUTCOME = pytest.StashKey[tuple[list[str], BootOutcome]]()


def check_in_guest(item: pytest.Item, check: Callable[[dict[str, Any]], None]) -> None:  # Any: the script's JSON
    """`check` what the script of `item` returned; where an assertion fails, once more in a guest with other luck.

    With one seed a guest measures the same until the kernel, Python, qemu, our code or the choice of tests change;
    each such change is a fresh draw, which may miss a statistical bound by chance. What is wrong misses it again.
    Raises GuestError.
    """
    order = _order_of(item)
    assert order is not None, f"{item.nodeid} has no mark `guest`"
    try:
        check(_result_of_all(item, order))
    except AssertionError as error:
        print(f"with seed 1: {error}")
        check(result_of(order.script, boot_for([order], ALONE_TIMEOUT_S, seed=2), 0))


def _result_of_all(item: pytest.Item, order: GuestOrder) -> dict[str, Any]:
    """What the script returned in the only boot for all tests."""
    if OUTCOME not in item.session.stash:
        orders = {each.nodeid: wanted for each in item.session.items if (wanted := _order_of(each)) is not None}
        item.session.stash[OUTCOME] = list(orders), boot_for(list(orders.values()), TIMEOUT_S)
    names, outcome = item.session.stash[OUTCOME]
    return result_of(order.script, outcome, names.index(item.nodeid))


def _order_of(item: pytest.Item) -> GuestOrder | None:
    """A script is named without its folder and ending."""
    mark = item.get_closest_marker("guest")
    return None if mark is None else GuestOrder(Path(__file__).with_name(f"{mark.args[0]}.py"), mark.args[1])
