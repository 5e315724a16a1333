"""The frames of a session as plain values. wire.py turns them into protobuf.

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
the root together with the tree. `base_len` is how many of its tokens the server keeps (it drops the rest), `context`
the tokens after those that it has yet to process; then come root and tree. A prompt of n tokens is therefore
Draft{base_len=0, context=prompt[:-1], root=prompt[-1], tree=empty}, and its verdict's bonus is the first new token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

from outrider_proto.errors import Reason, Violation
from outrider_proto.flag import Flag
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
MAX_EXPANDED = 256  # nodes that a server's drafter runs for a tree, the root counted
MAX_LOGIT_BIASES = 1024
MAX_SCHEMA_CHARS = 65536
MIN_LOGPROB = -9999.0  # stands for everything less likely
_PANEL = "Sampling"


class Finish(Enum):
    """Why a verdict is the last one of its generation."""

    NOT_YET = 0
    EOS = 1  # path + bonus end with an end-of-text token; nothing follows it
    CONTEXT_FULL = 2  # no room for another token in the target's context
    LIMIT = 3  # Decode only: max_tokens were written
    CANCELLED = 4  # Decode only: the client sent Cancel


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the target may write in one answer, whose first token has position `answer_from`.

    `json_schema`: the answer is a JSON text of this schema, and ends with it; empty: any text. Penalties, as OpenAI
    defines them, are taken off a token's logit: `frequency_penalty` for every time that the answer has it already,
    `presence_penalty` where it has it at all. `logit_bias`: numbers to add to the logits of these tokens.
    `repetition_penalty`, as transformers defines it, comes first: it divides the logits above 0 of all tokens that the
    prompt and the answer have, and multiplies those below; 1 is off.
    Raises Violation (BAD_SAMPLING) for values out of range.
    """

    json_schema: str = ""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: Annotated[
        float, Flag("Make tokens that the text has already less likely: above 1, at most 2; 1 is off.", expert=True)
    ] = 1.0
    answer_from: int = 0

    def __post_init__(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise _bad(f"{name}={getattr(self, name)}: need -2 to 2")
        if not 0.0 < self.repetition_penalty <= 2.0:
            raise _bad(f"repetition_penalty={self.repetition_penalty}: need more than 0 and at most 2; 1 is off")
        for token, bias in self.logit_bias:
            if not -100.0 <= bias <= 100.0:
                raise _bad(f"logit_bias of token {token}={bias}: need -100 to 100")
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise _bad(f"logit_bias: at most {MAX_LOGIT_BIASES} tokens")
        if len(self.json_schema) > MAX_SCHEMA_CHARS:
            raise _bad(f"json_schema: at most {MAX_SCHEMA_CHARS} characters")

    def __bool__(self) -> bool:
        penalties = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(self.json_schema or penalties or self.logit_bias)

    @property
    def reads_from(self) -> int:
        """Position of the first token that the rules look at."""
        return self.answer_from if self.repetition_penalty == 1.0 else 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The target's choice of tokens. Raises Violation (BAD_SAMPLING) for values out of range.

    Typical acceptance takes tokens with probability above min(epsilon, alpha * exp(-entropy)), while the target's own
    are argmaxes. `rules` change the logits before all that.
    """

    temperature: Annotated[float, Flag("Sampling temperature; 0 is greedy.", panel=_PANEL)] = 0.0
    top_k: Annotated[int, Flag("Sample from this many of the likeliest tokens; 0 is off.", expert=True)] = 0
    top_p: Annotated[
        float, Flag("Sample from the likeliest tokens that have this probability together; 1 is off.", panel=_PANEL)
    ] = 1.0
    seed: Annotated[int, Flag("Random seed for sampling.", panel=_PANEL)] = 0
    acceptance: Annotated[
        Acceptance,
        Flag("exact: the text is the target's own. typical: any draft that is likely enough is taken.", expert=True),
    ] = "exact"
    epsilon: Annotated[float, Flag("Of typical acceptance: a probability that is always enough.", expert=True)] = 0.09
    alpha: Annotated[
        float, Flag("Of typical acceptance: this many times exp(-entropy) is enough, too.", expert=True)
    ] = 0.3
    min_p: Annotated[
        float, Flag("Sample from tokens with this share of the likeliest one's probability; 0 is off.", expert=True)
    ] = 0.0
    rules: TokenRules = TokenRules()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise _bad(f"temperature={self.temperature}: need 0 (greedy) to 100")
        if not 0 <= self.top_k < 2**31:
            raise _bad(f"top_k={self.top_k}: need 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise _bad(f"top_p={self.top_p}: need more than 0 and at most 1 (off)")
        if not 0.0 <= self.min_p <= 1.0:
            raise _bad(f"min_p={self.min_p}: need 0 (off) to 1")
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
        if self.acceptance == "typical" and self.rules:
            raise _bad("acceptance=typical: takes neither json_schema nor penalties nor logit_bias")
        # On the wire 0 is also what was left out, and any token at all would be likely enough.
        if self.acceptance == "typical" and 0.0 in (self.epsilon, self.alpha):
            raise _bad(f"epsilon={self.epsilon}, alpha={self.alpha}: typical acceptance needs more than 0 of both")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def draws(self) -> bool:
        """True if the target's tokens are drawn at random; otherwise they are argmaxes."""
        return self.acceptance == "exact" and not self.greedy


@dataclass(frozen=True, slots=True)
class TapInfo:
    """One kind of features that a server can send."""

    fingerprint: str  # its name
    family: str
    width: int  # values per token
    newest_only: bool = False  # only the last requested row is sent, which is all that such a drafter reads


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The reply to Describe."""

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
    target_digest: str = ""  # as in Opened


@dataclass(frozen=True, slots=True)
class Open:
    """The first frame of every stream."""

    protocol_version: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    tap: str = ""  # fingerprint of the requested features; empty for none
    codec: Codec = "int8"  # their encoding
    sampling: Sampling = field(default_factory=Sampling)
    session_id: str = ""  # the session to resume; empty starts one
    committed_len: int = 0  # tokens that the client holds as committed; for a resume only


@dataclass(frozen=True, slots=True)
class Opened:
    """The reply to Open."""

    session_id: str
    resumed: bool  # false for a session that the server does not know, or no longer
    kept_len: int  # tokens that the server's K/V covers
    kept_hash: bytes  # of these tokens (packing.py); a client whose own hash differently sends everything again
    max_context: int
    max_nodes: int
    eos_token_ids: tuple[int, ...]
    server_draft: bool = False  # a Decode may ask the server to draft
    request_sampling: bool = False  # a Draft or Decode may change the stream's sampling
    token_rules: bool = False  # those of a sampling, and its min_p, are applied
    target_digest: str = ""  # of all weights, as they are computed with; empty: unknown


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree to verify.

    A draft may be sent ahead of the verdict that it builds on: `assumes` is then the hash (packing.py) of all tokens up
    to and including the root, and `context` is empty. Unless the server holds exactly `base_len` tokens, and they with
    the bonus of the session's last verdict have this hash, the reply is a `stale` Verdict, nothing more.
    """

    seq: int
    base_len: int
    context: tuple[int, ...]
    root: int
    tree: DraftTree
    features_from: int = 0  # first position whose features the client lacks
    assumes: bytes = b""
    logprobs: int | None = None  # alternatives whose log probabilities come with those of the verdict's tokens
    codec: Codec | None = None  # of this request's features; None: the session's
    sampling: Sampling | None = None  # from this request of the stream on; None: as before


@dataclass(frozen=True, slots=True)
class ServerTree:
    """The shape of trees that a server grows itself, with TreeShape's names.

    Neither breadth nor levels exceed the budget, and at most MAX_EXPANDED nodes are expanded for a tree.
    """

    breadth: int
    levels: int
    budget: int
    auto: bool = False  # these are limits, and the server makes each tree as large as pays

    @property
    def most_expanded(self) -> int:
        """Largest number of nodes that the drafter runs for a tree, the root counted."""
        return 1 + self.breadth * (self.levels - 1)

    @classmethod
    def within(cls, breadth: int, levels: int, budget: int, *, auto: bool = False) -> ServerTree:
        """Return the shape, or the largest part of it that a server takes."""
        breadth = min(breadth, budget)
        return cls(breadth, min(levels, budget, 1 + (MAX_EXPANDED - 1) // breadth), budget, auto)


@dataclass(frozen=True, slots=True)
class Decode:
    """A request to write tokens with the target alone, or with a drafter on the server.

    Each pass is answered by a Verdict with this seq. `logprobs`, `codec` and `sampling` are as in Draft.
    """

    seq: int
    base_len: int
    context: tuple[int, ...]
    root: int
    max_tokens: int
    features_from: int | None = None  # as in Draft; None: no features
    tree: ServerTree | None = None  # what the server's drafter grows; None: the target alone
    logprobs: int | None = None
    codec: Codec | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the Decode `seq`, which gets a last Verdict with Finish.CANCELLED unless it has already ended."""

    seq: int


@dataclass(frozen=True, slots=True)
class Ping:
    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    nonce: int


@dataclass(frozen=True, slots=True)
class Close:
    """The client is done; the server forgets the session at once."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """ln p of a token under the target's raw softmax, before temperature, top-k and top-p.

    Values are float32. Raises Violation for one out of range.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens in its place with theirs, the likeliest first

    def __post_init__(self) -> None:
        for value in (self.logprob, *(logprob for _, logprob in self.top)):
            if not MIN_LOGPROB <= value <= 0.0:
                raise Violation(Reason.MALFORMED_FRAME, f"logprob={value}: need {MIN_LOGPROB:g} to 0")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reply to a Draft, or to a pass of a Decode."""

    seq: int
    path: tuple[int, ...]  # accepted nodes in order; empty where the server grew the tree
    bonus: int | None  # None only where `path` ends with EOS or a Decode was cancelled
    finish: Finish = Finish.NOT_YET
    queue_us: int = 0  # the request's wait for the model
    verify_us: int = 0  # the target's forward pass
    stale: bool = False  # what the draft assumed is wrong, and nothing was done
    tokens: tuple[int, ...] = ()  # accepted tokens of a tree that the server grew
    draft_us: int = 0  # the server's drafting
    logprobs: tuple[TokenLogprob, ...] = ()  # of path (or tokens) and bonus, if requested
    tree_budget: int = 0  # most nodes that the next drafts should have while the server is this busy; 0: no limit
    draft_levels: int = 0  # of a tree that the server grew


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Feature rows of positions first, first + 1, ..."""

    seq: int
    first: int
    rows: NDArray[np.float32]  # [n, width]
    last: bool  # no more rows come for `seq`
    tap_us: int = 0  # time that the tap took for the rows of `seq`
    padded_width: int = 0  # for emulation: the frame gets the size of rows of so many values, where that is more
    of_rows: int = 0  # rows that these are a piece of; not sent, but it may change the coding
    codec: Codec | None = None  # None: the session's


ClientFrame = Open | Draft | Decode | Cancel | Ping | Close
ServerFrame = Opened | Verdict | Features | Pong


def _bad(message: str) -> Violation:
    return Violation(Reason.BAD_SAMPLING, message)
