"""What an answer tells its caller, in order. Positions (`first`) count from the answer's first token.

The text of an answer is what Committed and Unverified append and RolledBack takes off its end; Verified changes only
what is known of it. `logprobs` are those of an event's tokens, empty where they were not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_client.connection.link_state import LinkState
from outrider_client.core.statistics import Statistics
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import FinishReason, Origin
from outrider_proto.frames import Decode, Draft, Verdict


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
    """Tokens that the drafter wrote alone."""

    first: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Private:
    """Tokens that the drafter wrote alone on private text; the target will never see them."""

    first: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Verified:
    """Unverified tokens that the target would have written too; they are committed now."""

    first: int
    count: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Unverified tokens from `first` to the end are taken back, and `text` with them."""

    first: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class LinkChanged:
    state: LinkState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One request and its verdict, as they crossed the wire."""

    request: Draft | Decode
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that spoils the answer's speed, not its text; said once."""

    message: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Where the answer stands."""

    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `unverified`: the last tokens are the drafter's alone; `link`: it broke off for want of a link;
    `private`: the drafter wrote all of it alone, on private text.

    `text` is what was held back as an incomplete character.
    """

    reason: FinishReason
    statistics: Statistics
    text: str = ""


Event = Committed | Unverified | Private | Verified | RolledBack | LinkChanged | Cycle | Warned | Stats | Finished
