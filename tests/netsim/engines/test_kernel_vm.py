"""The kernel engine in a Debian kernel under qemu: what a Path does with the same packets.

The guest's clock counts instructions and its luck is seeded: a test that passed measures the same until the kernel,
Python, qemu or our code change. The bounds below are for the fresh draw that such a change is.
"""

import pytest
import vm

FULL, SMALL = 1472, 64  # bytes of payload: a full packet, and one of 106 bytes
JITTER = {"delay_ms": 40, "jitter_ms": 10, "distribution": "normal"}
IN_JITTER = {**JITTER, "rate_bps": 4e6}
STEADY = {"delay_ms": 20, "rate_bps": 4e6}
COHERENT = {**JITTER, "coherence_ms": 50, "in_order": True}
QUEUED = {
    "constant": {**STEADY, "queue_ms": 150},
    "in order": {**IN_JITTER, "queue_ms": 150, "in_order": True},
    "reordering": {**IN_JITTER, "queue_bytes": 60_000},
    "codel": {**STEADY, "queue_ms": 2000, "aqm": "codel"},
    "fq_codel": {**STEADY, "queue_ms": 2000, "aqm": "fq_codel", "in_order": True},
    "back to packets": {**STEADY, "queue_packets": 50},
}
SHAPES = {
    "with bursts": {**COHERENT, "bursts": {"p": 0.02, "r": 0.2}, "rate_bps": 4e6, "queue_ms": 200},
    "paretonormal": {**JITTER, "distribution": "paretonormal"},
    "uniform": {**JITTER, "distribution": "uniform", "base_ms": 3},
    "bursts": {"delay_ms": 2, "bursts": {"p": 0.02, "r": 0.2, "bad": 0.9, "good": 0.01}},
}
RARER = {"duplicate": {"duplicate": 0.2}, "corrupt": {"corrupt": 0.2}, "slots": {"slot_ms": 20}, "again": {}}
HELD = {
    "in order": {**STEADY, "queue_ms": 400, "in_order": True},
    "by packets": {**STEADY, "queue_packets": 200},
    "no rate": {"delay_ms": 20},
}
GROUPS = {
    # At 1.5 times the rate.
    "queued": {"cases": QUEUED, "packets": 800, "spacing_s": 1514 * 8 / 6e6, "payload_bytes": FULL},
    # Coherence of 50 ms seen every 10 ms: 800 packets count as 80 independent ones, in the kernel and in the Path.
    "shapes": {"cases": SHAPES, "packets": 800, "spacing_s": 0.01, "payload_bytes": SMALL},
    "rarer": {
        **{"cases": {name: {"delay_ms": 10, **keys} for name, keys in RARER.items()}},
        **{"packets": 1000, "spacing_s": 0.004, "payload_bytes": SMALL},
    },
    # At three quarters of the rate, and 200 ms in which nothing may leave.
    "held": {
        **{"cases": HELD, "packets": 300, "spacing_s": 1514 * 8 / 3e6, "payload_bytes": FULL},
        **{"hold_s": 0.2, "start_s": 0.6},
    },
}


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(vm.missing() is not None, reason=vm.missing() or "")
def test_real_netem_does_what_a_path_does():
    """With one seed a guest measures the same until something changes, and each change is a fresh draw, which may miss
    a statistical bound by chance. What is wrong misses it again in a guest with other luck.
    """
    try:
        check(vm.measured_in_guest(GROUPS, seed=1))
    except AssertionError as error:
        print(f"with seed 1: {error}")
        check(vm.measured_in_guest(GROUPS, seed=2))


def check(found):
    check_queues(found["queued"])
    check_shapes(found["shapes"])
    check_rarer(found["rarer"])
    check_holds(found["held"])
    check_changes(found)


def check_queues(found):
    for name, direction in found.items():
        kernel, path = direction["kernel"], direction["path"]
        # tbf lets a packet pass at once after a pause, in which a Path takes size / rate.
        first_ms = 1514 * 8000 / QUEUED[name]["rate_bps"] * 1.1
        assert kernel["most_ms"] == pytest.approx(path["most_ms"], rel=0.05, abs=first_ms), name
        assert kernel["mean_ms"] == pytest.approx(path["mean_ms"], rel=0.05, abs=first_ms), name
        assert kernel["came"] == pytest.approx(path["came"], rel=0.03), name
        assert bool(kernel["overtaken"]) == bool(path["overtaken"]) == (name == "reordering"), name
        missing = 800 - kernel["came"]
        # netem does not tell its full queue from its losses.
        expected = (missing, 0) if name == "back to packets" else (0, missing)
        assert (kernel["lost"], kernel["dropped"]) == expected, name


def check_shapes(found):
    for name, direction in found.items():
        kernel, path = direction["kernel"], direction["path"]
        is_coherent = "coherence_ms" in SHAPES[name]
        error_ms = 10 / (800 / (10 if is_coherent else 1)) ** 0.5 * 2**0.5
        assert kernel["mean_ms"] == pytest.approx(path["mean_ms"], abs=4 * error_ms), name
        assert kernel["deviation_ms"] == pytest.approx(path["deviation_ms"], abs=4 * error_ms), name
        assert kernel["correlation"] == pytest.approx(path["correlation"], abs=0.2), name
        assert kernel["lost"] == 800 - kernel["came"], name
        assert bool(kernel["overtaken"]) is (name in ("paretonormal", "uniform")), name
    for name, share in (("with bursts", 0.0909), ("bursts", 0.0909 * 0.9 + 0.9091 * 0.01)):
        assert found[name]["kernel"]["lost"] / 800 == pytest.approx(share, rel=0.7)  # 4 deviations: they come together


def check_rarer(found):
    seen = {name: direction["kernel"] for name, direction in found.items()}
    assert seen["duplicate"]["out"] == pytest.approx(1200, abs=4 * 160**0.5)
    # A flipped bit in the source address of Ethernet harms nobody: 6 of 106 bytes.
    assert 1000 - seen["corrupt"]["came"] == pytest.approx(200 * 100 / 106, abs=4 * 160**0.5)
    assert seen["slots"]["instants"] == pytest.approx(4000 / 20, rel=0.2)
    assert [seen[name]["came"] for name in ("duplicate", "slots", "again")] == [1000] * 3
    assert seen["again"]["out"] == 1000
    assert seen["again"]["instants"] == pytest.approx(1000, rel=0.02)


def check_holds(found):
    for name, direction in found.items():
        kernel, path = direction["kernel"], direction["path"]
        assert kernel["came"] == path["came"] == 300, name
        assert kernel["lost"] == kernel["dropped"] == 0, name
        assert kernel["pause_s"] == pytest.approx(0.2, abs=0.01), name
        # tbf lets a packet pass at once where it has tokens: up to the 3 ms of a packet at this rate are saved. Where
        # in a packet the pause begins is worth half of that again: means were 3.5 to 4.9 ms apart.
        saved_ms = 0 if name == "no rate" else 1514 * 8 / 4e3
        for figure in ("mean_ms", "most_ms"):
            assert path[figure] - 1.5 * saved_ms - 1.5 < kernel[figure] < path[figure] + 1.5, (name, figure)


def check_changes(found):
    assert found["cut"] == {
        **{"before": 10, "cut": 0, "restored": 10},
        **{"sent while cut, then changed": 0, "under way at a change": 10},
    }
    assert found["trace"]["measured"] == pytest.approx(found["trace"]["wanted"], rel=0.05)
    outage = found["outage"]
    assert outage["missing"] == outage["last"] - outage["first"] + 1 == outage["counted"]
    assert outage["missing"] == pytest.approx(30, abs=2)
    assert outage["lost"] == 0
    assert found["left"] == ["lo"]
