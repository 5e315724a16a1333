"""Earlier answers kept on this device for drafts (families/suffix): answers to open prompts, an SQLite file a server.

What one server has said is never drafted to another: that is what the file's name is for. Nothing here knows a prompt;
whoever adds an answer has made sure that it was written on no private text.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np

from outrider_drafters.families.suffix.index import History, Ints
from outrider_proto.files import stamp_of

MB = 1_000_000
_LONGEST = 0.9  # share of a full file that one answer may take
_SPARE = 6  # pages that an answer may take beside its tokens
_LOCK_S = 2.0  # far more than another process takes
_WORK_S = 10.0  # far more than the largest file takes; a query that others have left in it may have no end
_MOST_OVERSIZE = 4  # times the limit: it may have been lowered, but a file of any size would be read into memory
_TABLE = "CREATE TABLE answers (id INTEGER PRIMARY KEY, tokens BLOB NOT NULL)"
_DROP_OLDEST = "DELETE FROM answers WHERE id <= (SELECT min(id) + (max(id) - min(id)) / 16 FROM answers)"


def history_folder() -> Path:
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
        self._seen: object = None  # what the file was like when it was read
        self._texts = History()
        self._warnings: list[str] = []
        self._is_told = False  # that the file cannot be used
        self._lock = threading.Lock()

    def texts(self) -> History:
        """Return the answers so far, of other processes, too."""
        with self._lock, self._catching():
            self._refresh()
            return self._texts
        return History()

    def add(self, answer: Sequence[int]) -> None:
        """Add an answer's tokens."""
        if not answer:
            return
        most = int(self._limit_bytes * _LONGEST) // 4
        tokens = np.array(answer[-most:], "<i4").tobytes()
        with self._lock, self._catching():
            self._refresh()
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._opened() as file:
                self._make_room(file, len(tokens))
                file.execute("INSERT INTO answers (tokens) VALUES (?)", (tokens,))

    def take_warnings(self) -> list[str]:
        """Return what went wrong since the last call, a line each."""
        taken, self._warnings = self._warnings, []
        return taken

    def _refresh(self) -> None:
        """Read the file if it has changed, or was cleared: it is gone from memory then, too."""
        if (stamp := stamp_of(self.file)) == self._seen:
            return
        self._texts, self._seen = History(), None
        try:
            if stamp is not None:
                self._texts = History(self._read())
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._warnings.append(f"{self.file}: a damaged draft history ({error}): started anew")
            self.file.unlink()
        else:
            self._seen = stamp

    def _read(self) -> list[Ints]:
        with self._opened() as file:
            if (fault := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise ValueError(fault.splitlines()[-1])
            rows = file.execute("SELECT tokens FROM answers ORDER BY id").fetchall()
        texts = [np.frombuffer(tokens, "<i4").astype(np.int32) for (tokens,) in rows]
        if any(text.size and not 0 <= text.min() <= text.max() < self._vocab_size for text in texts):
            raise ValueError(f"it holds tokens beyond the vocabulary of {self._vocab_size}")
        return texts

    def _make_room(self, file: sqlite3.Connection, num_bytes: int) -> None:
        """Drop the oldest answers until one of so many bytes fits."""
        # By pages, not by bytes: those of answers of about a page are half empty.
        page_bytes = _number(file, "PRAGMA page_size")
        most = (self._limit_bytes - num_bytes) // page_bytes - _SPARE
        while _number(file, "PRAGMA page_count") - _number(file, "PRAGMA freelist_count") > most:
            if not file.execute(_DROP_OLDEST).rowcount:
                break

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if not self.file.exists():
            self.file.touch(mode=0o600)  # SQLite would let others read it
        if not self.file.is_file():
            raise OSError(errno.EINVAL, "not a regular file")
        size_bytes = self.file.stat().st_size
        if size_bytes > _MOST_OVERSIZE * self._limit_bytes:
            raise OSError(errno.EFBIG, f"over {_MOST_OVERSIZE} times its limit; outrider draft-history --clear")
        # Whoever has waited for a lock in vain does not wait before every answer.
        timeout_s, give_up_at = 0.0 if self._is_told else _LOCK_S, time.monotonic() + _WORK_S
        with closing(sqlite3.connect(self.file, timeout=timeout_s, isolation_level=None)) as file, file:
            file.set_progress_handler(lambda: time.monotonic() > give_up_at, 10_000)
            # Answers and other processes would wait for the disk. A file that a power failure damages is started anew.
            file.execute("PRAGMA synchronous = OFF")
            if not size_bytes:  # later it would write, for which a full disk has no room
                file.execute("PRAGMA auto_vacuum = FULL")  # what is dropped makes the file smaller
            # Of two that read first and write then, SQLite refuses one at once.
            file.execute("BEGIN IMMEDIATE")
            if not (made := file.execute("SELECT sql FROM sqlite_master").fetchall()):
                file.execute(_TABLE)
            elif made != [(_TABLE,)]:  # triggers and views would run what others wrote
                raise sqlite3.DatabaseError("it holds more than answers")
            yield file

    @contextmanager
    def _catching(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if not self._is_told:
                why = error.strerror if isinstance(error, OSError) else error
                self._warnings.append(f"{self.file}: drafting without the history, which cannot be used ({why})")
            self._is_told = True


def _number(file: sqlite3.Connection, query: str) -> int:
    (number,) = file.execute(query).fetchone()
    return int(number)


def kept_histories(folder: Path) -> dict[Path, int]:
    """Return the files of all histories, and how many bytes each has."""
    sizes = {path: path.stat().st_size for path in sorted(folder.glob("*")) if not path.name.endswith("-journal")}
    return {path: size_bytes for path, size_bytes in sizes.items() if size_bytes}


def clear_histories(folder: Path) -> None:
    """Delete all histories. Clients that run forget theirs before their next answer. Raises OSError."""
    for path in sorted(folder.glob("*")):
        path.unlink(missing_ok=True)
