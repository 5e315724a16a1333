"""Options of `outrider-bench load`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from outrider_bench.harness.options import (
    DeviceOption,
    DtypeOption,
    NewTokensOption,
    PlotOption,
    drafter_for,
    sources_of,
)
from outrider_bench.harness.study import QuestionOptions
from outrider_client.connection.policy import Patience
from outrider_drafters.contracts.tree_shape import TreeShape

if TYPE_CHECKING:
    from outrider_bench.load.measures.process_use import CoreShares
    from outrider_bench.load.plan import LoadPlan
    from outrider_bench.load.soak import SoakPlan

_TREE = TreeShape()
NO_LINK = "none"


@dataclass(frozen=True, kw_only=True)
class LoadOptions(QuestionOptions):
    """Load one server with many clients: throughput, latency, fairness, memory; every token is checked."""

    clients: Annotated[
        str, typer.Option(help="Numbers of concurrent clients, separated by commas; one run for each.")
    ] = "1,4,16,64"
    seconds: Annotated[
        float | None, typer.Option(help="Seconds per run; default: 10, in a soak as long as its faults take.")
    ] = None
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests per client, instead of a time; default: no limit.")
    ] = None
    think: Annotated[
        float | None,
        typer.Option(help="Mean seconds between an answer and the next request; default: 0, in a soak 10."),
    ] = None
    rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second over all clients; default: closed loop.")
    ] = None
    stay: Annotated[
        float | None,
        typer.Option(help="Mean number of answers before a client opens a new session; default: never, in a soak 5."),
    ] = None
    clients_kind: Annotated[
        str, typer.Option(help="replay (clients draft from the known answer) or real (with a real drafter).")
    ] = "replay"
    tau: Annotated[float, typer.Option(help="Mean acceptance length of replayed drafts.")] = 3.0
    draft_ms: Annotated[float, typer.Option(min=0, help="Time that a replayed draft takes, in ms.")] = 0.0
    mode: Annotated[str, typer.Option(help="Mode of the clients.")] = "stop-and-wait"
    breadth: Annotated[int, typer.Option(help="Nodes expanded per level of a draft tree.")] = _TREE.breadth
    levels: Annotated[int, typer.Option(help="Levels of a draft tree.")] = _TREE.levels
    budget: Annotated[int, typer.Option(help="Nodes of a draft tree.")] = _TREE.budget
    prompt_mix: Annotated[
        str | None,
        typer.Option(help="Weights of short and long prompts; default: short:3,long:1; --questions are as they are."),
    ] = None
    long_tokens: Annotated[int, typer.Option(min=1, help="Least number of tokens of a long prompt.")] = 384
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Prompts per family; default: 8, or all of a category of --questions.")
    ] = None
    max_new_tokens: NewTokensOption = 64
    profile: Annotated[
        str, typer.Option(help="Link profile between clients and server (proxy engine); none for no link.")
    ] = NO_LINK
    link_floor_ms: Annotated[
        float, typer.Option(help="Milliseconds of silence after which the link counts as broken at the earliest.")
    ] = Patience().floor_s * 1e3
    server: Annotated[
        str | None, typer.Option(help="HOST:PORT of a running server; default: start one for the run.")
    ] = None
    server_options: Annotated[
        str, typer.Option(help="More options for the `outrider-server serve` that is started, e.g. '--threads 2'.")
    ] = ""
    shared_prefixes: Annotated[
        str | None,
        typer.Option(help="The server's --shared-prefixes; default: none (every prompt is computed), in a soak payer."),
    ] = None
    drafter: Annotated[
        str | None,
        typer.Option(
            help="Name of one that ships, DIR[,option=value...] or lookup; replayed clients ask for the features that "
            "it needs; default: the best that ships for the target, or else lookup."
        ),
    ] = None
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    workers: Annotated[int, typer.Option(min=1, help="Processes that run the clients.")] = 1
    own_cores: Annotated[
        bool, typer.Option("--own-cores/--any-cores", help="Pin server and clients to separate cores.")
    ] = True
    control: Annotated[
        bool, typer.Option(help="Also measure transformers' generate, and this server with clients that do not draft.")
    ] = True
    soak: Annotated[
        bool,
        typer.Option("--soak", help="Soak test: watch memory and answers for --seconds, with faults; one --clients."),
    ] = False
    cuts: Annotated[int, typer.Option(help="Soak: connections to shut down.")] = 0
    outages: Annotated[int, typer.Option(help="Soak: silences of the link of 0.5 to 4 s; needs --profile.")] = 0
    kills: Annotated[int, typer.Option(help="Soak: kills (SIGKILL) and restarts of the server.")] = 0
    warm_up: Annotated[
        float | None,
        typer.Option(help="Soak: seconds before memory growth is measured; default: a quarter, at most 600."),
    ] = None
    sample_every: Annotated[float, typer.Option(min=0.1, help="Soak: seconds between memory samples.")] = 10.0
    seed: Annotated[int, typer.Option(help="Random seed of prompts, drafts, moments and faults.")] = 1
    plot: PlotOption = None
    access: Mapping[str, Any] = field(default_factory=dict)  # Any: each option of the connection has its own type

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        return super().settings | {"access": self.plan.access}

    @cached_property
    def plan(self) -> LoadPlan:
        """Raises UsageError."""
        from outrider_bench.load.clients.access_json import access_to_json
        from outrider_bench.load.clients.client import ClientBehavior, ClientKind
        from outrider_bench.load.plan import LoadPlan, client_counts, mix_of, options_of
        from outrider_client.core.config import Mode

        think_s = (10.0 if self.soak else 0.0) if self.think is None else self.think
        named = drafter_for(self.directory, self.drafter)
        return LoadPlan(
            target=self.directory,
            drafter=sources_of([named])[named],
            clients=client_counts(self.clients),
            mix=mix_of(self.prompt_mix, self.source, self.per_family, self.long_tokens, self.max_new_tokens),
            habits=ClientBehavior(
                think_s, self.rate, self.requests, 5.0 if self.soak and self.stay is None else self.stay
            ),
            kind=cast(ClientKind, self.clients_kind),
            mode=cast(Mode, self.mode),
            shape=TreeShape(self.breadth, self.levels, self.budget),
            tau=self.tau,
            draft_s=self.draft_ms / 1e3,
            profile=None if self.profile == NO_LINK else self.profile,
            link_floor_s=self.link_floor_ms / 1e3,
            workers=self.workers,
            seed=self.seed,
            server=self.server,
            server_options=options_of(self.server_options),
            shared_prefixes=self.shared_prefixes or ("payer" if self.soak else "none"),
            dtype=self.dtype,
            device=self.device,
            access=access_to_json(self.access),
        )

    @property
    def soak_plan(self) -> SoakPlan:
        """Raises UsageError."""
        from outrider_bench.load.soak import plan_soak

        faults = self.cuts, self.outages, self.kills
        return plan_soak(self.plan, self.seconds, *faults, self.warm_up, self.sample_every)

    @cached_property
    def cores(self) -> CoreShares:
        from outrider_bench.load.measures.process_use import CoreShares

        return CoreShares.apart(self.workers) if self.own_cores and self.server is None else CoreShares()

    @property
    def counted_s(self) -> float | None:
        """Seconds of a run; None: until the clients have made their requests."""
        return None if self.requests is not None else self.seconds or 10.0
