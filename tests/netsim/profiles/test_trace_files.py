"""Trace files: both formats round-trip, and every error is named with file and line."""

import contextlib
import gzip
import io
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_files import load_recorded, load_trace, parse_trace, save_trace, trace_text
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace


def parse(text):
    """Return the one trace of a text that has the same for both ways."""
    link = parse_trace(io.StringIO(text), "t")
    assert link.up == link.down
    return link.up


def test_mahimahi_lines_are_milliseconds():
    trace = parse("# Verizon\n0\n1\r\n1\n# the end\n4\n\n")
    assert trace == DeliveryTrace("t", (0, 1, 1, 4))
    assert trace.period_ms == 4
    assert trace.mean_rate_bps == 4 * 1504 * 8 / 0.004


@given(st.lists(st.integers(0, 10**8), min_size=1).map(sorted).filter(lambda times: times[-1] > 0))
def test_deliveries_come_back_as_written(times):
    trace = DeliveryTrace("t", tuple(times))
    assert parse(trace_text(trace)) == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t, line 1: the trace is empty"),
        ("1\n\n2\n", "t, line 2: the line is empty"),
        ("\n1\n", "t, line 1: the line is empty"),
        ("1\n5\n3\n", "t, line 3: 3 comes after 5: sort the lines"),
        ("1\n-2\n", "t, line 2: '-2' is not a time: need a whole number of milliseconds, 0 or more"),
        ("1\nfast\n", "t, line 2: 'fast' is not a time"),
        ("1\n²\n", "t, line 2: '²' is not a time"),
        ("0\n0\n", "t, line 2: the trace ends at 0 ms"),
        (
            "4.5\n",
            "t, line 1: '4.5' is not a time: need a whole number of milliseconds, 0 or more; for one rate a second",
        ),
        ("# empty\n", "t, line 2: the trace is empty"),
        ("9" * 5000 + "\n", "ms is beyond 10 days: cut the trace"),
    ],
)
def test_what_is_no_mahimahi_trace_is_refused(text, message):
    with pytest.raises(ProfileError) as refused:
        parse(text)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 200


def test_csv_headers_name_columns_and_units():
    text = "time_ms, delay_s, rate_mbps, Packet loss (%)\n500,0.02,8,1\n1500,0.03,4,0\n"
    assert parse(text) == ConditionTrace("t", (0, 1), 2, (20, 30), (8e6, 4e6), (0.01, 0))
    assert parse("loss,time_s\n0.5,3\n") == ConditionTrace("t", (0,), 1, loss=(0.5,))


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
    assert parse(trace_text(trace)) == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t, line 1: the trace is empty"),
        ("time_s,loss\n0,0\n\n1,0\n", "t, line 3: the line is empty"),
        ("time_s,los\n0,0\n", "t, line 1: no column of rate, delay or loss in 'time_s, los': name it rate_bps"),
        ("time_s,loss,loss_percent\n0,0,0\n", "t, line 1: loss and loss_percent say the same thing twice"),
        ("time,throughput,throughput\n0,0,0\n", "t, line 1: throughput and throughput say the same thing twice"),
        ("0 10mbit\n", "t, line 1: '0 10mbit' is neither numbers nor names of columns"),
        ("1289406399 2 3 4 5 6\n1 2 3 4\n", "t, line 2: column 5='' is not a finite number"),
        ("1 2 3 4 5 6\n", "t, line 1: 6 columns and no header that says what they are"),
        ("1289406399 2 300 4 5 6\n", "t, line 1: 6 columns and no header that says what they are"),
        ("0 1 2\n", "t, line 1: 3 columns and no header that says what they are"),
        ("Timestamp,DL_bitrate\ntoday,5\n", "t, line 2: Timestamp='today' is no time: need seconds, or a date"),
        ("time,rate\n0,5,6\n", "t, line 2: 3 columns where the header has 2: '0,5,6'"),
        ("time_s,loss\n0\n", "t, line 2: 1 columns where the header has 2: '0'"),
        ("time_s,delay_ms\n0,inf\n", "t, line 2: delay_ms='inf' is not a finite number"),
        ("time_s,delay_ms\n0,-5\n", "t, line 2: delay_ms=-5: need 0 to 60000"),
        ("time_s,delay_ms\n-1,5\n", "t, line 2: time_s=-1: need 0 or more"),
        ("time_s,loss\n0,1.1\n", "t, line 2: loss=1.1: need 0 to 1"),
        ("time_s,loss_percent\n0,101\n", "t, line 2: loss_percent=101: need 0 to 100"),
        ("time_s,rate_mbps\n0,-1\n", "t, line 2: rate_mbps=-1: need 0 to 1e+06"),
        ("time_s,loss\n0,0\n2,0\n1,0\n", "t, line 4: time 1 s comes before 2 s: sort"),
        ("time_s,loss\n0,0\n864001,1\n", "t, line 3: more than 10 days"),
    ],
)
def test_what_is_no_csv_trace_is_refused(text, message):
    with pytest.raises(ProfileError) as refused:
        parse(text)
    assert message in str(refused.value)


@given(st.text(max_size=40), st.sampled_from(["", "0\n", "0 1\n", "time,rate_mbps\n0,1\n"]))
def test_any_other_text_is_refused_and_nothing_worse(text, before):
    with contextlib.suppress(ProfileError):
        parse_trace(io.StringIO(before + text), "t")


UCC = "Timestamp,Speed,NetworkMode,SNR,DL_bitrate,UL_bitrate,State,PINGAVG\n"
PACKED = gzip.compress(b"1\n2\n", mtime=0)  # names of tests must not depend on the second
PUBLISHED = {  # times, rates down and up, and what is said of them
    "2019.12.14_10.16.30,0,5G,-,345,0,I,-\n2019.12.14_10.16.30,0,5G,-,2000,12,D,\n2019.12.14_10.16.31,0,5G,-,-,9,,\n":
        ([0, 0.5, 1], [345e3, 2e6, 2e6], [1000, 12e3, 9e3], "DL_bitrate in kbit/s down, UL_bitrate in kbit/s up; times "
         "from Timestamp; passed over: 'Speed, NetworkMode"),
    "time,throughput\n5,12.5\n6,0\n": ([0, 1], [12.5e6, 1000], None, "throughput in Mbit/s up and down"),
    "time,throughput\n0,12500\n1,9\n": ([0, 1], [12.5e6, 9e3], None, "throughput in kbit/s up and down"),
    "\ufeffrun_num,seq_num,movingSpeed,nrStatus,nr_ssRsrp,Throughput\r\n1,1,0.1,NR,-90,121\r\n1,2,1,NR,-90,1031\r\n":
        ([0, 1], [121e6, 1031e6], None, "one row a second; passed over: 'run_num, seq_num"),
    "0.0 4\n0.5\t3.5\n1.0 0\n\n": ([0, 0.5, 1], [4e6, 3.5e6, 1000], None, "Mbit/s up and down"),
    "Zeit;time (ms);downlink throughput [kbit/s];ulMbps\nx;0;3,5;2\ny;1000;100;4\n":
        ([0, 1], [3500, 100e3], [2e6, 4e6], "[kbit/s] in kbit/s down, ulMbps in Mbit/s up; times from time (ms); passed"
         " over: 'Zeit'"),
    '"timestamp","DL Mbps"\n"2020-02-27 18:39:45",12\n"2020-02-27T18:39:46.5",13\n':
        ([0, 1.5], [12e6, 13e6], 0, "down"),
    "epoch,rx_kbps,lat\n1577836800123,100,5\n1577836801123,120,\n": ([0, 1], [100e3, 120e3], 0, "times from epoch"),
    "1289406399 549000 59.85 10.78 248069 1008\n1289406400 550000 59.85 10.78 191698 1000\n":  # HSDPA in Norway
        ([0, 549 - 547.992], [8 * 248069 / 1008 * 1e3, 8 * 191698.0], 0, "download_kbps in kbit/s down"),
    "# 4G, in town\n#time_s rate_mbps\n0 4\n# a bridge\n1 5\n": ([0, 1], [4e6, 5e6], None, "from time_s"),
    "time (ns GMT),session_id,delivery_rate\n5000000000,x,1000000\n6000000000,x,20\n":  # Puffer
        ([0, 1], [8e6, 1000], None, "delivery_rate in byte/s"),
    "dtime,bytes_total,bytes_sec\n2016-09-01 00:01:23,9,125000\n2016-09-01 00:01:24,9,250\n":  # FCC
        ([0, 1], [1e6, 2000], None, "bytes_sec in byte/s up and down; times from dtime; passed over: 'bytes_total'"),
    "t,MBps down,SNR dB\n0,1.5,3\n1,2,3\n": ([0, 1], [12e6, 16e6], 0, "MBps down in MB/s"),
}  # fmt: skip


@pytest.mark.parametrize("text", PUBLISHED, ids=range(len(PUBLISHED)))
def test_published_traces_are_understood_by_what_they_look_like(text, tmp_path):
    """None: up as down; 0: nothing is said of the way up."""
    times, down, up, said = PUBLISHED[text]
    (tmp_path / "x").write_text(UCC + text if text.startswith("2019") else text, encoding="utf-8", newline="")
    link = load_recorded(tmp_path / "x")
    assert link.down == ConditionTrace(str(tmp_path / "x"), times, times[-1] + times[-1] - times[-2], rate_bps=down)
    assert (list(link.up.rate_bps) if link.up else 0) == (down if up is None else up)
    assert said in link.summary
    if up == 0:
        with pytest.raises(ProfileError, match="says nothing of the way up"):
            load_trace(tmp_path / "x", "up")


def test_a_long_trace_takes_the_memory_of_its_numbers():
    lines = itertools.chain(["time_s,rate_mbps"], (f"{n / 100},5" for n in range(100_000)))
    tracemalloc.start()
    assert len(parse_trace(lines, "t").up.times_s) == 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 100_000


def test_files_are_written_by_their_name(tmp_path):
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PACKED, [1, 2]),
        ("1\r\n2\r\n".encode("utf-16"), [1, 2]),  # PowerShell's >
        ("ort,time,loss\nKöln,0,0.5\n".encode("latin-1"), [0.5]),
        (b"1\n2\n\xff\n", "x, line 3: '\ufffd' is not a time"),
        (PACKED[:-4], "x: cannot be read: Compressed file ended before"),
        (b"\x89PNG\r\n\x1a\n", "x, line 1: no column of rate, delay or loss in '\ufffdPNG'"),
        (None, "x: cannot be read: No such file"),
    ],
)
def test_files_are_read_packed_and_in_any_encoding_or_named(tmp_path, data, expected):
    if data is not None:
        (tmp_path / "x").write_bytes(data)
    if isinstance(expected, list):
        trace = load_trace(tmp_path / "x")
        assert list(trace.at_ms if isinstance(trace, DeliveryTrace) else trace.loss) == expected
    else:
        with pytest.raises(ProfileError) as refused:
            load_trace(tmp_path / "x")
        assert expected in str(refused.value)
