"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, and rename it to `path` when the block ends.

    Readers see the old file or the new one, never half of one. If the block raises, what it wrote is removed.
    """
    # Same directory: a rename is atomic only within one file system. Own name: two processes may write at once.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: str | bytes, mode: int = 0o666) -> None:
    """Write a whole file, text as UTF-8, with permissions `mode` less the umask. Raises OSError."""
    with atomic_path(path) as partial:
        partial.unlink(missing_ok=True)
        # O_EXCL: a private key must never be written into a file that somebody else has made and can read.
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(data.encode() if isinstance(data, str) else data)


def stamp_of(*paths: Path) -> tuple[tuple[int, int, int], ...] | None:
    """Return what changes when a file is replaced; None while one is missing."""
    try:
        return tuple((about.st_mtime_ns, about.st_size, about.st_ino) for about in (path.stat() for path in paths))
    except OSError:
        return None
