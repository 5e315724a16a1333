"""Trace files: both formats round-trip, and every error is named with file and line."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_files import load_trace, parse_csv, parse_mahimahi, save_trace, trace_text
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace


def test_mahimahi_lines_are_milliseconds():
    trace = parse_mahimahi("0\n1\n1\n4\n", "t")
    assert trace == DeliveryTrace("t", (0, 1, 1, 4))
    assert trace.period_ms == 4
    assert trace.mean_rate_bps == 4 * 1504 * 8 / 0.004


@given(st.lists(st.integers(0, 10**8), min_size=1).map(sorted).filter(lambda times: times[-1] > 0))
def test_deliveries_come_back_as_written(times):
    trace = DeliveryTrace("t", tuple(times))
    assert parse_mahimahi(trace_text(trace), "t") == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t, line 1: the trace is empty"),
        ("1\n\n2\n", "t, line 2: the line is empty"),
        ("1\n5\n3\n", "t, line 3: 3 comes after 5: sort the lines"),
        ("1\n-2\n", "t, line 2: '-2' is not a time: need a whole number of milliseconds, 0 or more"),
        ("1\nfast\n", "t, line 2: 'fast' is not a time"),
        ("1\n²\n", "t, line 2: '²' is not a time"),
        ("0\n0\n", "t, line 2: the trace ends at 0 ms"),
        ("9" * 5000 + "\n", "ms is beyond 10 days: cut the trace"),
    ],
)
def test_what_is_no_mahimahi_trace_is_refused(text, message):
    with pytest.raises(ProfileError) as refused:
        parse_mahimahi(text, "t")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 200


def test_csv_headers_name_columns_and_units():
    text = "time_ms, delay_s, rate_mbps, loss_percent\n500,0.02,8,1\n1500,0.03,4,0\n"
    assert parse_csv(text, "t") == ConditionTrace("t", (0, 1), 2, (20, 30), (8e6, 4e6), (0.01, 0))
    assert parse_csv("loss,time_s\n0.5,3\n", "t") == ConditionTrace("t", (0,), 1, loss=(0.5,))


columns = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.001, 1000), min_size=n, max_size=n),
        *(
            st.none() | st.lists(st.floats(low, high), min_size=n, max_size=n).map(tuple)
            for low, high in ((0, 60_000), (1000, 1e12), (0, 1))
        ),
    )
)


@given(columns.filter(lambda c: any(column is not None for column in c[1:])))
def test_conditions_come_back_as_written(columns):
    steps, delay_ms, rate_bps, loss = columns
    times = [0.0]
    for step in steps[:-1]:
        times.append(times[-1] + step)
    last = times[-1] - times[-2] if len(times) > 1 else 1.0
    trace = ConditionTrace("t", tuple(times), times[-1] + last, delay_ms, rate_bps, loss)
    assert parse_csv(trace_text(trace), "t") == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t, line 1: the trace is empty"),
        ("time_s,loss\n0,0\n\n1,0\n", "t, line 3: the line is empty"),
        ("time_s,los\n0,0\n", "t, line 1: column 'los' is unknown: choose from time_s"),
        ("loss\n0\n", "t, line 1: loss: need time_s or time_ms"),
        ("time_s\n0\n", "t, line 1: time_s: need time_s or time_ms, and a column"),
        ("time_s,loss,loss_percent\n0,0,0\n", "t, line 1: time_s, loss, loss_percent say the same thing twice"),
        ("time_s,loss\n0\n", "t, line 2: 1 columns where the header has 2: '0'"),
        ("time_s,loss\n0,\n", "t, line 2: loss='' is not a finite number"),
        ("time_s,delay_ms\n0,inf\n", "t, line 2: delay_ms='inf' is not a finite number"),
        ("time_s,delay_ms\n0,-5\n", "t, line 2: delay_ms=-5: need 0 to 60000"),
        ("time_s,delay_ms\n-1,5\n", "t, line 2: time_s=-1: need 0 or more"),
        ("time_s,loss\n0,1.1\n", "t, line 2: loss=1.1: need 0 to 1"),
        ("time_s,loss_percent\n0,101\n", "t, line 2: loss_percent=101: need 0 to 100"),
        ("time_s,rate_mbps\n0,0\n", "t, line 2: rate_mbps=0: need 0.001 to 1e+06 (where nothing passes, write loss 1)"),
        ("time_s,loss\n0,0\n2,0\n1,0\n", "t, line 4: time 1 s does not come after 2 s: sort"),
        ("time_s,loss\n0,0\n864001,1\n", "t, line 3: more than 10 days"),
    ],
)
def test_what_is_no_csv_trace_is_refused(text, message):
    with pytest.raises(ProfileError) as refused:
        parse_csv(text, "t")
    assert message in str(refused.value)


@given(st.text(max_size=40), st.sampled_from([parse_mahimahi, parse_csv]))
def test_any_other_text_is_refused_and_nothing_worse(text, parse):
    with contextlib.suppress(ProfileError):
        parse(text, "t")


def test_files_are_told_apart_by_their_name(tmp_path):
    deliveries, conditions = DeliveryTrace("x", (1, 2)), ConditionTrace("x", (0,), 1, loss=(0.5,))
    for trace, name in ((deliveries, "up.trace"), (conditions, "up.CSV")):
        path = tmp_path / name
        save_trace(trace, path)
        assert trace_text(load_trace(path)) == trace_text(trace)
    with pytest.raises(ProfileError, match="conditions go to a file that ends in"):
        save_trace(conditions, tmp_path / "x.trace")
    with pytest.raises(ProfileError, match="conditions go to a file that ends in"):
        save_trace(deliveries, tmp_path / "x.csv")
    with pytest.raises(ProfileError, match="cannot be written: No such file"):
        save_trace(deliveries, tmp_path / "no" / "x.trace")


def test_windows_lines_and_marks_are_read(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbftime_s,loss\r\n0,0\r\n")
    assert load_trace(tmp_path / "x.csv") == ConditionTrace(str(tmp_path / "x.csv"), (0,), 1, loss=(0,))


def test_files_that_are_no_text_or_not_there_are_named(tmp_path):
    (tmp_path / "x").write_bytes(b"1\n2\n\xff\n")
    with pytest.raises(ProfileError, match="x, line 3: not text"):
        load_trace(tmp_path / "x")
    with pytest.raises(ProfileError, match="y: cannot be read: No such file"):
        load_trace(tmp_path / "y")
