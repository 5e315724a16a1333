"""The session's tokens and what the server knows of them. The client's list is the truth: no crash loses a token.

      prompt      committed or kept        unverified tail
    |----------|----------------------R|------------------------|
    |---- held by the server ----|     ^ root: the last token that needs no check

Requests (Draft or Decode) are made here, and their Verdicts are applied here by one rule: the target's path and bonus
follow the root. Where the tail agrees it is confirmed; from the first difference on it is dropped.

Several drafts may be in flight: each but the oldest was sent before the verdict on the one before and assumes its
outcome. If that verdict turns out differently, the later drafts are void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from outrider_client.text.logprobs import TokenLogprobs, misfit, token_logprobs
from outrider_proto.frames import Codec, Decode, Draft, Features, Finish, Opened, ServerTree, Verdict
from outrider_proto.packing import common_prefix_len, prefix_hash
from outrider_proto.tree import DraftTree

Origin = Literal["prompt", "accepted", "bonus", "corrected", "unverified", "private"]
FinishReason = Literal["eos", "limit", "context", "unverified", "link", "private", "repetition"]


@dataclass(frozen=True, slots=True)
class Change:
    """Effect of a verdict, in this order: tail tokens confirmed, tail tokens dropped, tokens added."""

    first: int  # position of the first token that the verdict is about
    confirmed: int
    dropped: int
    accepted: tuple[int, ...]
    bonus: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the tokens confirmed and added, if they were requested

    @property
    def bonus_origin(self) -> Origin:
        """Origin of the bonus: a correction if the tail had another token there."""
        return "corrected" if self.dropped else "bonus"


class Transcript:
    """The tokens of one session over all its answers."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self.prompt_len = 0
        self._tail_start = 0
        self.limit_len = 0  # largest allowed number of tokens
        self._num_top: int | None = None  # likeliest tokens requested with each token; None without logprobs
        self._server_len = 0
        self._next_seq = 1
        self._first_seq = 1  # of this answer
        self._stable_len = 0  # number of earlier answers' tokens that are still valid
        self._in_flight: deque[Draft | Decode] = deque()  # the oldest first
        self.requested_len = 0  # features before this position were requested on this connection

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def num_new_tokens(self) -> int:
        return len(self._tokens) - self.prompt_len

    @property
    def last_new_token(self) -> int | None:
        return self._tokens[-1] if self.num_new_tokens else None

    @property
    def new_tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens[self.prompt_len :])

    @property
    def new_origins(self) -> tuple[Origin, ...]:
        return tuple(self._origins[self.prompt_len :])

    @property
    def verified_tokens(self) -> tuple[int, ...]:
        """This answer's tokens before the first that the target has not approved."""
        origins = self.new_origins
        return self.new_tokens[: origins.index("unverified") if "unverified" in origins else None]

    @property
    def tail_len(self) -> int:
        """Number of unverified tokens that still await a verdict."""
        return len(self._tokens) - self._tail_start

    @property
    def resumable_len(self) -> int:
        """Number of our first tokens that the server may hold."""
        # Of a cut answer it holds tokens that we dropped: asked about more than it is known to share with us, it would
        # answer with the hash of those. Requests in flight may have brought it further.
        return self._tail_start if self._in_flight else min(self._server_len, self._tail_start)

    @property
    def room(self) -> int:
        return self.limit_len - len(self._tokens)

    def begin(self, prompt: Sequence[int], max_new_tokens: int, logprobs: int | None = None) -> int:
        """Start an answer, with `logprobs` as in Draft; return how many of the present tokens it shares."""
        common = common_prefix_len(self._tokens, prompt)
        self._stable_len = common
        self._tokens = list(prompt)
        self._origins = ["prompt"] * len(prompt)
        self.prompt_len = self._tail_start = len(prompt)
        self.limit_len = len(prompt) + max_new_tokens
        self._num_top = logprobs
        self._server_len = min(self._server_len, common)
        self._first_seq = self._next_seq
        self._in_flight.clear()
        self.requested_len = min(self.requested_len, common)
        return common

    def next_draft(self, tree: DraftTree, num_features: int, codec: Codec | None = None) -> Draft:
        """Make a request to verify `tree`, a chain where a tail is, and for features from `num_features` on."""
        base_len, context = self._missing()
        root_at = self._tail_start - 1
        # The root's features are always requested: a Draft that asks for none would get no Features frame to wait for.
        features_from = min(num_features, root_at)
        root = self._tokens[root_at]
        draft = Draft(self._take_seq(), base_len, context, root, tree, features_from, b"", self._num_top, codec)
        self._send(draft)
        return draft

    def next_ahead(self, text: Sequence[int], tree: DraftTree, codec: Codec | None = None) -> Draft:
        """Make a draft that assumes the newest one in flight leads to `text`, whose last token is the root."""
        root_at = len(text) - 1
        # By hash, not by the outcome it bets on: the server compares with what it holds, however that came about.
        assumes = prefix_hash(text)
        draft = Draft(self._take_seq(), root_at, (), text[root_at], tree, root_at, assumes, self._num_top, codec)
        self._in_flight.append(draft)
        return draft

    def next_decode(
        self, num_features: int | None = None, tree: ServerTree | None = None, codec: Codec | None = None
    ) -> Decode:
        """Request as many tokens as there is room for, and features from `num_features` on unless that is None."""
        base_len, context = self._missing()
        features_from = None if num_features is None else min(num_features, self._tail_start - 1)
        root, room = self._tokens[-1], self.room
        decode = Decode(self._take_seq(), base_len, context, root, room, features_from, tree, self._num_top, codec)
        self._send(decode)
        return decode

    def tail_chain(self, max_nodes: int) -> DraftTree:
        """Return the first unverified tokens as a tree without branches."""
        return DraftTree.chain(self._tokens[self._tail_start : self._tail_start + max_nodes])

    @property
    def awaited(self) -> Draft | Decode | None:
        """The oldest request in flight, which the next verdict answers."""
        return self._in_flight[0] if self._in_flight else None

    def awaits(self, seq: int) -> bool:
        return self.awaited is not None and self.awaited.seq == seq

    def apply(self, verdict: Verdict, vocab_size: int) -> Change:
        """Apply the verdict on the oldest request. Raises Violation if it does not fit that request."""
        verdict_tokens, path_len = self._verdict_tokens(verdict, vocab_size)
        logprobs = token_logprobs(verdict_tokens, verdict.logprobs, self._num_top, vocab_size)
        first = self._tail_start
        confirmed = common_prefix_len(self._tokens[first:], verdict_tokens)
        is_over = confirmed < len(verdict_tokens) or verdict.finish is Finish.EOS
        dropped = self._drop_from(first + confirmed) if is_over else 0
        added = verdict_tokens[confirmed : confirmed + max(self.room, 0)]
        outcome = Change(
            first, confirmed, dropped, added[: max(path_len - confirmed, 0)], added[max(path_len - confirmed, 0) :]
        )
        self._origins[first : first + confirmed] = ["accepted"] * confirmed
        self._origins += ["accepted"] * len(outcome.accepted)
        self._origins += [outcome.bonus_origin] * len(outcome.bonus)
        self._tokens += added
        self._tail_start = first + confirmed + len(added)
        # A Decode cancelled before it began has processed nothing, so the server holds no more than before.
        if verdict.finish is not Finish.CANCELLED:
            self._server_len = min(first + path_len, len(self._tokens))
        self._settle_in_flight(verdict)
        num_kept = confirmed + len(added)
        finish = self._finish(verdict, cut=num_kept < len(verdict_tokens))
        return replace(outcome, finish=finish, logprobs=logprobs[:num_kept])

    def write_unverified(self, token: int) -> None:
        self._tokens.append(token)
        self._origins.append("unverified")

    def keep_tail(self) -> None:
        """Keep the unverified tokens; they go to the server as context and stay marked."""
        self._tail_start = len(self._tokens)

    def resume(self, opened: Opened) -> None:
        """Take over how many of our tokens the server still holds: none unless their hash matches."""
        self._in_flight.clear()
        self.requested_len = 0
        # The length alone is no proof: the server may have parked other tokens under this session's id.
        kept = opened.kept_len
        same = kept <= len(self._tokens) and prefix_hash(self._tokens[:kept]) == opened.kept_hash
        self._server_len = kept if same else 0

    def distrust(self) -> tuple[int, ...]:
        """Have the whole answer verified anew, by a server that holds nothing of it; return its tokens."""
        self._server_len = 0
        self._tail_start = self.prompt_len
        self._origins[self.prompt_len :] = ["unverified"] * self.num_new_tokens
        return self.new_tokens

    def num_usable_rows(self, features: Features) -> int:
        """Return how many of the rows describe tokens that are still valid."""
        # Rows of an earlier answer may arrive late: they count only as far as this answer shares its tokens.
        valid_len = self._server_len if features.seq >= self._first_seq else self._stable_len
        return max(min(len(features.rows), valid_len - features.first), 0)

    def _drop_from(self, position: int) -> int:
        """Drop the tail from `position` on and return how many tokens that were."""
        dropped = len(self._tokens) - position
        del self._tokens[position:], self._origins[position:]
        return dropped

    def _missing(self) -> tuple[int, tuple[int, ...]]:
        root_at = self._tail_start - 1
        base_len = min(self._server_len, root_at)
        return base_len, tuple(self._tokens[base_len:root_at])

    def _take_seq(self) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return seq

    def _settle_in_flight(self, verdict: Verdict) -> None:
        """Remove the answered request, and those behind it unless their assumption came true."""
        answered = self._in_flight[0]
        if isinstance(answered, Draft) or answered.features_from is not None:
            self.requested_len = self._server_len
        if isinstance(answered, Draft) or verdict.finish is not Finish.NOT_YET:
            self._in_flight.popleft()
            if verdict.finish is not Finish.NOT_YET or not self._next_assumption_holds():
                self._in_flight.clear()

    def _next_assumption_holds(self) -> bool:
        ahead = self.awaited
        return isinstance(ahead, Draft) and ahead.assumes == prefix_hash(self._tokens)

    def _send(self, request: Draft | Decode) -> None:
        self._in_flight.clear()
        self._in_flight.append(request)
        self._server_len = request.base_len  # until the verdict, the server surely holds no more than this

    def _verdict_tokens(self, verdict: Verdict, vocab_size: int) -> tuple[tuple[int, ...], int]:
        """Return path and bonus as tokens, and the path's length."""
        request = self.awaited
        if request is None or verdict.seq != request.seq:
            raise misfit(f"verdict {verdict.seq} answers no request in flight")
        if verdict.stale:
            raise misfit(f"verdict {verdict.seq} calls a draft stale whose text is valid")
        if verdict.finish is Finish.CANCELLED and isinstance(request, Draft):
            raise misfit(f"verdict {verdict.seq} calls a draft cancelled")
        path = self._path(request, verdict, vocab_size)
        if verdict.bonus is None:
            if verdict.finish not in (Finish.EOS, Finish.CANCELLED, Finish.CONTEXT_FULL):
                raise misfit("a verdict without bonus that does not end the answer")
            return path, len(path)
        if not 0 <= verdict.bonus < vocab_size:
            raise misfit(f"bonus={verdict.bonus}: the vocabulary has {vocab_size}")
        return (*path, verdict.bonus), len(path)

    def _path(self, request: Draft | Decode, verdict: Verdict, vocab_size: int) -> tuple[int, ...]:
        if isinstance(request, Draft):
            return request.tree.path_tokens(verdict.path)
        if verdict.path or (verdict.tokens and request.tree is None):
            raise misfit("a verdict with a path or tokens that were not requested")
        if not all(0 <= token < vocab_size for token in verdict.tokens):
            raise misfit(f"tokens={list(verdict.tokens)}: the vocabulary has {vocab_size}")
        return verdict.tokens

    def _finish(self, verdict: Verdict, cut: bool) -> FinishReason | None:
        if verdict.finish is Finish.EOS and not cut:
            return "eos"
        if self.tail_len == 0 and self.room <= 0:
            return "limit"
        if verdict.finish is Finish.CONTEXT_FULL:
            return "context"
        return None
