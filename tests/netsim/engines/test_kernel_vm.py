"""In a Debian kernel under qemu: failures of the guest, and TCP under loss in the kernel and in user space.

The guest's clock counts instructions and its luck is seeded: a test that passed measures the same until the kernel,
Python, qemu or our code change. The bounds below are for the fresh draw that such a change is.
"""

from pathlib import Path

import pytest
import vm

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.skipif(vm.missing() is not None, reason=vm.missing() or ""),
]
TCP_LOSS = Path(__file__).parents[1] / "vm" / "guest_tcp_loss.py"

QUEUES = Path(__file__).parents[1] / "vm" / "guest_queue.py"


def test_a_guest_that_panics_is_reported(tmp_path):
    script = tmp_path / "guest_panic.py"
    script.write_text("def main(arguments):\n    open('/proc/sysrq-trigger', 'w').write(arguments['order'])\n")
    with pytest.raises(vm.GuestError, match="Kernel panic"):
        vm.run_in_guest(script, {"order": "c"}, timeout_s=200)


def test_a_guest_that_hangs_is_ended(tmp_path):
    script = tmp_path / "guest_hang.py"
    script.write_text("def main(arguments):\n    pass\n")
    with pytest.raises(vm.GuestError, match="hung: not done in 2 s"):
        vm.run_in_guest(script, {}, timeout_s=2)


@pytest.mark.timeout(900)
def test_tcp_with_loss_is_as_fast_through_tun_as_through_the_kernel():
    """Within 15 % at 1 % loss, and measured longer, with other luck, where a first 80 s are not.

    The standard deviation of a goodput over T seconds is 40 % / sqrt(T) of it (measured, 40 times 10 s), so that of the
    ratio over all 240 s is 3.7 %: equal ones are 15 % apart in 4 of 100,000 draws.
    """
    link = {"loss": 0.01, "delay_ms": 20, "rate_bps": 20e6}
    samples = []
    for seed, seconds in ((1, 80), (2, 160)):
        found = vm.run_in_guest(TCP_LOSS, {"engines": ["kernel", "tun"], "seconds": seconds, **link}, 400, seed)
        assert found["congestion_control"] == "cubic"
        samples.append((seconds, found["goodput_bps"]))
        kernel, tun = (sum(s * goodput[engine] for s, goodput in samples) for engine in ("kernel", "tun"))
        if abs(tun / kernel - 1) < 0.15:
            return
    pytest.fail(f"tun carries {tun / kernel:.2f} of what the kernel does: {samples}")


@pytest.mark.timeout(900)
def test_queues_in_time_and_bytes_are_those_of_a_path():
    """Packets at 1.5 times the rate, through real qdiscs and through a Path."""
    jitter = {"delay_ms": 40, "jitter_ms": 10, "distribution": "normal", "rate_bps": 4e6}
    directions = {
        "constant": {"delay_ms": 20, "rate_bps": 4e6, "queue_ms": 150},
        "in order": {**jitter, "queue_ms": 150, "in_order": True},
        "reordering": {**jitter, "queue_bytes": 60_000},
        "slow": {"delay_ms": 20, "rate_bps": 0.6e6, "queue_ms": 300},
        "back to packets": {"delay_ms": 20, "rate_bps": 4e6, "queue_packets": 50},
    }
    order = {"directions": directions, "packets": 800, "spacing_s": 1514 * 8 / 6e6}
    vm.check_in_guest(QUEUES, order, 280.0, _check_queues)


def _check_queues(found):
    for name, direction in found.items():
        kernel, path = direction["kernel"], direction["path"]
        assert kernel["most_ms"] == pytest.approx(path["most_ms"], rel=0.05), name
        assert kernel["mean_ms"] == pytest.approx(path["mean_ms"], rel=0.05), name
        assert kernel["came"] == pytest.approx(path["came"], rel=0.03), name
        assert bool(kernel["overtaken"]) == bool(path["overtaken"]) == (name == "reordering"), name
        if name == "back to packets":
            assert (kernel["lost"], kernel["dropped"]) == (800 - kernel["came"], 0)
        else:
            assert (kernel["lost"], kernel["dropped"]) == (0, 800 - kernel["came"])
