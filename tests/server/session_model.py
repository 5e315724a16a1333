"""A model of the server for tests: sessions are lists of tokens, and what the target says next is looked up, one plain
forward pass for every text it is asked about. It knows nothing of slots, batches, threads and streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from tiny_targets import build, target

from outrider_proto.frames import Finish
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import ROOT, DraftTree
from outrider_server.engine.target import Target

CONTEXT = 40
(EOS,) = target().eos_token_ids


@cache
def small_target() -> Target:
    """What serves; the oracle below runs on a model of its own, with the same weights."""
    return Target.of(build("llama"), max_context=CONTEXT)


@cache
def _plain():
    return build("llama")


@cache
def says_next(tokens: tuple[int, ...]) -> int:
    """The target's own next token."""
    with torch.inference_mode():
        return int(_plain()(torch.tensor([tokens])).logits[0, -1].argmax())


def continuation(tokens: tuple[int, ...], count: int) -> list[int]:
    """The target's own next tokens, up to an end of text or of the context."""
    told: list[int] = []
    while len(told) < count and len(tokens) + len(told) < CONTEXT and EOS not in told:
        told.append(says_next((*tokens, *told)))
    return told


@dataclass(frozen=True)
class Judged:
    path: tuple[int, ...]
    bonus: int | None
    finish: Finish


def judge(text: tuple[int, ...], tree: DraftTree) -> Judged:
    """What a verdict must be: `text` ends with the root."""
    path: list[int] = []
    node, said = ROOT, list(text)
    while True:
        token = says_next(tuple(said))
        child = tree.child(node, token) if len(said) + 1 < CONTEXT else None
        if child is None:
            break
        path.append(node := child)
        said.append(token)
        if token == EOS:
            return Judged(tuple(path), None, Finish.EOS)
    full = len(said) + 1 == CONTEXT
    finish = Finish.EOS if token == EOS else Finish.CONTEXT_FULL if full else Finish.NOT_YET
    return Judged(tuple(path), token, finish)


@dataclass(eq=False)
class ModelSession:
    """`held` are the tokens, `bonus` what the last verdict said comes next; `or_held`: what else it may hold, since
    nobody saw how a request ended. `stream` is None while parked, until `expires_at`."""

    id: str
    tap: str
    held: tuple[int, ...] = ()
    bonus: int | None = None
    or_held: set[tuple[int, ...]] = field(default_factory=set)
    stream: object | None = None
    expires_at: float = 0.0
    num_sent: int = 0  # tokens whose features this stream has
    may_repeat: bool = True  # it may ask for some of them again, once

    def answered(self, text: tuple[int, ...], judged: Judged, tree: DraftTree) -> None:
        self.held = (*text, *tree.path_tokens(judged.path))
        self.bonus = judged.bonus if judged.finish is Finish.NOT_YET else None

    def truncated(self, length: int) -> None:
        if length < len(self.held):
            self.bonus = None
        self.held = self.held[:length]
        self.num_sent = min(self.num_sent, length)

    def interrupted(self, base_len: int, text: tuple[int, ...], told: list[int]) -> None:
        """A request for `told` below `text` was under way: it may have come to any point, the one included where what
        comes before the root is known and not run yet."""
        ends = [text[:-1], *((*text, *told[:count]) for count in range(len(told) + 1))]
        self.or_held = {self.held, self.held[:base_len], *ends}
        self.bonus = None

    def goes_on(self, stream: object, num_kept: int) -> None:
        """On another stream, whose client may have lost all."""
        self.stream, self.num_sent, self.may_repeat = stream, num_kept, True

    def first_feature(self, asked: int) -> int:
        """The first row that it is sent when it asks for those from `asked` on."""
        if asked >= self.num_sent:
            return asked
        if not self.may_repeat:
            return self.num_sent
        self.may_repeat = False
        return asked

    def found(self, kept_len: int, kept_hash: bytes) -> None:
        """What a resume said is held, of as many tokens as there may be."""
        (self.held,) = {held for held in self.or_held if (len(held), prefix_hash(held)) == (kept_len, kept_hash)}
        self.or_held = set()
