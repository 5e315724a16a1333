"""Keys, their file, and the commands: what is kept and what is not, who may read it, what a bad file says."""

import hmac
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from outrider_proto.errors import UsageError
from outrider_server.cli.app import app
from outrider_server.security.keys import Key, Keyring, digest_of, new_secret, read_keys, write_keys
from outrider_server.security.principal import Quota, Scope

NOW = datetime(2026, 5, 1, tzinfo=UTC)
COUNT = st.none() | st.integers(2, 10**6)
KEYS = st.builds(
    Key,
    id=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    digest=st.binary(min_size=32, max_size=32),
    scopes=st.frozensets(st.sampled_from(Scope), min_size=1),
    quota=st.builds(Quota, COUNT, COUNT, COUNT),
    expires=st.none() | st.datetimes(timezones=st.just(UTC)),
    comment=st.text().filter(str.isprintable),
)


def keys(*options: str):
    return CliRunner().invoke(app, ["keys", *options])


def write(path, *names: str) -> dict[str, str]:
    secrets = {name: new_secret(name) for name in names}
    write_keys(path, [Key(name, digest_of(secret)) for name, secret in secrets.items()])
    return secrets


@given(st.lists(KEYS, max_size=4, unique_by=lambda key: key.id))
def test_what_is_written_is_read(tmp_path_factory, made):
    file = tmp_path_factory.getbasetemp() / "keys.toml"
    write_keys(file, made)
    assert list(read_keys(file).values()) == made


def test_only_its_owner_can_read_the_file_and_nothing_else_is_left_behind(tmp_path):
    old = os.umask(0)
    try:
        write(tmp_path / "keys.toml", "a")
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]
    assert stat.S_IMODE((tmp_path / "keys.toml").stat().st_mode) == 0o600


def test_rewriting_the_file_keeps_its_readers(tmp_path):
    """A server that runs as another user has to see what root revokes."""
    file = tmp_path / "keys.toml"
    write(file, "a", "b")
    file.chmod(0o640)
    with suppress(OSError):  # not everybody may, nor every root in its namespace
        os.chown(file, 12345, 12346)
    before = file.stat()
    assert keys("revoke", "a", "--keys", str(file)).exit_code == 0
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert list(read_keys(file)) == ["b"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[key]\nTOPSECRET", "not TOML"),
        ('[[key]]\nid = "a"\nsha256 = "TOPSECRET"', "64 hexadecimal digits"),
        ('[[key]]\nsha256 = "' + "0" * 64 + '"', "needs an id"),
        ('[[key]]\nid = "a b"\nsha256 = "' + "0" * 64 + '"', "'a b'"),
        ('[[key]]\nid = "a"\nsessions = true\nsha256 = "' + "0" * 64 + '"', "sessions: need a whole number"),
        ('[[key]]\nid = "a"\nsessions = 0\nsha256 = "' + "0" * 64 + '"', "sessions=0"),
        ('[[key]]\nid = "a"\nscopes = ["all"]\nsha256 = "' + "0" * 64 + '"', "scope=all: need one of session"),
        ('[[key]]\nid = "a"\nscopes = []\nsha256 = "' + "0" * 64 + '"', "need a scope"),
        ('[[key]]\nid = "a"\nexpires = 2027-01-01\nsha256 = "' + "0" * 64 + '"', "need date, time and zone"),
        ('[[key]]\nid = "a"\nexpires = 2027-01-01T00:00:00\nsha256 = "' + "0" * 64 + '"', "need a time zone"),
        ('[[key]]\nid = "a"\nquota = 3\nsha256 = "' + "0" * 64 + '"', "unknown quota"),
        (2 * ('[[key]]\nid = "a"\nsha256 = "' + "0" * 64 + '"\n'), "an id occurs twice"),
        ("key = 3", "keys="),
        ("key = [3]", "need [[key]] sections"),
        ("keys = []", "unknown keys"),
    ],
)
def test_a_bad_file_is_refused_without_a_line_of_it(tmp_path, text, complaint):
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_keys(file)
    assert complaint in str(refused.value)
    assert "TOPSECRET" not in str(refused.value)


def test_a_key_is_found_by_the_whole_of_it(tmp_path):
    secret = write(tmp_path / "keys.toml", "a", "b")["a"]
    ring = Keyring(tmp_path / "keys.toml")
    assert ring.find(secret).id == "a"
    mine = secret.rpartition(".")[2]
    for wrong in ("", "a", secret[:-1], secret + "x", secret.upper(), f"outrider.b.{mine}", f"outrider.c.{mine}", mine):
        assert ring.find(wrong) is None
    assert ring.find("outrider.a." + "x" * 10_000_000) is None


def test_a_secret_has_256_bits_of_the_systems_randomness():
    made = {new_secret("a").rpartition(".")[2] for _ in range(100)}
    assert len(made) == 100
    assert {len(secret) for secret in made} == {43}  # base64 of 32 bytes


def test_every_look_up_compares_one_digest_of_the_same_length(tmp_path, monkeypatch):
    """Known, wrong and unknown keys take the same steps, so that none can be told by the time it takes."""
    secret = write(tmp_path / "keys.toml", "a")["a"]
    ring, compared = Keyring(tmp_path / "keys.toml"), []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b))
    for presented in (secret, new_secret("a"), new_secret("nobody"), "rubbish"):
        ring.find(presented)
    assert compared == [(32, 32)] * 4


def test_a_key_is_good_until_it_expires(tmp_path):
    secret, file, now = new_secret("a"), tmp_path / "keys.toml", [NOW]
    write_keys(file, [Key("a", digest_of(secret), expires=NOW + timedelta(hours=1))])
    ring = Keyring(file, lambda: now[0])
    assert ring.find(secret) is not None
    now[0] += timedelta(hours=1)
    assert ring.find(secret) is None
    assert not ring.holds("a", digest_of(secret))


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path, caplog):
    file = tmp_path / "keys.toml"
    old = write(file, "a")["a"]
    ring = Keyring(file)
    new = write(file, "b")["b"]
    ring.refresh()
    assert ring.find(old) is None
    assert ring.find(new) is not None
    file.write_text("[[key")
    ring.refresh()
    assert ring.find(new) is not None
    assert "the former keys stay in force" in caplog.text
    file.unlink()
    ring.refresh()
    assert ring.find(new) is not None


def test_the_commands_make_list_and_revoke(tmp_path):
    file = str(tmp_path / "keys.toml")
    limits = ("--sessions", "2", "--tokens-per-minute", "6000", "--max-context", "300")
    added = keys("add", "phone", "--keys", file, "--scope", "session", *limits, "--expires", "30d", "--comment", "hers")
    assert added.exit_code == 0
    secret = added.stdout.strip()
    key = Keyring(tmp_path / "keys.toml").find(secret)
    assert (key.scopes, key.quota, key.comment) == ({Scope.SESSION}, Quota(2, 6000, 300), "hers")
    listed = keys("list", "--keys", file)
    assert "phone" in listed.stdout
    assert secret not in listed.output
    assert secret.rpartition(".")[2] not in (tmp_path / "keys.toml").read_text()
    assert keys("revoke", "phone", "--keys", file).exit_code == 0
    assert read_keys(tmp_path / "keys.toml") == {}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["add", "a b"], "'a b'"),
        (["add", "known"], "already exists"),
        (["add", "x", "--scope", "everything"], "scope=everything"),
        (["add", "x", "--sessions", "0"], "sessions=0: need at least 1"),
        (["add", "x", "--expires", "soon"], "expires=soon"),
        (["add", "x", "--expires", "2020-01-01"], "lies in the past"),
        (["add", "x", "--expires", "99999999999d"], "expires="),
        (["revoke", "x"], "which has known"),
    ],
)
def test_the_commands_mistakes_are_one_line(tmp_path, options, complaint):
    write(tmp_path / "keys.toml", "known")
    result = keys(*options, "--keys", str(tmp_path / "keys.toml"))
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
