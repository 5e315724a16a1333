"""Files that are written whole or not at all, and files of strangers, which are read within bounds."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from outrider_proto.errors import UsageError

MAX_BYTES = 16 * 2**20  # of a file that is read whole; an index of a large checkpoint has a few MiB
MAX_TOKENIZER_BYTES = 64 * 2**20  # of a tokenizer.json: Llama 3's has 17 MB, Gemma's 33
MAX_DEPTH = 100  # of lists and objects in each other
MAX_REPORT_BYTES = 64 * 2**20  # of what a measurement wrote
MAX_LINES_BYTES = 256 * 2**20  # of a file of lines that are parsed one by one
_CHUNK = 2**16
_XZ_MEMORY = 256 * 2**20  # a header may ask for 4 GiB; the strongest preset takes 65 MiB


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


def write_for_user(path: Path, data: str | bytes, option: str = "", mode: int = 0o666) -> None:
    """Do as write_atomically(). Raises UsageError, which names `option`, too."""
    try:
        write_atomically(path, data, mode)
    except OSError as error:
        name = f"{option}={path}" if option else path
        raise UsageError(f"{name}: cannot be written: {error.strerror}") from error


def stamp_of(*paths: Path) -> tuple[tuple[int, int, int], ...] | None:
    """Return what changes when a file is replaced; None while one is missing."""
    try:
        return tuple((about.st_mtime_ns, about.st_size, about.st_ino) for about in (path.stat() for path in paths))
    except OSError:
        return None


def open_at_once(path: str, flags: int) -> int:
    """Open a file, as `opener` of `open`; a pipe that nobody writes to is empty. Raises OSError."""
    # O_NONBLOCK: to open such a pipe would wait for ever.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.set_blocking(descriptor, True)  # what a shell's <(COMMAND) has yet to write is waited for
    return descriptor


def read_regular(path: Path, max_bytes: int = MAX_BYTES, name: object = None, *, pipes: bool = False) -> bytes:
    """Read a file whole. Raises UsageError, which begins with `name`, by default the path, also for one over
    `max_bytes`, for a device, and for a pipe unless `pipes`: a shell's `<(COMMAND)` is one."""
    name = name or path
    try:
        with open(path, "rb", opener=open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            is_read = stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))
            data = b"".join(_chunks(file, max_bytes + 1)) if is_read else b""
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL, or with half of a surrogate pair
        raise UsageError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not is_read:
        raise UsageError(f"{name}: not a regular file")
    if len(data) > max_bytes:
        raise UsageError(f"{name}: larger than {max_bytes >> 10} KiB")
    return data


def read_text(path: Path, option: str = "") -> str:
    """Read a text file, or a shell's `<(COMMAND)`. Raises UsageError, which names `option`, too, and quotes no text."""
    name = f"{option}={path}" if option else path
    try:
        return read_regular(path, name=name, pipes=True).decode()
    except UnicodeDecodeError:
        # `from None`: the decoder's error holds the bytes, which may be private, or a key.
        raise UsageError(f"{name}: not UTF-8 text") from None


def _chunks(file: BinaryIO, left: int) -> Iterator[bytes]:
    # In pieces: read(n) allocates all n bytes at once, also for a file of three.
    while left and (data := file.read(min(left, _CHUNK))):
        left -= len(data)
        yield data


def read_packed(path: Path, max_bytes: int = MAX_REPORT_BYTES) -> bytes:
    """Read a file whole, unpacked if its name ends in .gz or .xz. Raises UsageError as `read_regular` does."""
    data = read_regular(path, max_bytes)
    try:
        if path.suffix == ".gz":
            data = gzip.GzipFile(fileobj=BytesIO(data)).read(max_bytes + 1)
        elif path.suffix == ".xz":
            data = _unpacked_xz(data, max_bytes + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"{path}: cannot be unpacked ({error})") from error
    if len(data) > max_bytes:
        raise UsageError(f"{path}: unpacks to more than {max_bytes >> 10} KiB")
    return data


def _unpacked_xz(data: bytes, max_bytes: int) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    unpacked = decoder.decompress(data, max_bytes)
    if len(unpacked) < max_bytes and (not decoder.eof or decoder.unused_data):
        raise EOFError("need one whole stream")
    return unpacked


def parse_json(data: str | bytes, name: object) -> Any:  # Any: whatever JSON holds
    """Parse JSON that a stranger wrote. Raises UsageError, which begins with `name`."""
    return _parsed(json.loads, data, name, "JSON")


def parse_toml(data: bytes | str, name: object) -> dict[str, Any]:  # Any: whatever TOML holds
    """Parse TOML that a stranger wrote. Raises UsageError, which begins with `name`."""
    value: dict[str, Any] = _parsed(_toml, data, name, "TOML")
    return value


def _toml(data: bytes | str) -> dict[str, Any]:  # Any: as above
    return tomllib.loads(data.decode() if isinstance(data, bytes) else data)


def _parsed(parse: Callable[[Any], Any], data: str | bytes, name: object, form: str) -> Any:
    try:
        level = [value := parse(data)]
    except (ValueError, RecursionError) as error:
        # ValueError itself: Python's of a number of more than 4,300 digits, whose text tells how to allow it.
        named = {RecursionError: "nested too deep", UnicodeDecodeError: "not UTF-8", ValueError: "a number is too long"}
        reason = named.get(type(error), error)
        raise UsageError(f"{name}: cannot be read as {form} ({reason})") from error
    depth = 0
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise UsageError(f"{name}: cannot be read as {form} (nested over {MAX_DEPTH} deep)")
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return value


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:  # Any: whatever JSON holds
    """Read a JSON file within bounds. Raises UsageError, which names it."""
    return parse_json(read_regular(path, max_bytes), path)
