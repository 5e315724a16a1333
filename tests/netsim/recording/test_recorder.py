"""Logs and captures of paths: a line for each packet, and its two blocks."""

import csv
import io

import pytest
from pcapng_reader import read_pcapng

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction
from outrider_netsim.recording.recorder import FileRecorder, PacketRecorder, RecordingFiles

HEADINGS = ["number", "direction", "bytes", "entered_s", "left_s", "fate"]


def rows(text):
    found = csv.DictReader(io.StringIO(text))
    assert found.fieldnames == HEADINGS
    return list(found)


def recorded(up, times, *, outages=(), until=100.0):
    """The rows of packets that enter a path at these times, which count from 7."""
    log = io.BytesIO()
    recorder = PacketRecorder(None, log.write, 7.0, "")
    path = Path(up, 1, outages, started_at=7.0)
    path.observe(recorder.up)

    def ask(until):
        while (when := path.next_event()) is not None and when < until:
            path.pop_ready(when)

    for time in times:
        ask(7 + time)
        path.push(Packet(b"", 1250), 7 + time)
    ask(until)
    recorder.finish()
    return rows(log.getvalue().decode())


def test_a_line_tells_when_a_packet_entered_and_left():
    assert recorded(Direction(delay_ms=40, rate_bps=1e6), [0, 0.5]) == [
        dict(zip(HEADINGS, ["1", "up", "1250", "0.000000000", "0.050000000", "arrived"], strict=True)),
        dict(zip(HEADINGS, ["2", "up", "1250", "0.500000000", "0.550000000", "arrived"], strict=True)),
    ]


@pytest.mark.parametrize(
    ("direction", "outages", "fates"),
    [
        (Direction(loss=1.0), (), ["lost"] * 3),
        (Direction(rate_bps=1e3, queue_packets=2), (), ["queue", "under way", "under way"]),
        (Direction(), (Outage(1, 0),), ["outage"] * 3),
    ],
)
def test_a_line_tells_what_became_of_a_packet(direction, outages, fates):
    found = recorded(direction, [0, 0, 0], outages=outages, until=7.0)
    assert [row["fate"] for row in found] == fates
    assert {row["left_s"] for row in found} == {""}


def test_copies_and_flipped_bits_are_told_apart():
    assert [row["fate"] for row in recorded(Direction(delay_ms=5, corrupt=1.0), [0, 1])] == ["corrupted"] * 2
    found = recorded(Direction(delay_ms=5, duplicate=1.0), [0, 1])
    assert [row["fate"] for row in found] == ["arrived", "duplicate"] * 2
    assert {row["left_s"][:5] for row in found} == {"0.005", "1.005"}


def test_files_hold_both_directions_and_the_capture_both_sides(tmp_path):
    files = RecordingFiles(str(tmp_path / "x.pcapng"), str(tmp_path / "x.csv"))
    recorder = FileRecorder(files, 7.0, "paper-4g, seed 1")
    up, down = Path(Direction(delay_ms=40), 1), Path(Direction(loss=1.0), 1)
    up.observe(recorder.up)
    down.observe(recorder.down)
    up.push(Packet(b"there", 19), 7.0)
    down.push(Packet(b"back", 18), 7.01)
    up.pop_ready(7.04)
    assert recorder.close() == []
    section, _, packets = read_pcapng(tmp_path / "x.pcapng")
    assert section[1] == b"paper-4g, seed 1"
    # Client to server is out of side 0 and into side 1; what the other way loses is seen at side 1 only.
    assert [(p.interface, p.flags, p.packet_id, p.data) for p in packets] == [
        (0, 2, 1, b"there"),
        (1, 2, 2, b"back"),
        (1, 1, 1, b"there"),
    ]
    assert packets[2].time_ns - packets[0].time_ns == pytest.approx(40e6, abs=1000)
    found = rows((tmp_path / "x.csv").read_text())
    assert [(row["number"], row["direction"], row["fate"]) for row in found] == [
        ("1", "down", "lost"),
        ("1", "up", "arrived"),
    ]


def test_a_full_disk_is_reported(tmp_path):
    """/dev/full refuses every byte."""
    recorder = FileRecorder(RecordingFiles(packet_log="/dev/full"), 0.0, "")
    assert recorder.close() == ["/dev/full: No space left on device: the recording is incomplete"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            RecordingFiles(pcap="/no/such/folder/x.pcapng"),
            "capture /no/such/folder/x.pcapng: cannot be written .No such",
        ),
        (RecordingFiles(packet_log="/"), "packet log /: cannot be written .Is a directory"),
        (RecordingFiles("x", "./x"), "packet log ./x: this is the capture's file"),
    ],
)
def test_files_that_cannot_be_written_are_refused(files, message):
    with pytest.raises(ProfileError, match=message):
        files.create()
