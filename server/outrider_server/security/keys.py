"""Keys, the file that lists them, and the lookup. A key is `outrider.ID.SECRET`; the file holds its SHA-256.

The secret has 256 random bits. A slow password hash would add nothing: it makes guessing expensive, and 2**256 cannot
be guessed however cheap each attempt.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.files import atomic_path, parse_toml, read_regular, stamp_of
from outrider_server.security.principal import ALL_SCOPES, NO_QUOTA, Quota, Scope

_log = logging.getLogger(__name__)
_NOBODY = bytes(32)  # compared with where there is no such id; no findable key has this digest
PREFIX = "outrider"
MAX_KEY_LENGTH = 256
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET_BYTES = 32
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HEADER = "# Keys of an Outrider server, hashed. Written by `outrider-server keys`, re-read when it changes.\n"


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the key file. Raises UsageError."""

    id: str
    digest: bytes
    scopes: frozenset[Scope] = ALL_SCOPES
    quota: Quota = NO_QUOTA
    expires: datetime | None = None
    comment: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise UsageError(f"key id {self.id!r}: need 1 to 64 of A-Z a-z 0-9 _ -")
        if not self.comment.isprintable():
            raise UsageError(f"key {self.id}: its comment has characters that cannot be printed")
        if self.expires is not None and self.expires.tzinfo is None:
            raise UsageError(f"key {self.id}: expires={self.expires}: need a time zone, as in 2027-01-31T00:00:00Z")
        if not self.scopes:
            raise UsageError(f"key {self.id}: need a scope, of {', '.join(scope.value for scope in Scope)}")

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


def new_secret(key_id: str) -> str:
    """Return a whole new key, to be shown once."""
    return f"{PREFIX}.{key_id}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(file: Path) -> dict[str, Key]:
    """Read a key file; return keys by id. Raises UsageError, which never quotes a line of the file."""
    try:
        data = read_regular(file, name=f"keys={file}")
    except UsageError as error:
        raise UsageError(f"{error}; make it with `outrider-server keys add NAME --keys {file}`") from error
    try:
        table = parse_toml(data, file)
    except UsageError:  # `from None`: its message may quote a line with a hash
        raise UsageError(f"keys={file}: not TOML") from None
    try:
        if table.keys() - {"key"}:
            raise UsageError(f"unknown {', '.join(sorted(table.keys() - {'key'}))}: need only [[key]]")
        keys = [_key(entry) for entry in table.get("key", [])]
        if len({key.id for key in keys}) < len(keys):
            raise UsageError("an id occurs twice")
    except (UsageError, TypeError, AttributeError) as error:
        raise UsageError(f"keys={file}: {error}") from None
    return {key.id: key for key in keys}


def write_keys(file: Path, keys: Iterable[Key]) -> None:
    """Write a key file atomically, for its owner and those who could read it before. Raises UsageError."""
    text = _HEADER + "".join(f"\n[[key]]\n{_entry(key)}" for key in keys)
    try:
        with atomic_path(file) as partial:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                _hand_over(descriptor, file)
                # Before the rename: a crash must not leave the new name with an empty file, which admits nobody.
                os.fsync(descriptor)
    except OSError as error:
        raise UsageError(f"keys={file}: cannot be written: {error.strerror}") from error


def _hand_over(descriptor: int, former: Path) -> None:
    """Give the new file the former one's owner, and its group if that could read it."""
    with suppress(FileNotFoundError):
        # A server that runs as another user must still be able to read the file, or it would never see what was
        # revoked.
        about = former.stat()
        mine = os.fstat(descriptor)
        if (mine.st_uid, mine.st_gid) != (about.st_uid, about.st_gid):
            os.fchown(descriptor, about.st_uid, about.st_gid)
        os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR | about.st_mode & stat.S_IRGRP)


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Parse scope names. Raises UsageError."""
    known = {scope.value: scope for scope in Scope}
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise UsageError(f"scope={name}: need one of {', '.join(known)}")
    return frozenset(known[name] for name in chosen)


def utc_now() -> datetime:
    return datetime.now(UTC)


def _key(entry: Any) -> Key:  # Any: whatever a TOML file holds
    if not isinstance(entry, dict):
        raise UsageError("need [[key]] sections")
    entry = dict(entry)
    key_id, digest = entry.pop("id", None), entry.pop("sha256", None)
    if not isinstance(key_id, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise UsageError("every [[key]] needs an id, and a sha256 of 64 hexadecimal digits")
    quota = Quota(**{field.name: _count(key_id, field.name, entry.pop(field.name, None)) for field in fields(Quota)})
    names = entry.pop("scopes", [scope.value for scope in Scope])
    expires, comment = entry.pop("expires", None), entry.pop("comment", "")
    if entry:
        raise UsageError(f"key {key_id}: unknown {', '.join(sorted(entry))}")
    if not isinstance(names, list) or not isinstance(comment, str):
        raise UsageError(f"key {key_id}: need scopes as a list, and a comment as text")
    if expires is not None and not isinstance(expires, datetime):
        raise UsageError(f"key {key_id}: expires: need date, time and zone, as in 2027-01-31T00:00:00Z")
    return Key(key_id, bytes.fromhex(digest), parse_scopes(map(str, names)), quota, expires, comment)


def _count(key_id: str, name: str, value: object) -> int | None:
    # Not isinstance: True is an int, and `sessions = true` would mean 1.
    if value is not None and type(value) is not int:
        raise UsageError(f"key {key_id}: {name}: need a whole number")
    return value


def _entry(key: Key) -> str:
    lines = [f'id = "{key.id}"', f'sha256 = "{key.digest.hex()}"']
    names = [scope.value for scope in Scope if scope in key.scopes]
    lines.append(f"scopes = {json.dumps(names)}")
    counts = ((field.name, getattr(key.quota, field.name)) for field in fields(Quota))
    lines += [f"{name} = {count}" for name, count in counts if count is not None]
    if key.expires is not None:
        lines.append(f"expires = {key.expires.isoformat()}")
    if key.comment:
        lines.append(f"comment = {json.dumps(key.comment, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


class Keyring:
    """The keys a server accepts now. Raises UsageError when the file cannot be used at the start."""

    def __init__(self, file: Path, clock: Callable[[], datetime] = utc_now) -> None:
        self._file = file
        self._clock = clock
        self._stamp = stamp_of(file)
        self._keys = read_keys(file)

    def find(self, presented: str) -> Key | None:
        """Return the key that `presented` is, None if unknown, wrong or expired."""
        if len(presented) > MAX_KEY_LENGTH:
            return None
        prefix, _, rest = presented.partition(".")
        key = self._keys.get(rest.partition(".")[0]) if prefix == PREFIX else None
        # Compare in constant time, and also when the id is unknown: the time must not tell whether an id exists.
        is_right = hmac.compare_digest(digest_of(presented), key.digest if key else _NOBODY)
        return key if key is not None and is_right and not key.is_expired(self._clock()) else None

    def holds(self, payer: str, digest: bytes) -> bool:
        """Return whether the key that a principal came with is still valid."""
        key = self._keys.get(payer)
        return key is not None and key.digest == digest and not key.is_expired(self._clock())

    def refresh(self) -> None:
        """Read the file again if it has changed; if it cannot be used, keep the keys and log the error."""
        stamp = stamp_of(self._file)
        if stamp == self._stamp:
            return
        # Before read_keys(): a file that cannot be used is not read again until it changes.
        self._stamp = stamp
        try:
            self._keys = read_keys(self._file)
        except UsageError as error:
            _log.error("%s; the former keys stay in force", error)
        else:
            _log.info("keys=%s: read again, %d keys", self._file, len(self._keys))
