"""Earlier answers kept on this device for drafts (families/suffix): answers to open prompts, one file a server.

FILE = magic, then a record an answer: number of tokens, CRC-32 of the tokens, tokens (all 4 bytes, little-endian)

What one server has said is never drafted to another: that is what the file's name is for. Nothing here knows a prompt;
whoever adds an answer has made sure that it was written on no private text.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout

from outrider_drafters.families.suffix.index import History, Ints
from outrider_proto.files import write_atomically

MB = 1_000_000
_MAGIC = b"outrider draft history 1\n"
_HEADER = struct.Struct("<II")
_KEPT = 0.75  # of a full file: else every further answer would have the whole file written again
_LOCK = ".lock"
_LOCK_S = 2.0  # far more than another process takes


def history_folder() -> Path:
    """Return the folder of all histories, whether or not it is there."""
    from platformdirs import user_state_path

    return user_state_path("outrider") / "draft_history"


class DraftHistory:
    """The history of one server's answers, of at most `limit_mb`; the newest stay. Several processes may use the file.

    Whatever goes wrong with the file ends up in `warnings`, and drafting goes on without it.
    """

    def __init__(self, server: str, tokenizer: str, vocab_size: int, limit_mb: int, folder: Path | None = None) -> None:
        self.file = (history_folder() if folder is None else folder) / f"{quote(server, safe='')}_{tokenizer}"
        self._vocab_size = vocab_size
        self._limit_bytes = limit_mb * MB
        self._seen: tuple[int, ...] | None = None  # what the file was like when it was read
        self._texts = History()
        self._warnings: list[str] = []
        self._is_told = False  # that the file cannot be used
        self._lock = threading.Lock()  # a file lock does not keep this process's own threads apart

    def texts(self) -> History:
        """Return the answers so far, of other processes, too."""
        with self._lock, self._catching():
            # A stat tells of a history that was cleared meanwhile, too: it is gone from memory with the next answer.
            if self._state() != self._seen:
                with self._file_lock():
                    self._read()
            return self._texts
        return History()

    def add(self, answer: Sequence[int]) -> None:
        """Add an answer's tokens, and read the file again, so that the next answer need not wait for that."""
        if not answer:
            return
        most = int(self._limit_bytes * _KEPT) // 4 - len(_MAGIC)
        record = _record(np.array(answer[-most:], np.int32))
        with self._lock, self._catching():
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._file_lock():
                if self._state() != self._seen:
                    self._read()
                self._append(record)
                self._read()

    def take_warnings(self) -> list[str]:
        """Return what went wrong since the last call, a line each."""
        taken, self._warnings = self._warnings, []
        return taken

    def _append(self, record: bytes) -> None:
        if self._seen is not None and self.file.stat().st_size + len(record) <= self._limit_bytes:
            with self.file.open("ab") as out:
                out.write(record)
            return
        kept, room = [record], self._limit_bytes * _KEPT - len(record)
        for older in reversed(_texts_in(self._texts)):
            if (room := room - _HEADER.size - older.nbytes) < 0:
                break
            kept.append(_record(older))
        write_atomically(self.file, _MAGIC + b"".join(reversed(kept)), mode=0o600)

    def _read(self) -> None:
        self._seen, self._texts = self._state(), History()
        if self._seen is None:
            return
        try:
            self._texts = History(_parsed(self.file.read_bytes(), self._vocab_size))
        except ValueError as error:
            self._warnings.append(f"{self.file}: a damaged draft history ({error}): started anew")
            self.file.unlink()
            self._seen = None

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = self.file.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _file_lock(self) -> AbstractContextManager[object]:
        path = self.file.with_name(self.file.name + _LOCK)
        # Where there is no folder, there is no file either, and reading must not make one.
        return FileLock(path, timeout=_LOCK_S, mode=0o600) if path.parent.is_dir() else nullcontext()

    @contextmanager
    def _catching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_told:
                why = "another process holds it" if isinstance(error, Timeout) else error.strerror
                self._warnings.append(f"{self.file}: drafting without the history, which cannot be used ({why})")
            self._is_told = True


def _record(tokens: Ints) -> bytes:
    data = tokens.astype("<i4").tobytes()
    return _HEADER.pack(len(tokens), zlib.crc32(data)) + data


def _parsed(data: bytes, vocab_size: int) -> list[Ints]:
    """Return the answers in a file. Raises ValueError for a damaged one."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    texts: list[Ints] = []
    at = len(_MAGIC)
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise ValueError("its end is missing")
        count, digest = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        piece = data[at : at + 4 * count]
        if len(piece) < 4 * count or zlib.crc32(piece) != digest:
            raise ValueError("a record is not as it was written")
        tokens = np.frombuffer(piece, "<i4").astype(np.int32)
        if count and not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise ValueError(f"it holds tokens beyond the vocabulary of {vocab_size}")
        texts.append(tokens)
        at += 4 * count
    return texts


def _texts_in(history: History) -> list[Ints]:
    ends = np.flatnonzero(history.tokens < 0)
    return [piece[piece >= 0] for piece in np.split(history.tokens, ends)][: len(ends)]


def kept_histories(folder: Path) -> dict[Path, int]:
    """Return the files of all histories, and how many bytes each has."""
    files = sorted(folder.glob("*"))
    return {path: path.stat().st_size for path in files if path.is_file() and path.suffix != _LOCK}


def clear_histories(folder: Path) -> None:
    """Delete all histories. Clients that run forget theirs before their next answer. Raises OSError."""
    for path in sorted(folder.glob("*")):
        path.unlink(missing_ok=True)
