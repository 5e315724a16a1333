"""The frames of a session as plain values: what each side says to the other. wire.py turns them into protobuf.

    client                                    server
    Open ------------------------------------>
         <------------------------------------ Opened
    Draft{seq, base_len, context, root, tree} >
         <------------------------------------ Verdict{seq, path, bonus, finish}     at once
         <------------------------------------ Features{seq, first, rows ...} * n    off the critical path
    Decode{seq, ..., max_tokens} ------------->
         <------------------------------------ Verdict * max_tokens                  one token a pass
    Ping ------------------------------------>
         <------------------------------------ Pong

Positions: a session's tokens are numbered from 0. The server holds K/V for the tokens before the root; it processes
the root together with the tree. `base_len` says how many of the tokens the server holds are to be kept (it drops the
rest), `context` the tokens that follow them and that it has yet to process, and then come root and tree. A prompt of n
tokens is therefore Draft{base_len=0, context=prompt[:-1], root=prompt[-1], tree=empty}, and its verdict's bonus
is the first new token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from outrider_proto.errors import Reason, Violation
from outrider_proto.tree import DraftTree

if TYPE_CHECKING:  # every command line imports this module, and numpy takes half of its time to --help
    import numpy as np
    from numpy.typing import NDArray

Codec = Literal["int8", "int8-grouped", "int4-grouped", "lean", "leaner", "bf16", "float32"]
CODECS: tuple[Codec, ...] = ("int8", "int8-grouped", "int4-grouped", "lean", "leaner", "bf16", "float32")
Acceptance = Literal["exact", "typical"]
ACCEPTANCES: tuple[Acceptance, ...] = ("exact", "typical")
# Metadata of the stream, for balancers between client and server: random, the same on every connection of a client's
# session and on no other, so that a resumed session reaches the server that holds its K/V. It is not the session's id
# and authorizes nobody.
SESSION_HEADER = "x-session-id"
MAX_TOP_LOGPROBS = 20
MIN_LOGPROB = -9999.0  # stands for all that is less likely


class Finish(Enum):
    """Why a verdict is the last one of its answer."""

    NOT_YET = 0
    EOS = 1  # path + bonus end with an end-of-text token; nothing follows it
    CONTEXT_FULL = 2  # no room for another token in the target's context
    LIMIT = 3  # Decode only: max_tokens were written
    CANCELLED = 4  # Decode only: the client said Cancel


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses a token; temperature 0 is greedy. top_k 0 and top_p 1 switch the filter off.

    acceptance: which drafted tokens stand. `exact`: those the target chooses itself. `typical`: those of probability
    above min(epsilon, alpha * exp(-entropy)), and the target's own are argmaxes. Lossy: the text is not the target's.
    Raises Violation (BAD_SAMPLING) for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    acceptance: Acceptance = "exact"
    epsilon: float = 0.09
    alpha: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise _bad(f"temperature={self.temperature}: need 0 (greedy) to 100")
        if not 0 <= self.top_k < 2**31:
            raise _bad(f"top_k={self.top_k}: need 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise _bad(f"top_p={self.top_p}: need more than 0 and at most 1 (off)")
        if not 0 <= self.seed < 2**63:
            raise _bad(f"seed={self.seed}: need 0 to 2**63 - 1")
        if self.acceptance not in ACCEPTANCES:
            raise _bad(f"acceptance={self.acceptance!r}: need one of {', '.join(ACCEPTANCES)}")
        if self.acceptance == "typical" and self.greedy:
            raise _bad("temperature=0.0: typical acceptance needs more; greedy is exact acceptance at temperature 0")
        if not 0.0 <= self.epsilon <= 1.0:
            raise _bad(f"epsilon={self.epsilon}: need 0 to 1")
        if not 0.0 <= self.alpha <= 100.0:
            raise _bad(f"alpha={self.alpha}: need 0 to 100")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def draws(self) -> bool:
        """Whether the target's tokens are drawn at random; else they are argmaxes."""
        return self.acceptance == "exact" and not self.greedy


@dataclass(frozen=True, slots=True)
class TapInfo:
    """One kind of features a server can send: `fingerprint` names it, `width` is values a token. Of one that is
    `newest_only` the server sends the last row of what it was asked for, which is all such a drafter reads."""

    fingerprint: str
    family: str
    width: int
    newest_only: bool = False


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What Describe answers."""

    protocol_version: int
    server_version: str
    target_name: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    max_nodes: int
    eos_token_ids: tuple[int, ...]
    taps: tuple[TapInfo, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """First frame of every stream. `session_id` empty starts a session, else resumes that one.

    `committed_len` is the number of tokens the client holds as committed (resume only). `tap` is the fingerprint of
    the features wanted, empty for none; `codec` their encoding.
    """

    protocol_version: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    tap: str = ""
    codec: Codec = "int8"
    sampling: Sampling = field(default_factory=Sampling)
    session_id: str = ""
    committed_len: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """The server's answer: its K/V covers the first `kept_len` tokens, whose hash is `kept_hash` (packing.py).

    A client whose own tokens hash differently sends everything again. `resumed` is false for a session that the
    server does not know (any more). `server_draft`: a Decode may ask the server to draft.
    """

    session_id: str
    resumed: bool
    kept_len: int
    kept_hash: bytes
    max_context: int
    max_nodes: int
    eos_token_ids: tuple[int, ...]
    server_draft: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """One tree to verify. `features_from`: first position whose features the client lacks.

    `assumes`, when not empty, says that this draft was sent before the verdict it builds on: the hash (packing.py) of
    all tokens up to and including the root; `context` is empty then. Unless exactly `base_len` tokens are held, and
    they with the bonus of the session's last verdict hash to the same, the answer is a Verdict that is `stale`, and
    nothing else happens.

    `logprobs`: have the verdict say how likely its tokens are, with so many of the likeliest in the place of each.
    `codec`: of the features of this request; None: the session's.
    """

    seq: int
    base_len: int
    context: tuple[int, ...]
    root: int
    tree: DraftTree
    features_from: int = 0
    assumes: bytes = b""
    logprobs: int | None = None
    codec: Codec | None = None


@dataclass(frozen=True, slots=True)
class ServerTree:
    """Shape of the trees that a server grows itself; the names are TreeShape's."""

    breadth: int
    levels: int
    budget: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Ask the server to write `max_tokens` tokens: the target alone, one a pass, or with a drafter beside it where
    there is a `tree`. Every pass is answered by a Verdict with this seq. Features from `features_from` on come along
    unless it is None. `logprobs` and `codec` as in Draft."""

    seq: int
    base_len: int
    context: tuple[int, ...]
    root: int
    max_tokens: int
    features_from: int | None = None
    tree: ServerTree | None = None
    logprobs: int | None = None
    codec: Codec | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the Decode `seq`; it is answered by a last Verdict with Finish.CANCELLED unless it had ended already."""

    seq: int


@dataclass(frozen=True, slots=True)
class Ping:
    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    nonce: int


@dataclass(frozen=True, slots=True)
class Close:
    """The client is done: the server forgets the session at once."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """ln p of a token under the target's softmax as it is, before temperature, top-k and top-p; and the likeliest
    tokens in its place with theirs, the likeliest first. Values are float32. Raises Violation for one out of range.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for value in (self.logprob, *(logprob for _, logprob in self.top)):
            if not MIN_LOGPROB <= value <= 0.0:
                raise Violation(Reason.MALFORMED_FRAME, f"logprob={value}: need {MIN_LOGPROB:g} to 0")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to a Draft: accepted nodes in order, then the bonus token (None only when `path` ends with EOS, or when
    a Decode was cancelled). Times are the server's: waiting for the model, the target's forward pass, and drafting.

    `stale`: the draft assumed what is not so; nothing was done. `tokens`: accepted tokens of a tree that the server
    grew itself; `path` is empty then. `logprobs`: of path (or tokens) and bonus, if they were asked for.
    `tree_budget`: nodes that the next drafts had better not exceed while the server is so busy; 0: no wish.
    """

    seq: int
    path: tuple[int, ...]
    bonus: int | None
    finish: Finish = Finish.NOT_YET
    queue_us: int = 0
    verify_us: int = 0
    stale: bool = False
    tokens: tuple[int, ...] = ()
    draft_us: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    tree_budget: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Feature rows of positions first, first + 1, ...; `last` ends the rows that belong to `seq`, whose tap took
    `tap_us` microseconds. Sent as long as rows of `padded_width` values would be, where that is more (emulation).

    `of_rows`: how many rows there were at once, where these are a piece of them; not sent, but a codec may care.
    `codec`: None: the session's."""

    seq: int
    first: int
    rows: NDArray[np.float32]  # [n, width]
    last: bool
    tap_us: int = 0
    padded_width: int = 0
    of_rows: int = 0
    codec: Codec | None = None


ClientFrame = Open | Draft | Decode | Cancel | Ping | Close
ServerFrame = Opened | Verdict | Features | Pong


def _bad(message: str) -> Violation:
    return Violation(Reason.BAD_SAMPLING, message)
