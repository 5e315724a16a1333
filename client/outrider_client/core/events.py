"""Events of an answer, in order. Positions (`first`) count from the answer's first token.

Committed and Unverified append to the answer's text, RolledBack removes from its end, and Verified changes only its
status. `logprobs` belong to an event's tokens and are empty unless they were requested.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_client.connection.link_state import LinkState
from outrider_client.core.statistics import Statistics
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import FinishReason, Origin
from outrider_proto.frames import Decode, Draft, Verdict

# The names of these classes and of their fields are the format of --json (see display/json_display.py): programs read
# them.


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that the target approved: drafted and accepted, its own bonus, or its correction of unverified ones."""

    first: int
    tokens: tuple[int, ...]
    origin: Origin
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Unverified:
    """Tokens that the drafter wrote offline."""

    first: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Private:
    """Tokens that the drafter wrote alone on private text; the target never sees them."""

    first: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Verified:
    """Unverified tokens that the target confirmed; they are committed now."""

    first: int
    count: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Unverified tokens from `first` to the end were wrong: they and `text` are removed.

    All tokens are removed where the server has come back with another target. They follow as unverified ones.
    """

    first: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The link changed its state; `detail` says why, if that is known."""

    state: LinkState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One request and its verdict, as they crossed the wire."""

    request: Draft | Decode
    verdict: Verdict


WAITING = "waiting for the link: nothing here can write on without it"
OTHER_TARGET = (
    "the server came back with another model, or the same in another dtype: what was written of this answer is "
    "verified anew from its start"
)


@dataclass(frozen=True, slots=True)
class Warned:
    """What a user should know: a drafter that does not fit, turns left out of a full context, WAITING, OTHER_TARGET."""

    message: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of the answer so far."""

    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event, with the reason for the end.

    `unverified`: the last tokens are the drafter's own; `link`: the answer broke off without a link; `private`: the
    drafter wrote all of it alone, on private text; `repetition`: it went round in circles (ClientConfig.stop_loops).
    `text` was held back as an incomplete character.
    """

    reason: FinishReason
    statistics: Statistics
    text: str = ""


Event = Committed | Unverified | Private | Verified | RolledBack | LinkChanged | Cycle | Warned | Stats | Finished
