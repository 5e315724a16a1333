"""The probe over real netem, in a Debian kernel under qemu."""

from pathlib import Path

import pytest
import vm

GUEST_SCRIPT = Path(__file__).parents[1] / "vm" / "guest_probe.py"
ORDER = {"profile": "paper-4g", "engine": "kernel", "loss": 0.01, "packets": 2_000, "loss_packets": 2_000}


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(vm.missing() is not None, reason=vm.missing() or "")
@pytest.mark.guest(GUEST_SCRIPT, ORDER)
def test_netem_is_what_the_profile_claims(request):
    """Expect 5 %, and the loss within its 99 % interval, each way; new seeds miss one of these in 3 of 100 cases.

    The loss is ten times the profile's: 20 lost packets of 2,000 tell as much as 20 of 20,000.
    """
    vm.check_in_guest(request.node, _check)


def _check(found):
    for way in ("up", "down"):
        figures = found[way]["figures"]
        for name in ("mean_delay_ms", "deviation_ms", "throughput_bps"):
            assert figures[name]["measured"] == pytest.approx(figures[name]["profile"], rel=0.05)
        low, high = figures["loss"]["interval_99"]
        assert low <= figures["loss"]["profile"] <= high
        assert {figure["verdict"] for figure in figures.values()} <= {"ok", "n/a"}
    assert found["control"]["up"]["lost"] == 0
