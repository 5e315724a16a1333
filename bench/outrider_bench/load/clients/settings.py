"""What all clients of a load run have in common, validated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider_bench.load.clients.drafting import probability_for
from outrider_client.connection.access import Access
from outrider_client.core.config import Mode
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_netsim import ProfileError, profile_named
from outrider_proto.errors import UsageError

ClientKind = Literal["replay", "real"]
KINDS: tuple[ClientKind, ...] = ("replay", "real")
MODES_OF_REPLAY: tuple[Mode, ...] = ("stop-and-wait", "stream", "auto")


@dataclass(frozen=True, slots=True)
class ClientBehavior:
    """When clients ask.

    Closed loop: a client asks again after its last answer and a think time, exponentially distributed with mean
    `think_s`. With `rate`, an open loop: requests arrive at that rate, whether the client is free or not.
    """

    think_s: float = 0.0
    rate: float | None = None
    requests: int | None = None  # of each client; None: until the time is up
    stay: float | None = None  # mean number of answers before a client opens a new session; None: it keeps its own


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Raises UsageError."""

    target: Path
    drafter: str  # its source
    habits: ClientBehavior
    kind: ClientKind
    mode: Mode
    shape: TreeShape
    tau: float  # of replayed drafts
    draft_s: float  # that a replayed draft takes
    limit: int  # new tokens of an answer
    profile: str | None  # of the link in front of the server, one per worker, by the proxy engine; None: no link
    link_floor_s: float  # of silence after which a link counts as broken at the earliest
    seed: int
    access: Access  # without a key: workers find it where this command would

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"clients_kind={self.kind}: need one of {', '.join(KINDS)}")
        if self.kind == "replay" and self.mode not in MODES_OF_REPLAY:
            raise UsageError(
                f"mode={self.mode}: replayed clients need one of {', '.join(MODES_OF_REPLAY)}; use --clients-kind real"
            )
        if self.kind == "replay":
            probability_for(self.tau, self.shape.levels)
        if self.habits.rate is not None and not self.habits.rate > 0:
            raise UsageError(f"rate={self.habits.rate}: need more than 0 requests a second")
        if self.profile is not None:
            try:
                profile_named(self.profile)
            except ProfileError as error:
                raise UsageError(f"{error}; none for no link") from None
