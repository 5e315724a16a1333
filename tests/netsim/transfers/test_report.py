"""Reports as data, as JSON and as a table."""

import json
from dataclasses import replace

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.report import TransferReport, TransferRow, load_report, report_from_json
from outrider_netsim.transfers.table import headings, table_rows

PLAN = TransferPlan(cuts_s=(3.0,))


def row(engine, reply_ms, profile="paper-4g", rate_bps=20e6):
    way = {"rate_bps": rate_bps, "loss": 0.001}
    return TransferRow(
        {"name": profile, "up": way, "down": way}, engine, {"reply_ms": [[reply_ms] * 20], "lone_loss_ms": [[]]}
    )


def report(*rows, plan=PLAN):
    return TransferReport(plan, rows, ({"command": "test"},))


def test_a_report_is_read_as_it_was_written(tmp_path):
    written = report(row("tun", 80.0), row("virtual", 60.0))
    file = tmp_path / "report.json"
    file.write_text(json.dumps(written.as_json()))
    assert load_report(file) == written


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan": 1, "rows": [1], "made_by": []}', '{"rows": [{}]}'])
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(ProfileError, match="not a report of `outrider-netsim transfers`"):
        load_report(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        load_report(tmp_path / "nowhere.json")


def test_the_reference_is_the_most_realistic_engine_of_the_profile():
    tun, virtual = row("tun", 80.0), row("virtual", 60.0)
    assert report(tun, virtual).reference(virtual) is tun
    assert report(tun, virtual).reference(tun) is None
    kernel = row("kernel (VM)", 79.0)
    assert report(tun, virtual, kernel).reference(tun) is kernel
    assert report(tun, virtual, kernel).reference(kernel, "virtual") is virtual
    assert report(tun, row("virtual", 60.0, "wifi")).reference(row("virtual", 60.0, "wifi")) is None


def test_rows_of_another_report_join_with_the_references_first():
    ours, theirs = report(row("tun", 80.0), row("virtual", 60.0)), report(row("kernel (VM)", 79.0), row("tun", 84.0))
    joined = ours.with_rows_of(theirs, "vm.json")
    assert [each.engine for each in joined.rows] == ["kernel (VM)", "tun", "virtual"]
    assert joined.rows[1].samples["reply_ms"] == [[80.0] * 20, [84.0] * 20]
    assert joined.rows[1].estimates["reply_ms"].median == 82.0
    assert len(joined.made_by) == 2


def test_a_figure_that_one_report_lacks_keeps_the_repetitions_of_the_other():
    more = TransferRow(row("tun", 80.0).link, "tun", {"goodput_mbps": [[5.0]]})
    joined = report(row("tun", 80.0)).with_rows_of(report(more), "more.json").rows[0]
    assert (len(joined.samples["reply_ms"]), len(joined.samples["goodput_mbps"])) == (1, 1)


def test_rows_over_another_link_of_the_name_do_not_join():
    with pytest.raises(ProfileError, match=r"old\.json: paper-4g was another link \(up\.rate_bps differs\): measure"):
        report(row("tun", 80.0)).with_rows_of(report(row("proxy", 80.0, rate_bps=10e6)), "old.json")


def test_a_setting_that_an_older_version_lacked_is_no_other_link():
    older = row("proxy", 80.0)
    older = replace(older, link=older.link | {"up": {"rate_bps": 20e6}})
    assert len(report(row("tun", 80.0)).with_rows_of(report(older), "old.json").rows) == 2


def test_rows_of_another_plan_do_not_join():
    with pytest.raises(ProfileError, match=r"vm\.json: measured with seconds=3.*, not 10.*: measure it again"):
        report().with_rows_of(report(plan=TransferPlan(seconds=3.0, cuts_s=(3.0,))), "vm.json")


def test_the_table_marks_what_is_off():
    found = report(row("tun", 80.0), row("virtual", 60.0), row("proxy", 82.0))
    assert headings(found) == ["profile", "engine", "lone loss", "8-packet reply"]
    cells = [cells[-1].splitlines()[0].strip() for cells in table_rows(found)]
    assert cells == ["80.0", "60.0  x0.75!", "82.0  x1.02"]
    assert {cells[2] for cells in table_rows(found)} == {"-"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": -1},
        {"loss": 0.7},
        {"size_bytes": 0},
        {"requests": 1000},
        {"cuts_s": (0.0,)},
        {"idle_s": float("nan")},
    ],
)
def test_absurd_plans_are_refused(wrong):
    with pytest.raises(ProfileError, match=r"need .* to "):
        TransferPlan(**wrong)


def test_a_plan_leaves_out_what_is_zero():
    plan = TransferPlan(seconds=0, transfers=0, exchanges=0, pings=0, cuts_s=(1.0, 2.0))
    assert [(task.measure, task.cut_s) for task in plan.tasks] == [("reply", 0), ("recovery", 1.0), ("recovery", 2.0)]


def test_the_own_delay_has_no_ratio_and_reports_without_it_are_read():
    tun, virtual = row("tun", 80.0), row("virtual", 60.0)
    tun, virtual = (replace(each, samples={**each.samples, "overhead_ms": [[0.5]]}) for each in (tun, virtual))
    both = report(tun, virtual)
    assert both.ratio(virtual, "reply_ms") is not None
    assert both.ratio(virtual, "overhead_ms") is None
    assert headings(both)[-1] == "own delay"
    described = both.as_json()
    del described["plan"]["pings"]
    assert report_from_json(described) == both
