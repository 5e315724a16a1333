"""The settings of `outrider-bench load`, validated."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_bench.core.prompts import QuestionSource
from outrider_bench.load.clients.access_json import access_from_json
from outrider_bench.load.clients.client import ClientBehavior, ClientKind
from outrider_bench.load.clients.drafting import probability_for
from outrider_bench.load.clients.texts import PromptMix
from outrider_bench.load.clients.worker import Assignment
from outrider_client.core.config import Mode
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_netsim import ProfileError, profile_named
from outrider_proto.errors import UsageError
from outrider_server.engine.hf_model import DTYPES

NO_LINK = "none"
KINDS: tuple[ClientKind, ...] = ("replay", "real")
MODES_OF_REPLAY: tuple[Mode, ...] = ("stop-and-wait", "stream", "auto")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The settings of a load run. Raises UsageError.

    `clients`: how many at once, one run after another. `server`: a running one; None: one is started with
    `server_options` added to the usual ones.
    """

    target: Path
    drafter: str  # its source
    clients: tuple[int, ...]
    mix: PromptMix
    habits: ClientBehavior
    kind: ClientKind
    mode: Mode
    shape: TreeShape
    tau: float
    draft_s: float
    profile: str | None
    link_floor_s: float
    workers: int
    seed: int
    server: str | None
    server_options: tuple[str, ...]
    shared_prefixes: str
    dtype: str
    device: str
    access: dict[str, Any]  # Any: each option of the connection has its own type

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"clients_kind={self.kind}: need one of {', '.join(KINDS)}")
        if self.kind == "replay" and self.mode not in MODES_OF_REPLAY:
            raise UsageError(
                f"mode={self.mode}: replayed clients need one of {', '.join(MODES_OF_REPLAY)}; use --clients-kind real"
            )
        if self.kind == "replay":
            probability_for(self.tau, self.shape.levels)
        # Called for its UsageError, before any process is started.
        access_from_json(self.access)
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype}: need one of {', '.join(DTYPES)}")
        if self.habits.rate is not None and not self.habits.rate > 0:
            raise UsageError(f"rate={self.habits.rate}: need more than 0 requests a second")
        if self.profile is not None:
            try:
                profile_named(self.profile)
            except ProfileError as error:
                raise UsageError(f"{error}; {NO_LINK} for no link") from None

    @property
    def serve_options(self) -> list[str]:
        """Options for `outrider-server serve`."""
        room = max(64, 2 * max(self.clients))  # a stream whose link broke keeps its place until the server notices
        named = ["--target", str(self.target), "--drafter", self.drafter, "--max-sessions", str(room)]
        named += ["--dtype", self.dtype, "--device", self.device, "--shared-prefixes", self.shared_prefixes]
        return [*named, "--no-edge-bundle", *self.server_options]

    def assignment(self, num_clients: int, server: str, texts: Path, cores: Sequence[int]) -> Assignment:
        return Assignment(
            server=server,
            target=str(self.target),
            drafter=self.drafter,
            texts=str(texts),
            numbers=tuple(range(num_clients)),
            num_clients=num_clients,
            seed=self.seed,
            habits=self.habits,
            kind=self.kind,
            mode=self.mode,
            shape=self.shape,
            tau=self.tau,
            draft_s=self.draft_s,
            limit=self.mix.limit,
            profile=self.profile,
            link_floor_s=self.link_floor_s,
            cores=tuple(cores),
            access=self.access,
        )


def client_counts(text: str) -> tuple[int, ...]:
    """Read `1,4,16,64`. Raises UsageError."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"clients={text!r}: need numbers separated by commas, such as 1,4,16") from None
    if min(counts) < 1:
        raise UsageError(f"clients={text!r}: need at least 1 client each time")
    return counts


DEFAULT_MIX, DEFAULT_PER_FAMILY = "short:3,long:1", 8  # of the corpus


def mix_of(text: str | None, source: QuestionSource, per_family: int | None, long_tokens: int, limit: int) -> PromptMix:
    """Read `short:3,long:1`: three short prompts to every long one, None the default. Raises UsageError."""
    if source.file is not None:
        if text is not None:
            raise UsageError(f"prompt_mix={text}: --questions are asked as they are: leave one out")
        return PromptMix(source.families, per_family, 0.0, long_tokens, limit, source)
    text = DEFAULT_MIX if text is None else text
    weights = {"short": 0.0, "long": 0.0}
    for part in text.split(","):
        name, _, weight = part.partition(":")
        try:
            weights[name] = weights[name] + float(weight)
        except (KeyError, ValueError):
            raise UsageError(f"prompt_mix={text!r}: need weights such as short:3,long:1") from None
    total = sum(weights.values())
    if min(weights.values()) < 0 or not total > 0:
        raise UsageError(f"prompt_mix={text!r}: need weights of 0 or more, at least one above 0")
    return PromptMix(source.families, per_family or DEFAULT_PER_FAMILY, weights["long"] / total, long_tokens, limit)


def options_of(text: str) -> tuple[str, ...]:
    """Split `text` into words as a shell would. Raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"server_options={text!r}: {error}") from None
