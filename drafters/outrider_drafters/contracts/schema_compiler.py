"""Compiles JSON schemas of strangers: tried in a child first, once each; what passed is compiled again in place.

Nothing is shared between payers, who could otherwise tell from the time what others have used.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from outrider_drafters.contracts.schema_grammar import NO_TOKENIZER, bad, compiled, load_tokenizer
from outrider_drafters.trials.trial import OutOfBounds, Stopped, Trial
from outrider_proto.errors import Refusal, UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MODULE = "outrider_drafters.contracts.schema_grammar"
_MAX_BYTES = 256 << 20  # of compiled schemas that are kept
_LEAST_BYTES = 1 << 20  # that one counts as
_MAX_REFUSED = 1024  # that are remembered

_Key = tuple[str, bytes]  # the payer, and the digest of a schema


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A schema for the tokens of a target. Matchers that are copied from its own share what they learn of it."""

    matcher: LLMatcher
    size_bytes: int


class SchemaCompiler:
    """Compiles JSON schemas for the tokenizer in a target's directory. From any thread."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokens = (str(directory / "tokenizer.json"), vocab_size, (*eos_token_ids,))
        self.eos_token_ids = list(self._tokens[2])
        self._trial = Trial("grammar", _MODULE)
        weakref.finalize(self, self._trial.close)  # at the interpreter's end, too
        self._compiling, self._lock = Lock(), Lock()
        self._kept: OrderedDict[_Key, Compiled] = OrderedDict()
        self._refused: OrderedDict[_Key, Refusal] = OrderedDict()

    def warm(self) -> None:
        """Start the child in a thread, so that the first schema does not wait for it."""
        if Path(self._tokens[0]).is_file():
            Thread(target=self._set_up, name="outrider schemas", daemon=True).start()

    def find(self, schema: str, payer: str = "") -> Compiled | None:
        """Return a payer's schema if it is compiled, at once. Raises Refusal for one that has been refused."""
        key = _key(schema, payer)
        with self._lock:
            if (refusal := self._refused.get(key)) is not None:
                raise Refusal(refusal.reason, refusal.message)
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return found

    def compile(self, schema: str, payer: str = "", is_wanted: Callable[[], bool] = lambda: True) -> Compiled:
        """Return a payer's schema, compiled now if it is not yet. Raises Refusal (BAD_SAMPLING).

        `is_wanted` is asked before its trial: `stop` ends one that has begun.
        """
        with self._compiling:
            if (found := self.find(schema, payer)) is not None:
                return found
            try:
                self._make_ready()
            except UsageError as error:  # which tells nothing of the schema
                raise bad(f"json_schema: cannot be tried: {error}") from error
            try:
                made = self._tried(schema, is_wanted)
            except Stopped as error:
                raise bad(f"json_schema: {error}") from error
            except OutOfBounds as error:
                refusal = bad(f"json_schema: {error} to compile: make it simpler")
                self.refuse(schema, payer, refusal)
                raise refusal from error
            except Refusal as refusal:
                self.refuse(schema, payer, refusal)
                raise
            self._keep(_key(schema, payer), made)
            return made

    def refuse(self, schema: str, payer: str, refusal: Refusal) -> None:
        """Remember that a schema is refused."""
        key = _key(schema, payer)
        with self._lock:
            self._kept.pop(key, None)
            self._refused[key] = refusal
            while len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)

    def forget(self, schema: str, payer: str) -> None:
        """Compile a schema anew when it is next used."""
        with self._lock:
            self._kept.pop(_key(schema, payer), None)

    def stop(self) -> None:
        """End the trial under way and its child; a later schema starts another. From any thread, at once."""
        self._trial.stop()

    def _set_up(self) -> None:
        with self._compiling, suppress(UsageError, Refusal):  # the first schema tells
            self._make_ready()

    def _make_ready(self) -> None:
        """Have the child load the tokens, unless it has."""
        if not Path(self._tokens[0]).is_file():
            raise bad(NO_TOKENIZER)
        self._trial.run(f"{_MODULE}:set_up", *self._tokens, is_setup=True)

    def _tried(self, schema: str, is_wanted: Callable[[], bool]) -> Compiled:
        if not is_wanted():
            raise Stopped("nobody waits for it any more")
        size_bytes = self._trial.run(f"{_MODULE}:try_schema", *self._tokens, schema)
        matcher = compiled(schema, load_tokenizer(*self._tokens))
        return Compiled(matcher, max(size_bytes, _LEAST_BYTES))

    def _keep(self, key: _Key, made: Compiled) -> None:
        with self._lock:
            self._kept[key] = made
            while sum(one.size_bytes for one in self._kept.values()) > _MAX_BYTES and len(self._kept) > 1:
                del self._kept[self._first_to_go()]

    def _first_to_go(self) -> _Key:
        """Return the oldest schema of the payer who holds most."""
        held: dict[str, int] = {}
        for (payer, _), one in self._kept.items():
            held[payer] = held.get(payer, 0) + one.size_bytes
        most = max(held, key=held.__getitem__)
        return next(key for key in self._kept if key[0] == most)


@dataclass(slots=True, eq=False)
class _Job:
    schema: str
    payer: str
    done: asyncio.Future[None]


class SchemaQueue:
    """Has schemas compiled one after another, the payers in turn, in threads that nothing else waits for.

    For any number of event loops.
    """

    def __init__(self, compiler: SchemaCompiler) -> None:
        self.compiler = compiler
        self._lines: OrderedDict[str, deque[_Job]] = OrderedDict()  # by payer; whose turn is next stands first
        self._running: _Job | None = None
        self._lock = Lock()

    async def compile(self, schema: str, payer: str = "") -> None:
        """Wait until a payer's schema is compiled. Raises Refusal (BAD_SAMPLING). Cancelling ends its trial."""
        job = _Job(schema, payer, asyncio.get_running_loop().create_future())
        with self._lock:
            self._lines.setdefault(payer, deque()).append(job)
            self._advance()
        try:
            await job.done
        except asyncio.CancelledError:
            with self._lock:
                self._drop(job)
            raise

    def _drop(self, job: _Job) -> None:
        if self._running is job:
            self.compiler.stop()
        elif job in (line := self._lines.get(job.payer, deque())):
            line.remove(job)

    def _advance(self) -> None:
        while self._running is None and self._lines:
            payer, line = self._lines.popitem(last=False)
            if not line:
                continue
            self._running = job = line.popleft()
            self._lines[payer] = line
            # A daemon, which the end of this process does not wait for: nothing stops what is compiled in place.
            Thread(target=self._work, args=(job,), name="outrider schemas", daemon=True).start()

    def _work(self, job: _Job) -> None:
        error = None
        try:
            self.compiler.compile(job.schema, job.payer, lambda: not job.done.cancelled())
        except Exception as raised:
            error = raised
        with self._lock:
            self._running = None
            self._advance()
        with suppress(RuntimeError):  # its loop has ended
            job.done.get_loop().call_soon_threadsafe(_end, job, error)


def _end(job: _Job, error: Exception | None) -> None:
    if job.done.done():  # nobody waits any more
        return
    if error is None:
        job.done.set_result(None)
    else:
        job.done.set_exception(error)


def _key(schema: str, payer: str) -> _Key:
    return payer, hashlib.sha256(schema.encode("utf-8", "surrogatepass")).digest()
