"""All that a caller can choose, validated once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from outrider_client.connection.access import PLAIN, Access
from outrider_client.connection.policy import Backoff, Patience, Timeouts
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Routing
from outrider_proto.errors import UsageError, Violation
from outrider_proto.frames import MAX_TOP_LOGPROBS, Codec, Sampling

Mode = Literal["auto", "stop-and-wait", "proactive", "pipelined", "server-draft", "stream", "offline"]
OnReconnect = Literal["keep", "verify"]
LastResort = Literal["lookup", "none"]
Privacy = Literal["local", "placeholder"]
NO_DRAFTER = "none"

_OF_SAMPLING = {field.name for field in fields(Sampling)}
_OF_ANSWER = {
    "mode",
    "shape",
    "sampling",
    "max_new_tokens",
    "on_reconnect",
    "offline_limit",
    "last_resort",
    "wait_for_link_s",
    "wait_for_features",
    "opening",
    "in_flight",
    "outcomes",
    "raw",
    "privacy",
    "logprobs",
}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Raises UsageError. `target` and `drafter` are directories or hub names; None takes the embedded pair, and
    drafter "none" none at all. The fields from `mode` on can be given anew for each answer."""

    server: str = "127.0.0.1:50051"
    target: str | Path | None = None
    drafter: str | Path | DrafterSource | None = None  # text may hold options: see drafters/source.py
    other_heads: tuple[str | Path | DrafterSource, ...] = ()  # further drafters: several heads in step
    routing: Routing = field(default_factory=Routing)  # between the heads
    keywords: Keywords | None = None  # for the route of that name: words by head name (see local_models.head_names)
    threads: int | None = None  # CPU threads of the drafter; None: one for a small drafter, else torch's choice
    pace: str | Path | None = None  # stretch the drafter's passes to named hardware's (drafters/pace.py)
    codec: Codec = "lean"
    offline_start: bool = False  # let the drafter write alone when the server cannot be reached at the start
    access: Access = PLAIN  # TLS, and the key the server asks for
    timeouts: Timeouts = field(default_factory=Timeouts)
    patience: Patience = field(default_factory=Patience)
    backoff: Backoff = field(default_factory=Backoff)
    mode: Mode = "auto"
    shape: TreePlan | None = None  # of the draft trees; None: what the drafter was made for, else TreeShape()
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 256
    on_reconnect: OnReconnect = "verify"
    offline_limit: int | None = None  # tokens an outage; None: as many as the answer may have
    last_resort: LastResort = "lookup"  # what writes offline where no drafter can: copying from the text, or nothing
    wait_for_link_s: float = 0.0  # once the drafter has nothing left to write
    wait_for_features: bool | None = None  # before the next draft; None: where the drafter loses by drafting without
    opening: bool = True  # while a long prompt's features are on their way, let the server write alone
    in_flight: int = 2  # drafts under way at once (pipelined)
    outcomes: int | None = None  # of a draft under way that are drafted for; None: as many as cost little together
    raw: bool = False  # a text prompt goes in as it is, without the chat template
    privacy: Privacy = "local"  # of private segments: the drafter answers alone, or placeholders stand in for them
    logprobs: int | None = None  # how likely the target finds its tokens, and so many likeliest in the place of each

    def __post_init__(self) -> None:
        closed = (
            ("mode", Mode),
            ("on_reconnect", OnReconnect),
            ("codec", Codec),
            ("last_resort", LastResort),
            ("privacy", Privacy),
        )
        for name, choices in closed:
            if getattr(self, name) not in get_args(choices):
                raise UsageError(f"{name}={getattr(self, name)!r}: need one of {', '.join(get_args(choices))}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads={self.threads}: need at least 1")
        if self.in_flight < 1:
            raise UsageError(f"in_flight={self.in_flight}: need at least 1")
        if self.outcomes is not None and self.outcomes < 1:
            raise UsageError(f"outcomes={self.outcomes}: need at least 1")
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens={self.max_new_tokens}: need at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise UsageError(f"logprobs={self.logprobs}: need 0 to {MAX_TOP_LOGPROBS}, or None for none at all")
        if self.offline_limit is not None and self.offline_limit < 0:
            raise UsageError(f"offline_limit={self.offline_limit}: need 0 or more")
        if not self.wait_for_link_s >= 0:
            raise UsageError(f"wait_for_link_s={self.wait_for_link_s}: need 0 or more")
        if self.drafter == NO_DRAFTER and self.last_resort == "none" and (self.mode == "offline" or self.offline_start):
            raise UsageError("without a drafter and a last resort nothing can be written offline: name one")
        self._check_heads()
        self.access.check_for(self.server)

    @property
    def drafters(self) -> tuple[str | Path | DrafterSource | None, ...]:
        """All heads as they were named, the first first; empty for none at all."""
        return () if self.drafter == NO_DRAFTER else (self.drafter, *self.other_heads)

    def _check_heads(self) -> None:
        if self.other_heads and NO_DRAFTER in (self.drafter, *self.other_heads):
            raise UsageError("drafter none cannot be one of several heads: leave it or the others out")
        if not self.other_heads and (self.routing != Routing() or self.keywords is not None):
            raise UsageError("route, gate, keywords: there is only one head; name two drafters or more")
        if (self.routing.route == "keywords") != (self.keywords is not None):
            raise UsageError("route=keywords and the words themselves go together: give both or neither")

    def for_answer(self, **overrides: Any) -> Self:  # Any: each field has its own type, checked above
        """This configuration with other choices for one answer; fields of Sampling may be named directly.

        Raises UsageError for a name that is fixed for the client's life or unknown.
        """
        sampling = {name: overrides.pop(name) for name in _OF_SAMPLING & overrides.keys()}
        for name in overrides.keys() - _OF_ANSWER:
            raise UsageError(f"{name}: an answer can choose {', '.join(sorted(_OF_ANSWER | _OF_SAMPLING))}")
        changed = replace(self, **overrides)
        try:
            return replace(changed, sampling=replace(changed.sampling, **sampling)) if sampling else changed
        except Violation as violation:
            raise UsageError(violation.message) from violation
