"""Options of `outrider-bench load`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from outrider_bench.harness.options import (
    DeviceOption,
    DtypeOption,
    NewTokensOption,
    PlotOption,
    drafter_for,
    per_family_option,
    sources_of,
)
from outrider_bench.harness.study import QuestionOptions
from outrider_client.connection.access import Access
from outrider_client.connection.policy import Patience
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_bench.core.processes import CoreShares
    from outrider_bench.load.clients.settings import ClientKind
    from outrider_bench.load.clients.texts import PromptMix
    from outrider_bench.load.plan import LoadPlan
    from outrider_client.core.config import Mode

_TREE = TreeShape()
NO_LINK = "none"
DEFAULT_LONG_SHARE, DEFAULT_PER_FAMILY = 0.25, 8  # of prompts of the corpus


@dataclass(frozen=True, kw_only=True)
class LoadOptions(QuestionOptions):
    """Load one server with many clients: throughput, latency, fairness, memory; every token is checked."""

    shown = "target questions drafter clients clients-kind seconds profile server server-options dtype device json plot"
    drafter: Annotated[
        str | None,
        Flag(
            "Name of one that ships, DIR[,option=value...] or lookup; replayed clients ask for the features that it "
            "needs; default: the best that ships for the target, or else lookup."
        ),
    ] = None
    clients: Annotated[str, Flag("Numbers of concurrent clients, separated by commas; one run for each.")] = "1,4,16,64"
    clients_kind: Annotated[
        str, Flag("replay (clients draft from the known answer) or real (with a real drafter).")
    ] = "replay"
    seconds: Annotated[float, Flag("Seconds per run.")] = 10.0
    requests: Annotated[int | None, Field(ge=1), Flag("Requests per client, instead of a time; default: no limit.")] = (
        None
    )
    think: Annotated[float, Flag("Mean seconds between an answer and the next request.")] = 0.0
    rate: Annotated[float | None, Flag("Open loop: requests per second over all clients; default: closed loop.")] = None
    stay: Annotated[
        float | None,
        Flag("Mean number of answers before a client opens a new session; default: never."),
    ] = None
    tau: Annotated[float, Flag("Mean acceptance length of replayed drafts.")] = 3.0
    draft_ms: Annotated[float, Field(ge=0), Flag("Time that a replayed draft takes, in ms.")] = 0.0
    mode: Annotated[str, Flag("Mode of the clients.")] = "stop-and-wait"
    breadth: Annotated[int, Flag("Nodes expanded per level of a draft tree.")] = _TREE.breadth
    levels: Annotated[int, Flag("Levels of a draft tree.")] = _TREE.levels
    budget: Annotated[int, Flag("Nodes of a draft tree.")] = _TREE.budget
    long_share: Annotated[float | None, Flag("Share of long prompts; default: 0.25, of questions in a file none.")] = (
        None
    )
    long_tokens: Annotated[int, Field(ge=1), Flag("Least number of tokens of a long prompt.")] = 384
    per_family: Annotated[int | None, Field(ge=1), per_family_option("8")] = None
    max_new_tokens: NewTokensOption = 64
    profile: Annotated[str, Flag("Link profile between clients and server (proxy engine); none for no link.")] = NO_LINK
    link_floor_ms: Annotated[
        float, Flag("Milliseconds of silence after which the link counts as broken at the earliest.")
    ] = Patience().floor_s * 1e3
    server: Annotated[str | None, Flag("HOST:PORT of a running server; default: start one for the run.")] = None
    server_options: Annotated[
        str, Flag("More options for the `outrider-server serve` that is started, e.g. '--threads 2'.")
    ] = ""
    shared_prefixes: Annotated[str, Flag("The server's --shared-prefixes; none: every prompt is computed.")] = "none"
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    workers: Annotated[int, Field(ge=1), Flag("Processes that run the clients.")] = 1
    any_cores: Annotated[bool, Flag("Let server and clients share all cores; else each has its own.")] = False
    control: Annotated[
        bool, Flag("Also measure transformers' generate, and this server with clients that do not draft.")
    ] = True
    seed: Annotated[int, Flag("Random seed of prompts, drafts and moments.")] = 1
    plot: PlotOption = None
    access: Access = Access()  # noqa: RUF009 # frozen

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        from outrider_bench.load.plan import names_of

        return super().settings | {"access": names_of(self.access)}

    @cached_property
    def plan(self) -> LoadPlan:
        """Raises UsageError."""
        from outrider_bench.load.clients.settings import ClientBehavior, ClientSettings
        from outrider_bench.load.plan import LoadPlan, client_counts, words_of

        named = drafter_for(self.directory, self.drafter)
        return LoadPlan(
            settings=ClientSettings(
                target=self.directory,
                drafter=sources_of([named])[named],
                habits=ClientBehavior(self.think, self.rate, self.requests, self.stay),
                kind=cast("ClientKind", self.clients_kind),
                mode=cast("Mode", self.mode),
                shape=TreeShape(self.breadth, self.levels, self.budget),
                tau=self.tau,
                draft_s=self.draft_ms / 1e3,
                limit=self.max_new_tokens,
                profile=None if self.profile == NO_LINK else self.profile,
                link_floor_s=self.link_floor_ms / 1e3,
                seed=self.seed,
                access=self.access,
            ),
            clients=client_counts(self.clients),
            mix=self.mix,
            workers=self.workers,
            server=self.server,
            server_options=words_of(self.server_options),
            shared_prefixes=self.shared_prefixes,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def mix(self) -> PromptMix:
        """Raises UsageError."""
        from outrider_bench.load.clients.texts import PromptMix

        source, of_corpus = self.source, self.questions is None
        if not of_corpus and self.long_share is not None:
            raise UsageError(f"long_share={self.long_share:g}: --questions are asked as they are: leave one out")
        share = (DEFAULT_LONG_SHARE if of_corpus else 0.0) if self.long_share is None else self.long_share
        count = self.or_all(self.per_family, DEFAULT_PER_FAMILY)
        own = None if of_corpus else source
        return PromptMix(tuple(source.families), count, share, self.long_tokens, self.max_new_tokens, own)

    @cached_property
    def cores(self) -> CoreShares:
        from outrider_bench.core.processes import CoreShares

        return CoreShares.apart(self.workers) if not self.any_cores and self.server is None else CoreShares()

    @property
    def counted_s(self) -> float | None:
        """Seconds of a run; None: until the clients have made their requests."""
        return None if self.requests is not None else self.seconds
