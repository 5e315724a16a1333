"""The cache of targets: what is found again, what leaves it, and what stays since a process reads it."""

import mmap
import os
from collections import namedtuple
from pathlib import Path

import pytest

from outrider_drafters.readers import target_cache
from outrider_drafters.readers.target_cache import CachedTarget, beyond, cached_targets, write_cached
from outrider_proto.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outrider" / "targets"


def fill(directory: Path) -> None:
    directory.mkdir()
    (directory / "weights").write_bytes(b"w" * 1000)


def cached(source: Path, kind="int8", used_at=None) -> Path:
    if not source.exists():
        source.write_text("source")
    directory = write_cached(source, kind, fill)
    if used_at is not None:
        os.utime(directory, (used_at, used_at))
    return directory


def names() -> set[str]:
    return {"-".join((target.directory.name.split("-")[0], target.dtype)) for target in cached_targets()}


@pytest.mark.parametrize(
    ("happens", "stay"),
    [
        (lambda source: None, {"a-int8", "a-float32", "b-int8", "c-int8"}),
        (lambda source: source.write_text("another"), {"b-int8", "c-int8"}),
        (lambda source: os.utime(source, (1, 1)), {"b-int8", "c-int8"}),
        (Path.unlink, {"b-int8", "c-int8"}),
    ],
    ids=["nothing", "changed", "of another time", "gone"],
)
def test_what_nobody_asks_for_goes_when_the_next_is_written(tmp_path, happens, stay):
    for name, kind in (("a", "int8"), ("a", "float32"), ("b", "int8")):
        cached(tmp_path / f"{name}.gguf", kind)
    happens(tmp_path / "a.gguf")
    cached(tmp_path / "b.gguf")  # only found again: nothing goes
    assert names() == {"a-int8", "a-float32", "b-int8"}
    cached(tmp_path / "c.gguf")
    assert names() == stay


@pytest.mark.parametrize(
    ("most", "removed"), [(60, []), (59, ["oldest"]), (50, ["oldest"]), (31, ["oldest", "middle"]), (0, None)]
)
def test_the_least_recently_used_go_first(tmp_path, most, removed):
    sizes = {"newest": (3.0, 30), "oldest": (1.0, 10), "middle": (2.0, 20)}
    targets = [CachedTarget(tmp_path / name, "int8", None, *use) for name, use in sizes.items()]
    gone = [target.directory.name for target in beyond(targets, most)]
    assert gone == (["oldest", "middle", "newest"] if removed is None else removed)


def test_a_full_disk_keeps_half_and_what_was_just_written(tmp_path, monkeypatch):
    for at, name in enumerate("abc"):
        cached(tmp_path / f"{name}.gguf", used_at=1000 + at)
    cached(tmp_path / "a.gguf")  # used again
    monkeypatch.setattr(target_cache.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(0))
    cached(tmp_path / "d.gguf")
    assert names() == {"a-int8", "d-int8"}


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads Linux's /proc")
def test_what_a_process_has_open_stays(tmp_path):
    directory = cached(tmp_path / "a.gguf")
    with (directory / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        (target,) = cached_targets()
        with pytest.raises(UsageError, match=rf"{directory.name}: a running process has it open; stop that first$"):
            target.remove()
        assert not list(beyond([target], 0))
        (tmp_path / "a.gguf").unlink()
        cached(tmp_path / "b.gguf")
        assert names() == {"a-int8", "b-int8"}
    cached(tmp_path / "c.gguf")
    assert names() == {"b-int8", "c-int8"}


def test_the_source_is_told_once_it_is_used_again(tmp_path):
    directory = cached(tmp_path / "a.gguf", used_at=1000)
    (directory / target_cache.SOURCE).unlink()  # as an earlier version has left it
    os.utime(directory, (1000, 1000))
    assert [(each.source, each.used_at, each.is_stale) for each in cached_targets()] == [(None, 1000, False)]
    cached(tmp_path / "a.gguf")
    (target,) = cached_targets()
    assert (target.source, target.size_bytes) == (tmp_path / "a.gguf", 1000 + len(str(tmp_path / "a.gguf")))
    assert target.used_at > 1000
