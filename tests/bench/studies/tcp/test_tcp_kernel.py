"""What docs/operations.md says of TCP, in a Debian kernel under qemu, whose clock does not see this machine's load."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "netsim"))
import vm

TESTS = Path(__file__).parents[3]
BENCH = TESTS.parent / "bench" / "outrider_bench"
MODULES = (
    "__init__.py",
    "__init__.pyi",
    "core/__init__.py",
    "core/stats.py",
    "studies/__init__.py",
    *(f"studies/tcp/{name}.py" for name in ("__init__", "tcp_exchange", "tcp_statistics")),
)
GUEST_SCRIPT = TESTS / "bench" / "guest_tcp.py"
DIRECTION = {"delay_ms": 27, "rate_bps": 20e6}
ROUND_TRIP_MS = 54


def order(sysctls, reply, idles_s, nagle=False):
    return {
        "profile": {"up": DIRECTION, "down": DIRECTION},
        "sysctls": {f"net.ipv4.{name}": value for name, value in sysctls.items()},
        "shapes": [{"reply": reply}],
        "idles_s": idles_s,
        "counts": [3, 1],
        "nagle": nagle,
    }


ORDERS = [
    order({"tcp_slow_start_after_idle": "1"}, 30_000, [0, 3]),
    order({"tcp_slow_start_after_idle": "0"}, 30_000, [0, 3]),
    order({"tcp_slow_start_after_idle": "1"}, 9000, [3]),
    order({}, 2000, [0.1], nagle=True),
]


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(vm.missing() is not None, reason=vm.missing() or "")
@pytest.mark.guest(GUEST_SCRIPT, {"modules": {name: (BENCH / name).read_text() for name in MODULES}, "orders": ORDERS})
def test_round_trips_of_a_reply(request):
    vm.check_in_guest(request.node, _check)


def _check(found):
    trips = [[cell["whole_ms"] // ROUND_TRIP_MS for cell in cells] for cells in found["runs"]]
    assert trips == [
        [1, 2, 2],  # after 0 s, after 3 s, first of a connection: 21 packets, a window of 10
        [1, 1, 2],  # an idle window kept
        [1, 1],  # 7 packets always fit
        [2, 2],  # Nagle holds the second part until the first is acknowledged
    ]
