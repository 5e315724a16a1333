import stat

import pytest

from outrider_proto.files import atomic_path, write_atomically


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
