"""The server's configuration: one frozen value, checked once.

Each field is an option of `outrider-server serve`, or for experts of its --set, and a key of its TOML file (file.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag
from outrider_proto.tree import MAX_NODES
from outrider_server.config.security import SecurityConfig, at_least
from outrider_server.config.telemetry import TelemetryConfig
from outrider_server.kv.size import KVLayout, MemorySize

PlanAhead = Literal["auto", "on", "off"]
_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of one server. Raises UsageError for values out of range."""

    session_ttl_s: Annotated[float, Flag("Seconds a session is kept after its stream has ended.")] = 600.0
    max_sessions: Annotated[int, Flag("Largest number of sessions with a stream; idle ones make room for others.")] = 64
    parked_sessions: Annotated[
        int, Flag("Largest number of sessions kept without a stream, each with the tokens of its text.", expert=True)
    ] = 512
    client_sessions: Annotated[
        int | None,
        Flag(
            "Largest number of sessions with a stream of one key (unless added with --sessions) or, without keys, of"
            " one address; loopback has no limit. Default: half of --max-sessions.",
            expert=True,
        ),
    ] = None
    max_nodes: Annotated[int, Flag("Largest number of nodes in a draft tree.", expert=True)] = MAX_NODES
    batch_tokens: Annotated[int, Flag("Rows of one pass: drafted nodes, roots and parts of prompts.", expert=True)] = (
        1024
    )
    chunk_tokens: Annotated[
        int | None,
        Flag(
            "Tokens of one session's prompt processed in one pass."
            f" Default: {_CHUNK_TOKENS}, or batch-tokens where that is less.",
            expert=True,
        ),
    ] = None
    plan_ahead: Annotated[
        PlanAhead,
        Flag(
            "While a pass runs, take what arrives and begin the requests of sessions that are not in it: on, off, or"
            " auto: on for a target on a GPU. A CPU runs the pass itself, and verdicts would only leave later.",
            expert=True,
        ),
    ] = "auto"
    adaptive_trees: Annotated[
        bool, Flag("Ask clients for smaller draft trees while the server is busy.", expert=True)
    ] = True
    kv_memory: Annotated[
        str | None,
        Flag(
            "Memory for K/V and features of all sessions, such as 2GiB, or a share of what is free. Default: 50%, on a"
            " GPU 90%."
        ),
    ] = None
    kv_swap: Annotated[
        str | None,
        Flag(
            "Memory of the host for the K/V of evicted sessions, copied back instead of computed again: such as 8GiB, a"
            " share of what is free, or 0 for none. Default: 25% for a target on a GPU, else none.",
            expert=True,
        ),
    ] = None
    kv_layout: Annotated[
        KVLayout,
        Flag(
            "Layout of K/V rows: paged (pages of 32 tokens in one arena, one attention call a layer for all sessions),"
            " contiguous (a buffer a session), or auto: paged on a GPU, contiguous on a CPU, where it is faster.",
            expert=True,
        ),
    ] = "auto"
    shared_prefixes: Annotated[
        Literal["payer", "all", "none"],
        Flag("Sessions that share K/V rows of a common prefix: those of one key (payer), all, or none."),
    ] = "payer"
    room_wait_s: Annotated[float, Flag("Seconds a request waits for K/V memory before it is refused.", expert=True)] = (
        20.0
    )
    stall_s: Annotated[
        float, Flag("Seconds after which a stream ends if its client reads nothing or has not sent Open.", expert=True)
    ] = 60.0
    drain_s: Annotated[float, Flag("Seconds that running requests get to finish when the server stops.")] = 5.0

    def __post_init__(self) -> None:
        at_least(self, 0, "session_ttl_s", "parked_sessions", "room_wait_s", "drain_s")
        at_least(self, 1, "max_sessions", "client_sessions", "batch_tokens", "chunk_tokens")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise UsageError(f"max_nodes={self.max_nodes}: need 1 to {MAX_NODES}")
        if self.chunk_rows > self.batch_tokens:
            raise UsageError(f"chunk_tokens={self.chunk_tokens}: need at most batch_tokens={self.batch_tokens}")
        if self.kv_memory is not None:
            MemorySize.parse(self.kv_memory)
        if self.kv_swap is not None and self.kv_swap != "0":
            MemorySize.parse(self.kv_swap, "kv_swap")
        if not self.stall_s > 0:
            raise UsageError(f"stall_s={self.stall_s}: need more than 0")

    @property
    def chunk_rows(self) -> int:
        """Rows of one session's prompt in one pass."""
        return self.chunk_tokens or min(_CHUNK_TOKENS, self.batch_tokens)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of `outrider-server serve`. Raises UsageError for values out of range."""

    target: Annotated[
        str,
        Flag(
            "Target: directory, GGUF file, hub name, or name got with outrider-models."
            " Default: what was got, else the embedded one."
        ),
    ]
    drafters: Annotated[
        tuple[str, ...],
        Flag("Drafter whose features to offer; repeatable. Default: those that ship for the target.", name="drafter"),
    ] = ()
    host: Annotated[str, Flag("Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1"
    port: Annotated[int, Flag("Port to listen on; 0 picks a free one.")] = 50051
    dtype: Annotated[
        str,
        Flag(
            "Data type of the target: float32, bfloat16, float16, or auto: the checkpoint's own on a GPU, float32 on a"
            " CPU."
        ),
    ] = "auto"
    device: Annotated[
        str, Flag("Device of the target: cpu, cuda, cuda:1, ..., or auto: the first GPU, else the CPU.")
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Flag(
            "Compute a token alike whatever else a pass computes: answers in bfloat16 and float16 are exact, too.",
            expert=True,
        ),
    ] = False
    max_context: Annotated[
        int | None,
        Flag(
            "Largest number of tokens in a session. Default: the target's limit, or what a quarter of --kv-memory holds"
            " where that is less, but not under 4096."
        ),
    ] = None
    threads: Annotated[int | None, Flag("CPU threads of the target. Default: all cores; 1 for a small target.")] = None
    tensor_parallel: Annotated[
        int, Flag("Number of processes on this machine to divide the target among.", expert=True)
    ] = 1
    limits: LimitsConfig = LimitsConfig()
    security: SecurityConfig = field(default_factory=SecurityConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    pace: Annotated[
        str | Path | None,
        Flag("Emulate slower hardware: stretch every pass to the times of a named profile (paper) or a TOML file."),
    ] = None
    server_draft: Annotated[bool, Flag("Draft on the server for sessions that ask for it.")] = False
    draft_vocab: Annotated[
        str | None,
        Flag(
            "Tokens that drafters draft, here and in edge bundles: a file of `outrider-models draft-vocab`, the first N"
            " of a drafter's own, or all. Default: a drafter's own, else all.",
            expert=True,
        ),
    ] = None
    edge_bundle: Annotated[
        bool, Flag("Serve edge bundles: what a device needs of target and drafter (`outrider pull`).")
    ] = True
    edge_weights: Annotated[
        tuple[str, ...],
        Flag(
            "Weights of edge bundles: float32, bfloat16, int8 or int4; repeatable, the first is the default.",
            expert=True,
        ),
    ] = ()
    edge_cache: Annotated[
        Path | None, Flag("Folder for edge bundles. Default: the user's cache folder.", expert=True)
    ] = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UsageError(f"port={self.port}: need 0 (a free one) to {2**16 - 1}")
        at_least(self, 1, "threads", "tensor_parallel")
        if self.batch_invariant and self.tensor_parallel > 1:
            raise UsageError("batch_invariant: not with tensor_parallel")
        # Frozen, and strict about the field's type: names of drafters that ship become their directories here.
        object.__setattr__(self, "drafters", tuple(drafter_source(text, self.target) for text in self.drafters))
