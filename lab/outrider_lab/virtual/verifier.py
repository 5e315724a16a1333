"""A server in virtual time: the protocol's frames, answered from a tape and a Pace instead of a target.

One model runs one pass after another, first come first served, each as long as the Pace says; passes of several
sessions are not batched. Verdicts follow the tape's answers; features have real sizes and come right after their
verdict: the tap takes no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_lab.virtual.texts import TapedTexts
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import OutriderError, Reason, Violation
from outrider_proto.frames import (
    Cancel,
    ClientFrame,
    Close,
    Decode,
    Draft,
    Features,
    Finish,
    Open,
    Opened,
    Ping,
    Pong,
    ServerDescription,
    ServerFrame,
    Verdict,
)
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import MAX_NODES, ROOT, DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.acceptance import AcceptedPath, verify_path

_SHORT_ROWS = MAX_NODES + 1  # always one pass
NAME = "taped"  # fingerprint of target and tokenizer


class VirtualVerifier:
    """Serves any number of sessions from one tape.

    `busy_s` and `num_passes` count what the model did; `fault` is the first error that ended a session, which a client
    takes for a lost link.
    """

    def __init__(
        self,
        texts: TapedTexts,
        pace: Pace,
        limits: LimitsConfig | None = None,
        *,
        server_draft: bool = True,
    ) -> None:
        self.texts = texts
        self.pace = pace
        self.server_draft = server_draft
        self.chunk_tokens = (limits or LimitsConfig()).chunk_rows
        self.busy_s = 0.0
        self.num_passes = 0
        self.fault: OutriderError | None = None
        self.sessions: dict[str, _Sequence] = {}
        self._model = asyncio.Lock()

    def describe(self) -> ServerDescription:
        tape = self.texts.tape
        vocabulary = tape.vocabulary
        taps = (tape.tap,) if tape.tap.fingerprint else ()
        ends, context = vocabulary.eos_token_ids, vocabulary.max_context
        return ServerDescription(
            PROTOCOL_VERSION, "virtual", NAME, NAME, NAME, vocabulary.size, context, MAX_NODES, ends, taps
        )

    async def session(self, incoming: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame, None]:
        """Serve one stream to its end."""
        outgoing: asyncio.Queue[ServerFrame | None] = asyncio.Queue()
        stream = _Stream(self, outgoing.put_nowait)
        tasks = [asyncio.create_task(stream.read(incoming)), asyncio.create_task(stream.work())]
        for task in tasks:
            # Whichever task ends, the stream ends with it; its error is raised below.
            task.add_done_callback(lambda _: outgoing.put_nowait(None))
        try:
            while (frame := await outgoing.get()) is not None:
                yield frame
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def run_model(self, drafting_ms: float, num_rows: int) -> tuple[float, float, float]:
        """Wait for the model, draft and run a pass; return the seconds of each.

        Without rows there is no pass.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        draft_s, pass_s = drafting_ms / 1e3, self.pace.pass_s(num_rows) if num_rows else 0.0
        # asyncio.Lock is fair, which makes this first come, first served.
        async with self._model:
            started = loop.time()
            await asyncio.sleep(draft_s + pass_s)
        self.busy_s += draft_s + pass_s
        self.num_passes += 1
        return started - asked_at, draft_s, pass_s


@dataclass(slots=True)
class _Sequence:
    """One session's tokens, and the bonus of its last verdict."""

    tokens: list[int] = field(default_factory=list)
    bonus: int | None = None


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The result of a pass, and its times."""

    accepted: AcceptedPath
    queue_s: float
    draft_s: float
    verify_s: float

    def verdict(self, seq: int) -> Verdict:
        times = [round(seconds * 1e6) for seconds in (self.queue_s, self.verify_s, self.draft_s)]
        accepted = self.accepted
        return Verdict(seq, accepted.path, accepted.bonus, accepted.finish, times[0], times[1], draft_us=times[2])


class _Stream:
    """One connection; pings are answered at once, drafts in the order they came."""

    def __init__(self, verifier: VirtualVerifier, send: Callable[[ServerFrame], None]) -> None:
        self._verifier = verifier
        self._send = send
        self._sequence = _Sequence()
        self._jobs: asyncio.Queue[tuple[Draft | Decode, float]] = asyncio.Queue()  # and when they came
        self._cancelled: set[int] = set()
        self._has_tap = False

    async def read(self, incoming: AsyncIterator[ClientFrame]) -> None:
        async for frame in incoming:
            match frame:
                case Open():
                    self._send(self._opened(frame))
                case Draft() | Decode():
                    self._jobs.put_nowait((frame, asyncio.get_running_loop().time()))
                case Cancel():
                    self._cancelled.add(frame.seq)
                case Ping():
                    self._send(Pong(frame.nonce))
                case Close():
                    return
                case _:
                    assert_never(frame)

    async def work(self) -> None:
        while True:
            frame, came_at = await self._jobs.get()
            if isinstance(frame, Draft):
                await self._draft(frame, asyncio.get_running_loop().time() - came_at)
            else:
                await self._decode(frame)

    def _opened(self, frame: Open) -> Opened:
        sessions, about = self._verifier.sessions, self._verifier.describe()
        resumed = frame.session_id in sessions
        session_id = frame.session_id if resumed else f"s{len(sessions)}"
        self._sequence = sessions.setdefault(session_id, _Sequence())
        self._has_tap = bool(frame.tap)
        kept = self._sequence.tokens[: frame.committed_len if resumed else 0]
        return Opened(
            session_id=session_id,
            resumed=resumed,
            kept_len=len(kept),
            kept_hash=prefix_hash(kept),
            max_context=about.max_context,
            max_nodes=about.max_nodes,
            eos_token_ids=about.eos_token_ids,
            server_draft=self._verifier.server_draft,
        )

    async def _draft(self, frame: Draft, waited_s: float) -> None:
        """Answer a draft that waited `waited_s` behind others of its session."""
        # Decided when its turn comes, not when it arrives: the verdicts before it count.
        if frame.assumes and not self._is_as_assumed(frame):
            self._send(Verdict(frame.seq, (), None, stale=True))
            return
        self._truncate(frame.base_len)
        result = await self._pass((*frame.context, frame.root), frame.tree)
        self._send(replace(result, queue_s=result.queue_s + waited_s).verdict(frame.seq))
        self._send_features(frame, frame.features_from, last=True)

    async def _decode(self, frame: Decode) -> None:
        """Decode one token per pass, or with the server's own trees after the first pass."""
        self._truncate(frame.base_len)
        chain, tree, left = (*frame.context, frame.root), DraftTree(), frame.max_tokens
        features_from, drafting_ms = frame.features_from, 0.0
        while frame.seq not in self._cancelled:
            result = await self._pass(chain, tree, drafting_ms)
            tokens = tuple(tree.tokens[node] for node in result.accepted.path)
            left -= len(tokens) + 1
            verdict = replace(result.verdict(frame.seq), path=(), tokens=tokens)
            # An end of the text wins over the limit, as on the real server.
            if verdict.finish is Finish.NOT_YET and left <= 0:
                verdict = replace(verdict, finish=Finish.LIMIT)
            self._send(verdict)
            if features_from is not None:
                self._send_features(frame, features_from, last=verdict.finish is not Finish.NOT_YET)
                features_from = len(self._sequence.tokens)
            if verdict.finish is not Finish.NOT_YET or verdict.bonus is None:
                return
            chain = (verdict.bonus,)
            tree, drafting_ms = self._own_tree(frame, verdict.bonus, left)
        self._send(Verdict(frame.seq, (), None, Finish.CANCELLED))
        if features_from is not None and features_from != frame.features_from:
            # The client waits for a message with last=True, and an empty one cannot be sent.
            self._send_features(frame, features_from - 1, last=True)

    def _own_tree(self, frame: Decode, root: int, left: int) -> tuple[DraftTree, float]:
        """Return the server's own draft below `root`, and its time in ms."""
        levels = 0 if frame.tree is None else min(frame.tree.levels, left - 1)
        if frame.tree is None or levels < 1:
            return DraftTree(), 0.0
        tokens = [*self._sequence.tokens, root]
        shape = TreeShape(frame.tree.breadth, levels, frame.tree.budget)
        drafts = self._verifier.texts.of(tokens).drafts(len(tokens), shape)
        tree = drafts[-1].tree if drafts else DraftTree()
        return tree, self._verifier.texts.tape.num_passes(len(drafts)) * self._verifier.pace.server_level_ms

    def _is_as_assumed(self, frame: Draft) -> bool:
        sequence = self._sequence
        if len(sequence.tokens) != frame.base_len or sequence.bonus is None:
            return False
        return prefix_hash([*sequence.tokens, sequence.bonus]) == frame.assumes

    def _truncate(self, length: int) -> None:
        if length > len(self._sequence.tokens):
            raise Violation(
                Reason.BAD_SEQUENCE, f"base_len={length}: the server holds {len(self._sequence.tokens)} tokens"
            )
        del self._sequence.tokens[length:]

    async def _pass(self, chain: Sequence[int], tree: DraftTree, drafting_ms: float = 0.0) -> _PassResult:
        """Verify chain and tree, and keep what is accepted."""
        sequence, verifier = self._sequence, self._verifier
        queue_s = verify_s = 0.0
        # Long prompts run in chunks, as on the real server.
        while len(chain) + len(tree) > max(verifier.chunk_tokens, _SHORT_ROWS):
            chunk, chain = chain[: verifier.chunk_tokens], chain[verifier.chunk_tokens :]
            times = await verifier.run_model(0.0, len(chunk))
            sequence.tokens += chunk
            queue_s, verify_s = queue_s + times[0], verify_s + times[2]
        times = await verifier.run_model(drafting_ms, len(chain) + len(tree))
        sequence.tokens += chain
        result = self._verify(tree)
        sequence.tokens += (tree.tokens[node] for node in result.path)
        sequence.bonus = result.bonus
        return _PassResult(result, queue_s + times[0], times[1], verify_s + times[2])

    @property
    def _room(self) -> int:
        """Nodes that fit below the last token, leaving one position for the bonus."""
        return max(0, self._verifier.texts.tape.vocabulary.max_context - 1 - len(self._sequence.tokens))

    def _verify(self, tree: DraftTree) -> AcceptedPath:
        tokens, depths = self._sequence.tokens, tree.depths()
        text = self._verifier.texts.of(tokens)

        def choose(node: int) -> int:
            return text.next_token(len(tokens) + (0 if node == ROOT else depths[node]))

        return verify_path(tree, choose, self._verifier.texts.tape.vocabulary.eos_token_ids, self._room)

    def _send_features(self, asked: Draft | Decode, first: int, last: bool) -> None:
        texts, end = self._verifier.texts, len(self._sequence.tokens)
        if texts.tape.tap.newest_only:
            first = max(first, end - 1)
        if self._has_tap and first < end:
            rows = texts.rows(first, end)
            width = self._verifier.pace.feature_width
            self._send(Features(asked.seq, first, rows, last, padded_width=width, codec=asked.codec))
