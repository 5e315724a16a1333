"""The keys a server knows now: looked up in the same time whether a key is right, wrong or of nobody; read again when
their file changes."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from outrider_proto.errors import UsageError
from outrider_server.security.keys import MAX_KEY_LENGTH, PREFIX, Key, digest_of, read_keys, utc_now

_log = logging.getLogger(__name__)
_NOBODY = bytes(32)  # compared with where there is no such id; no key has it that anybody could find


class Keyring:
    """Raises UsageError when the file cannot be used at the start."""

    def __init__(self, file: Path, clock: Callable[[], datetime] = utc_now) -> None:
        self._file = file
        self._clock = clock
        self._stamp = _stamp(file)
        self._keys = read_keys(file)

    def find(self, presented: str) -> Key | None:
        """The key that `presented` is, unless it has expired."""
        if len(presented) > MAX_KEY_LENGTH:
            return None
        prefix, _, rest = presented.partition(".")
        key = self._keys.get(rest.partition(".")[0]) if prefix == PREFIX else None
        is_right = hmac.compare_digest(digest_of(presented), key.digest if key else _NOBODY)
        return key if key is not None and is_right and not key.is_expired(self._clock()) else None

    def holds(self, payer: str, digest: bytes) -> bool:
        """Whether the very key that a principal came with is still good."""
        key = self._keys.get(payer)
        return key is not None and key.digest == digest and not key.is_expired(self._clock())

    def refresh(self) -> None:
        """Read the file again if it has changed. One that cannot be used changes nothing: nobody who is known is shut
        out by a slip of the pen, and the log says so."""
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._file)
        except UsageError as error:
            _log.error("%s; the keys from before stay in force", error)
        else:
            _log.info("keys=%s: read again, %d keys", self._file, len(self._keys))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
