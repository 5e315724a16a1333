"""Writes cpio archives in the kernel's initramfs format (newc). Two archives one after the other are one image."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

BLOCK_BYTES = 4
TRAILER = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a folder where `data` is None; `path` is absolute in the guest."""

    path: str
    data: bytes | None
    executable: bool = False


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of `entries` and of the folders they lie in; the last of several with one path wins."""
    files = {entry.path.strip("/"): entry for entry in entries}
    folders = {name: Entry(name, None) for path in files for name in _folders_of(path)}
    parts = [_record(number, path, entry) for number, (path, entry) in enumerate(sorted((folders | files).items()), 1)]
    return b"".join([*parts, _record(0, TRAILER, Entry(TRAILER, b""))])


def _folders_of(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def _record(number: int, path: str, entry: Entry) -> bytes:
    """Magic and 13 fields of 8 hexadecimal digits, the name, the data, each padded (Linux, buffer-format.rst)."""
    data = entry.data or b""
    name = path.encode() + b"\0"
    #        inode   mode          uid gid links time size       device, its device  name        checksum
    fields = (number, _mode(entry), 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(head) + _padded(data)


def _mode(entry: Entry) -> int:
    if entry.data is None:
        return stat.S_IFDIR | 0o755
    return stat.S_IFREG | (0o755 if entry.executable else 0o644)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK_BYTES)
