"""The session machine against a model of it: whatever the order of opens, resumes, takeovers, drafts right and wrong,
decodes cut short, hang-ups, refusals and time that passes, sessions are as the model says and verdicts the target's."""

import asyncio

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_model import CONTEXT, EOS, ModelSession, continuation, judge, small_target
from talk import NO_TREE, TAP, talking
from tiny_targets import VOCAB, tree_around

from outrider_proto.errors import Reason
from outrider_proto.frames import Cancel, Close, Decode, Draft, Features, Finish, Open, Opened, Ping, Pong, Verdict
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.sessions.verifier import Verifier

TTL_S = 60.0
MAX_SESSIONS = 3
MAX_PARKED = 2
MAX_STREAMS = 4
IDLE_S = 10.0
ALL = 999  # more tokens than any session has
MAX_NODES = 16
words = st.lists(st.integers(3, 9), max_size=3).map(tuple)  # few, so that texts come again
tap_names = st.sampled_from(["", TAP.info.fingerprint])
which = st.integers(0, 2**16)
WRONG = [
    (Draft(2**31, 0, (), VOCAB, NO_TREE), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(2**31, 0, (VOCAB,), 5, NO_TREE), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(2**31, 0, (), 5, DraftTree.chain([VOCAB])), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(2**31, 0, (), 5, DraftTree.chain(range(3, 4 + MAX_NODES))), Reason.TREE_TOO_LARGE),
    (Draft(2**31, CONTEXT - 1, (), 5, NO_TREE), Reason.CONTEXT_FULL),
    (Draft(2**31, CONTEXT - 2, (), 5, NO_TREE), Reason.BAD_SEQUENCE),
    (Draft(-1, 0, (), 5, NO_TREE), Reason.BAD_SEQUENCE),
    (Draft(2**31, 0, (), 5, NO_TREE, logprobs=21), Reason.MALFORMED_FRAME),
    (Decode(2**31, 0, (), 5, 0), Reason.MALFORMED_FRAME),
    (Open(1, "", "none"), Reason.MALFORMED_FRAME),
]


class SessionMachine(RuleBasedStateMachine):
    """`streams` are those that speak for a session; the clock is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.run = self.loop.run_until_complete
        self.now = 100.0
        self.sessions: dict[str, ModelSession] = {}  # in the order they were made
        self.rows = {}  # of the server's table: when each session was last used, which no frame says
        self.forgotten: list[tuple[str, str]] = []  # id and tap
        self.streams: dict[object, ModelSession] = {}  # by Talk
        self.contexts: dict[object, object] = {}
        self.displaced: object | None = None  # the stream whose place a new one will get

    @initialize(plan_ahead=st.sampled_from(["off", "on"]))
    def start(self, plan_ahead: str) -> None:
        limits = LimitsConfig(
            session_ttl_s=TTL_S,
            max_sessions=MAX_SESSIONS,
            parked_sessions=MAX_PARKED,
            max_nodes=MAX_NODES,
            plan_ahead=plan_ahead,
        )
        self.verifier = Verifier(small_target(), [TAP], limits, lambda: self.now)
        self.run(self.verifier.start())

    def teardown(self) -> None:
        """Nothing stays behind."""
        for talk in list(self.streams):
            self.leave(talk)
        self.now += 2 * TTL_S
        talk, opened = self.opened()
        assert not opened.resumed
        assert len(self.verifier._sessions) == 1
        self.run(self.contexts.pop(talk).__aexit__(None, None, None))
        self.run(self.verifier.stop())
        self.loop.close()

    # Opening ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.streams) < MAX_STREAMS)
    @rule(tap=tap_names)
    def open_a_new_one(self, tap: str) -> None:
        self.expire()
        if self.makes_room():
            self.adopt(*self.opened(tap=tap), tap)
        else:
            self.is_refused(Reason.SERVER_FULL, tap=tap)

    @precondition(lambda self: self.sessions and len(self.streams) < MAX_STREAMS)
    @rule(at=which, committed_len=st.integers(0, CONTEXT) | st.just(ALL))
    def resume_or_take_over(self, at: int, committed_len: int) -> None:
        session = self.one_of(self.sessions.values(), at)
        if not self.lives(session):
            return
        self.expire()
        if session.stream is None and not self.makes_room():
            self.is_refused(Reason.SERVER_FULL, session_id=session.id, tap=session.tap)
            return
        asked = ALL if session.or_held else committed_len
        talk, opened = self.opened(session_id=session.id, committed_len=asked, tap=session.tap)
        assert (opened.resumed, opened.session_id) == (True, session.id)
        if session.or_held:
            session.found(opened.kept_len, opened.kept_hash)
        kept = session.held[:asked]
        assert (opened.kept_len, opened.kept_hash) == (len(kept), prefix_hash(kept))
        self.fence(session)
        self.streams[talk] = session
        session.goes_on(talk, len(kept))
        self.displace()

    @precondition(lambda self: self.sessions and len(self.streams) < MAX_STREAMS)
    @rule(at=which)
    def resume_with_other_features(self, at: int) -> None:
        session = self.one_of(self.sessions.values(), at)
        if not self.lives(session):
            return
        self.expire()
        other = "" if session.tap else TAP.info.fingerprint
        if session.stream is None and not self.makes_room():
            self.is_refused(Reason.SERVER_FULL, session_id=session.id, tap=other)
            return
        talk, opened = self.opened(session_id=session.id, committed_len=ALL, tap=other)
        self.fence(session)
        self.forget(session)
        self.adopt(talk, opened, other)

    @precondition(lambda self: self.forgotten and len(self.streams) < MAX_STREAMS)
    @rule(at=which)
    def resume_a_forgotten_one(self, at: int) -> None:
        session_id, tap = self.one_of(self.forgotten, at)
        self.expire()
        if self.makes_room():
            self.adopt(*self.opened(session_id=session_id, committed_len=3, tap=tap), tap)
        else:
            self.is_refused(Reason.SERVER_FULL, session_id=session_id, tap=tap)

    # Asking -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(at=which, keep=which, context=words, root=st.none() | st.integers(3, 9), shape=st.tuples(which, which, which))
    def draft(
        self, at: int, keep: int, context: tuple[int, ...], root: int | None, shape: tuple[int, int, int]
    ) -> None:
        """On anything from nothing to all that is held: a tree of right tokens among wrong ones."""
        talk, session, base_len, text = self.request(at, keep, context, root)
        if len(text) >= CONTEXT:
            return
        tree = self.tree(text, *shape)
        features_from = shape[0] % (len(text) + 2)
        self.run(talk.draft(base_len, text[base_len:-1], text[-1], tree, features_from=features_from))
        expected = judge(text, tree)
        self.is_told(talk, expected)
        session.truncated(base_len)
        first = session.first_feature(features_from) if session.tap else 0
        session.answered(text, expected, tree)
        self.gets_features(talk, session, first)

    @precondition(lambda self: self.streams)
    @rule(at=which, wrong=st.sampled_from(["", "root", "hash", "length"]), shape=st.tuples(which, which, which))
    def draft_ahead(self, at: int, wrong: str, shape: tuple[int, int, int]) -> None:
        """Sent on an assumption: it is judged where that came true, and else changes nothing."""
        # No precondition: where a decode was cut short depends on time, and so does what can be built on.
        if not (ready := [pair for pair in self.streams.items() if pair[1].bonus]):
            return
        talk, session = self.one_of(ready, at)
        text = (*session.held, session.bonus if wrong != "root" else 10 + session.bonus % 7)
        base_len = len(session.held) - (wrong == "length")
        if len(text) >= CONTEXT:
            return
        tree = self.tree(text, *shape)
        assumes = prefix_hash((*text, 1)) if wrong == "hash" else prefix_hash(text)
        self.run(talk.draft(base_len, (), text[-1], tree, assumes=assumes, features_from=ALL))
        if wrong:
            verdict = self.run(talk.receive())
            assert (verdict.seq, verdict.stale, verdict.path, verdict.bonus) == (talk.seq, True, (), None)
        else:
            expected = judge(text, tree)
            self.is_told(talk, expected)
            session.answered(text, expected, tree)

    @precondition(lambda self: self.streams)
    @rule(at=which, keep=which, context=words, root=st.none() | st.integers(3, 9), count=st.integers(1, 6))
    def decode(self, at: int, keep: int, context: tuple[int, ...], root: int | None, count: int) -> None:
        talk, session, base_len, text = self.request(at, keep, context, root)
        if len(text) >= CONTEXT:
            return
        told = continuation(text, count)
        verdicts = self.run(talk.decode(base_len, text[base_len:-1], text[-1], count))
        assert [verdict.bonus for verdict in verdicts] == told
        assert [verdict.finish for verdict in verdicts[:-1]] == [Finish.NOT_YET] * (len(told) - 1)
        session.truncated(base_len)
        session.held = (*text, *told[:-1])
        ended = told[-1] == EOS or len(text) + len(told) == CONTEXT
        assert (verdicts[-1].finish is Finish.LIMIT) == (not ended)
        session.bonus = None if ended else told[-1]

    @precondition(lambda self: self.streams)
    @rule(at=which, keep=which, context=words, num_read=st.integers(0, 2))
    def decode_and_cancel(self, at: int, keep: int, context: tuple[int, ...], num_read: int) -> None:
        talk, session, base_len, text = self.request(at, keep, context, 5)
        if len(text) >= CONTEXT:
            return
        told = self.decode_on(talk, base_len, text)
        verdicts = [self.run(talk.receive()) for _ in range(min(num_read, len(told)))]
        self.run(talk.send(Cancel(talk.seq)))
        while not verdicts or verdicts[-1].finish is Finish.NOT_YET:
            verdicts.append(self.run(talk.receive()))
        said = [verdict.bonus for verdict in verdicts if verdict.bonus is not None]
        assert said == told[: len(said)]
        assert len(verdicts) - len(said) == (verdicts[-1].finish is Finish.CANCELLED)
        session.interrupted(base_len, text, told[: max(len(said) - 1, 0)])
        self.leave(talk)

    # Ending -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(at=which, keep=which, context=words)
    def hang_up_in_the_middle(self, at: int, keep: int, context: tuple[int, ...]) -> None:
        talk, session, base_len, text = self.request(at, keep, context, 7)
        if len(text) >= CONTEXT:
            return
        told = self.decode_on(talk, base_len, text)
        session.interrupted(base_len, text, told)
        self.leave(talk)

    @precondition(lambda self: self.streams)
    @rule(at=which)
    def hang_up(self, at: int) -> None:
        self.leave(self.one_of(self.streams, at))

    @precondition(lambda self: self.streams)
    @rule(at=which)
    def close(self, at: int) -> None:
        talk = self.one_of(self.streams, at)
        self.run(talk.send(Close()))
        assert self.run(talk.receive()) is None
        self.forget(self.hang(talk))

    @precondition(lambda self: self.streams)
    @rule(at=which, wrong=st.sampled_from(WRONG))
    def break_the_contract(self, at: int, wrong: tuple[object, Reason]) -> None:
        """The stream ends with the reason; what the session holds does not change."""
        talk = self.one_of(self.streams, at)
        frame, reason = wrong
        if reason is Reason.BAD_SEQUENCE and frame.base_len <= len(self.streams[talk].held) and frame.seq > 0:
            return
        self.run(talk.send(frame))
        assert self.run(talk.refusal()).reason is reason
        self.leave(talk)

    @precondition(lambda self: self.streams)
    @rule(at=which, nonce=st.integers(0, 2**64 - 1))
    def ping(self, at: int, nonce: int) -> None:
        talk = self.one_of(self.streams, at)
        self.run(talk.send(Ping(nonce)))
        assert self.run(talk.receive()) == Pong(nonce)

    @rule(seconds=st.sampled_from([1.0, 6.0, 20.0, 59.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_table_has_those_that_live(self) -> None:
        """What has expired may still be there until somebody looks."""
        if hasattr(self, "verifier"):
            living = [session for session in self.sessions.values() if self.lives(session)]
            assert len(living) <= len(self.verifier._sessions) <= len(self.sessions)

    # How it is done ---------------------------------------------------------------------------------------------------

    def one_of(self, several, at: int):
        return list(several)[at % len(several)]

    def lives(self, session: ModelSession) -> bool:
        return session.stream is not None or session.expires_at > self.now

    def expire(self) -> None:
        for session in [session for session in self.sessions.values() if not self.lives(session)]:
            self.forget(session)

    def makes_room(self) -> bool:
        """Whether one more gets a place, be it that of one that has been idle for long."""
        if len(self.streams) == MAX_SESSIONS:
            self.run(self.all_answered())
            idle = [s for s in self.streams.values() if self.now - self.rows[s.id].active_at >= IDLE_S]
            if not idle:
                return False
            self.displaced = min(idle, key=self.missed).stream
        return True

    def missed(self, session: ModelSession) -> tuple[bool, float, int]:
        """How much: those without a text least, then the oldest."""
        row = self.rows[session.id]
        return row.has_asked, row.active_at, list(self.sessions).index(session.id)

    def displace(self) -> None:
        """Who has lost its place is parked."""
        if self.displaced is not None:
            displaced, self.displaced = self.displaced, None
            assert self.run(displaced.refusal()).reason is Reason.STALLED
            self.leave(displaced)

    async def all_answered(self) -> None:
        """The last verdict is not the last reply."""
        for stream in list(self.verifier._streams):
            while stream.is_busy:  # noqa: ASYNC110 # it has no event of its own
                await asyncio.sleep(0.001)

    def forget(self, session: ModelSession) -> None:
        del self.sessions[session.id]
        self.forgotten.append((session.id, session.tap))

    def opened(self, **changes) -> tuple[object, Opened]:
        context = talking(self.verifier)
        talk = self.run(context.__aenter__())
        self.contexts[talk] = context
        return talk, self.run(talk.open(self.verifier.describe(), **changes))

    def is_refused(self, reason: Reason, **changes) -> None:
        async def tried() -> None:
            async with talking(self.verifier) as talk:
                about = self.verifier.describe()
                await talk.send(Open(1, about.target_fingerprint, about.tokenizer_fingerprint, **changes))
                assert (await talk.refusal()).reason is reason

        self.run(tried())

    def adopt(self, talk: object, opened: Opened, tap: str) -> None:
        """A session that is new."""
        assert (opened.resumed, opened.kept_len, opened.kept_hash) == (False, 0, prefix_hash(()))
        assert opened.session_id not in self.sessions
        session = self.sessions[opened.session_id] = ModelSession(opened.session_id, tap, stream=talk)
        self.streams[talk] = session
        self.rows[session.id] = self.verifier._sessions._sessions[session.id]
        self.displace()

    def fence(self, session: ModelSession) -> None:
        """The older stream learns that it has been taken over."""
        if session.stream is not None:
            former = session.stream
            assert self.run(former.refusal()).reason is Reason.TAKEN_OVER
            self.hang(former)

    def leave(self, talk: object) -> None:
        """Its session is parked, and one too many is forgotten."""
        session = self.hang(talk)
        session.stream, session.expires_at = None, self.now + TTL_S
        self.expire()
        parked = [session for session in self.sessions.values() if session.stream is None]
        if len(parked) > MAX_PARKED:
            self.forget(min(parked, key=self.missed))

    def hang(self, talk: object) -> ModelSession:
        self.run(self.contexts.pop(talk).__aexit__(None, None, None))
        return self.streams.pop(talk)

    def request(self, at: int, keep: int, context: tuple[int, ...], root: int | None):
        """On one of the streams: how much of what is held stays, and the text with the root; None: what was said."""
        talk, session = self.one_of(self.streams.items(), at)
        if root is None and session.bonus is not None:
            return talk, session, len(session.held), (*session.held, session.bonus)
        base_len = keep % (len(session.held) + 1)
        return talk, session, base_len, (*session.held[:base_len], *context, 4 if root is None else root)

    def tree(self, text: tuple[int, ...], seed: int, num_right: int, num_wrong: int) -> DraftTree:
        return tree_around(np.random.default_rng(seed), continuation(text, 4), num_right % 5, num_wrong % 6)

    def decode_on(self, talk, base_len: int, text: tuple[int, ...]) -> list[int]:
        """To the end; what it will say."""
        told = continuation(text, ALL)  # before the server begins: the first time takes longer
        talk.seq += 1
        self.run(talk.send(Decode(talk.seq, base_len, text[base_len:-1], text[-1], ALL)))
        return told

    def is_told(self, talk, expected) -> None:
        verdict = self.run(talk.receive())
        assert isinstance(verdict, Verdict)
        assert (verdict.seq, verdict.stale) == (talk.seq, False)
        assert (verdict.path, verdict.bonus, verdict.finish) == (expected.path, expected.bonus, expected.finish)

    def gets_features(self, talk, session: ModelSession, first: int) -> None:
        """A row for every position from `first` on."""
        num_rows = len(session.held) - first if session.tap else 0
        session.num_sent = max(session.num_sent, len(session.held) if num_rows > 0 else 0)
        rows = 0
        while rows < num_rows:
            frame = self.run(talk.receive())
            assert isinstance(frame, Features)
            assert (frame.seq, frame.first) == (talk.seq, first + rows)
            rows += len(frame.rows)
            assert frame.last == (rows == num_rows)
        assert rows == max(num_rows, 0)


SessionMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestSessionMachine = SessionMachine.TestCase
