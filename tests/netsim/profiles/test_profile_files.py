"""Users' profiles in TOML: reading, round trips, and the message for each mistake."""

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.builtin import PROFILES
from outrider_netsim.profiles.profile import Bursts, Direction, Outage, Profile
from outrider_netsim.profiles.profile_files import load_profile, load_profiles, profile_text
from outrider_netsim.profiles.traces import DeliveryTrace


def written(tmp_path, text, name="links.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


FULL = """
source = "measured"
seed = 7
outages = ["3s@10s", "1s@20s/30s"]
[both]
delay_ms = 20
jitter_ms = 5.5
distribution = "pareto"
bursts = {p = 0.01, r = 0.5, bad = 0.9}
queue_packets = 50
[up]
rate_bps = 5e6
in_order = true
"""


def test_a_file_is_read_with_both_as_the_start_of_each_way(tmp_path):
    both = {"delay_ms": 20, "jitter_ms": 5.5, "distribution": "pareto", "bursts": Bursts(0.01, 0.5, 0.9)}
    assert load_profile(written(tmp_path, FULL, "home.toml")) == Profile(
        "home",
        Direction(**both, queue_packets=50, rate_bps=5e6, in_order=True),
        Direction(**both, queue_packets=50),
        "measured",
        (Outage(3, 10), Outage(1, 20, 30)),
        7,
    )


def test_several_profiles_in_a_file_keep_their_order(tmp_path):
    text = "[profile.b.both]\n[profile.a]\nseed = 3\n[profile.a.up]\nloss = 0.1\n[profile.a.down]\n"
    found = load_profiles(written(tmp_path, text))
    assert list(found) == ["b", "a"]
    assert found["a"] == Profile("a", Direction(loss=0.1), Direction(), seed=3)


def test_a_trace_is_found_beside_the_file(tmp_path):
    (tmp_path / "down.trace").write_text("5\n10\n")
    profile = load_profile(written(tmp_path, '[up]\n[down]\ntrace = "down.trace"'))
    assert profile.down.trace == DeliveryTrace(str(tmp_path / "down.trace"), (5, 10))
    assert profile.up.trace is None
    assert load_profile(written(tmp_path, profile_text(profile), "again.toml")) == Profile(
        "links", profile.up, profile.down
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[both]\ndealy_ms = 1", "links.toml [both]: dealy_ms: no such key; did you mean delay_ms?"),
        ("[both]\ndelay_ms = -1", "links.toml [both]: delay_ms=-1: need 0 to 60000"),
        ("[both]\nloss = 1.5\n[down]\ndelay_ms = 1", "links.toml [both]: loss=1.5: need 0 to 1"),
        ("[both]\ndelay_ms = '5'", '[both]: delay_ms="5": input should be a valid number'),
        ("[both]\nin_order = 1", "[both]: in_order=1: input should be a valid boolean"),
        ("[both]\nbursts = 0.1", "[both]: bursts=0.1: input should be"),
        ("[both]\nbursts = {p = 0.1}", "[both.bursts]: r: missing"),
        ("[both]\nbursts = {p = 0.1, r = 0}", "[both.bursts]: bursts.r=0: the link would stay bad"),
        ("[both]\ntrace = 'none.csv'", "none.csv: cannot be read: No such file"),
        ("[up]\n", "links.toml: no [down]: give both directions, or [both]"),
        ("sauce = 'x'\n[both]", "links.toml: sauce: no such key; did you mean source?"),
        ("name = ''\n[both]", "links.toml: name='': a profile needs a name"),
        ("outages = '3s@1s'\n[both]", 'links.toml: outages="3s@1s": input should be'),
        ("outages = [3]\n[both]", "links.toml: outages=3: input should be a valid string"),
        ("outages = ['3s']\n[both]", "links.toml: outage '3s': need DURATION@START"),
        ("outages = ['3s@1s/5s', '2s@4s/5s']\n[both]", "links.toml: the recurring outages together leave no time"),
        ("[profile]", "links.toml: profile: need tables such as [profile.NAME.both]"),
        ("[profile.a]\nname = 'b'\n[profile.a.both]", "[profile.a]: name: the table's name is the profile's"),
        ("[profile.a.both]\ndelay_ms = -2", "links.toml [profile.a.both]: delay_ms=-2"),
        ("[profile.a]\nup = {}", "links.toml [profile.a]: no [profile.a.down]"),
        ("[profile.a.both]\n[both]", "links.toml: both: no such key beside [profile]"),
        (f"[both]\ndelay_ms = 1{'0' * 400}", "links.toml [both]: delay_ms="),
    ],
)
def test_mistakes_are_named_with_file_key_and_remedy(tmp_path, text, message):
    with pytest.raises(ProfileError) as refused:
        load_profiles(written(tmp_path, text))
    assert message in str(refused.value)
    assert str(refused.value).count("links.toml") == 1


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ProfileError, match=r"no\.toml: cannot be read: No such file"):
        load_profile(tmp_path / "no.toml")
    with pytest.raises(ProfileError, match="cannot be read: Is a directory"):
        load_profile(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"source = '\xff'")
    with pytest.raises(ProfileError, match=r"x\.toml: cannot be read as TOML \(not UTF-8"):
        load_profile(tmp_path / "x.toml")


@pytest.mark.parametrize("name", PROFILES)
def test_built_in_profiles_come_back_as_written(tmp_path, name):
    assert load_profile(written(tmp_path, profile_text(PROFILES[name]))) == PROFILES[name]


def test_what_no_built_in_profile_has_comes_back_as_written(tmp_path):
    up = Direction(20, 5.5, "uniform", 1e6, 0.1, bursts=Bursts(0.01, 0.5, 0.9), correlation=0.3, queue_bytes=2**32 - 1)
    down = Direction(1 / 3, loss=1e-9, duplicate=0.2, corrupt=0.1, slot_ms=7, aqm="codel", queue_packets=10_000_000)
    profile = Profile('a"b\\c é\x7f\n', up, down, "x = 'y' # z", (Outage(0.001, 5, 1e6),), -(2**63))
    assert load_profile(written(tmp_path, profile_text(profile))) == profile
