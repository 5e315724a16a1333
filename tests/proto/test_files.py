import gzip
import lzma
import os
import stat
import subprocess
from pathlib import Path

import pytest

from outrider_proto.errors import UsageError
from outrider_proto.files import atomic_path, read_packed, read_regular, write_atomically, write_for_user


def test_replaces_the_whole_file(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old and longer")
    write_atomically(path, "nëw")
    assert path.read_bytes() == "nëw".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")

    def fail() -> None:
        with atomic_path(path) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_permissions(tmp_path):
    write_atomically(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("plain.json", bytes(20_001), "larger than"),
        ("cut.gz", gzip.compress(b"hello")[:-9], r"cannot be unpacked \("),
        ("cut.xz", lzma.compress(b"hello")[:-9], r"cannot be unpacked \("),
        ("garbage.xz", b"hello", r"cannot be unpacked \("),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_packed_files_stay_within_bounds(tmp_path, name, data, error):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"{name}: {error}"):
        read_packed(path, max_bytes=20_000)


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.json", bytes)])
def test_packed_files_of_any_kind_are_read(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"hello"))
    assert read_packed(tmp_path / name) == b"hello"


def test_a_pipe_is_read_where_it_may_be_and_empty_where_nobody_writes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="not a regular file"):
        read_regular(pipe)
    assert read_regular(pipe, pipes=True) == b""
    written = subprocess.Popen(["echo", "hello"], stdout=subprocess.PIPE)
    assert read_regular(Path(f"/proc/self/fd/{written.stdout.fileno()}"), pipes=True) == b"hello\n"
    written.communicate()


@pytest.mark.parametrize("path", ["a\0b", "a\ud800"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_regular(Path(path))


@pytest.mark.parametrize(("option", "name"), [("ready_file", "ready_file="), ("", "")])
def test_a_file_that_cannot_be_written_is_told_in_a_line(tmp_path, option, name):
    path = tmp_path / "nowhere/file"
    with pytest.raises(UsageError) as told:
        write_for_user(path, "text", option)
    assert str(told.value) == f"{name}{path}: cannot be written: No such file or directory"
