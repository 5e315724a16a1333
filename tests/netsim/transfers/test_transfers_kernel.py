"""TCP over real netem, measured in a Debian kernel under qemu by the code that measures everywhere else."""

import pytest
import vm
from vm.transfers import GUEST_SCRIPT, order_for

from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.report import report_from_json

PLAN = TransferPlan(seconds=3, transfers=2, exchanges=50, loss=0.2, replies=5, requests=2, cuts_s=(1.0,))


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(vm.missing() is not None, reason=vm.missing() or "")
@pytest.mark.guest(GUEST_SCRIPT, order_for("paper-4g-inorder", "kernel", PLAN, 1))
def test_netem_is_measured_in_the_guest(request):
    """The guest's luck is fixed by its seed. The bounds hold for any: nothing is quicker than the link or a timeout."""
    report = report_from_json(vm.result_in_guest(request.node))
    (row,) = report.rows
    assert row.engine == "kernel (VM)"
    assert row.estimates["idle_rtt_ms"].median == pytest.approx(54, rel=0.5)
    assert 1 < row.estimates["goodput_mbps"].median < 20
    # In slow start from ten packets, 150 kB take four round trips of at least 9 ms, and 60 ms of the rate.
    assert row.estimates["after_idle_ms"].median > 96
    # 50 at 20 %: none, or every one of them, once in 70,000.
    assert row.estimates["lone_loss_ms"].median > 200
    assert row.estimates["lone_loss_ms"].count < 50
    assert len(row.samples["recovery_1s_ms"][0]) == 2
    assert row.estimates["recovery_1s_ms"].median > 0
