"""The server's configuration: one frozen value, checked once.

Each field is an option of `outrider-server serve`, or for experts of its --set, and a key of its TOML file (file.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag
from outrider_proto.tree import MAX_NODES
from outrider_server.kv.size import KVLayout, MemorySize

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_CHUNK_TOKENS = 512
_DAY_S = 86_400.0  # gRPC counts milliseconds in 32 bits: a longer time would overflow


def at_least(config: object, bound: float, *names: str) -> None:
    """Raise UsageError where a field is less than `bound`, or no number; None is none of its business."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= bound:
            raise UsageError(f"{name}={value}: need at least {bound:g}")


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
        Literal["auto", "on", "off"],
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
class SecurityConfig:
    """PEM files and the key file; None for none. Raises UsageError.

    Limits by address apply to callers without a valid key; behind a proxy all clients have the proxy's address.
    """

    tls_cert: Annotated[Path | None, Flag("PEM file with this server's certificate and its chain.")] = None
    tls_key: Annotated[Path | None, Flag("PEM file with the certificate's private key.")] = None
    client_ca: Annotated[Path | None, Flag("PEM file of an authority: clients need a certificate signed by it.")] = None
    keys: Annotated[Path | None, Flag("File of keys (`outrider-server keys add`): clients need one of them.")] = None
    open_to_network: Annotated[
        bool, Flag("Allow listening beyond loopback without TLS or without keys: anyone on the network can connect.")
    ] = False
    failures_per_minute: Annotated[int, Flag("Wrong keys that one address may try per minute.", expert=True)] = 20
    streams_per_minute: Annotated[
        int, Flag("Streams that one address may begin per minute without a key; loopback has no limit.", expert=True)
    ] = 600
    unopened_streams: Annotated[int, Flag("Streams of one address that have not sent Open yet.", expert=True)] = 128
    handshake_s: Annotated[
        float, Flag("Seconds a new connection has to complete TLS and HTTP/2 setup.", expert=True)
    ] = 10.0
    longest_wait_s: Annotated[
        float, Flag("Seconds a request over its key's rate may be delayed; beyond that it is refused.", expert=True)
    ] = 30.0

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("tls_cert and tls_key go together: give both or neither")
        if self.client_ca is not None and self.tls_cert is None:
            raise UsageError("client_ca needs TLS: give tls_cert and tls_key too")
        at_least(self, 1, "failures_per_minute", "streams_per_minute", "unopened_streams")
        at_least(self, 0, "longest_wait_s")
        if not 0 < self.handshake_s <= _DAY_S:
            raise UsageError(f"handshake_s={self.handshake_s}: need more than 0 seconds, and no more than a day")

    @property
    def authenticates_clients(self) -> bool:
        """True if clients need a key or a certificate."""
        return self.keys is not None or self.client_ca is not None


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Metrics, logs and traces. Raises UsageError."""

    metrics_host: Annotated[str, Flag("Address on which metrics are served.", expert=True)] = "127.0.0.1"
    metrics_port: Annotated[
        int | None, Flag("Port for Prometheus metrics; 0 picks a free one. Default: no metrics.")
    ] = None
    log_format: Annotated[LogFormat, Flag("Log format: text, or json (one object per line).")] = "text"
    log_level: Annotated[
        LogLevel, Flag("Log level: debug, info (a line for every stream that ends), warning or error.")
    ] = "warning"
    otlp_endpoint: Annotated[
        str | None, Flag("OTLP/gRPC endpoint for traces, such as http://HOST:4317. Default: no traces.")
    ] = None

    def __post_init__(self) -> None:
        if self.metrics_port is not None and not 0 <= self.metrics_port < 2**16:
            raise UsageError(f"metrics_port={self.metrics_port}: need 0 (a free one) to {2**16 - 1}")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise UsageError(f"otlp_endpoint={self.otlp_endpoint}: need http://HOST:PORT, or https:// for TLS")


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
            "Data type of the target: float32, bfloat16, float16, int8 (on a CPU; exact to the bit), or auto: the"
            " checkpoint's own on a GPU; on a CPU bfloat16 where it computes in that, but float32 for a small target."
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
    threads: Annotated[int | None, Flag("CPU threads, on cores of their own. Default: all; small targets: 1.")] = None
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
        exact = "dtype=int8" if self.dtype == "int8" else "batch_invariant" if self.batch_invariant else None
        if exact and self.tensor_parallel > 1:
            raise UsageError(f"{exact}: not with tensor_parallel")
        # Frozen, and strict about the field's type: names of drafters that ship become their directories here.
        object.__setattr__(self, "drafters", tuple(drafter_source(text, self.target) for text in self.drafters))


@dataclass(frozen=True, slots=True)
class Scale:
    """Raises UsageError. With `max_replicas` Ray keeps about `streams_per_replica` streams each, between both numbers.

    `http_port`: of Ray's own health page, /-/healthz, on loopback.
    """

    replicas: Annotated[int, Flag("Number of verifiers, each with its own target.")] = 1
    max_replicas: Annotated[
        int | None, Flag("Scale up to so many replicas with the number of streams. Default: a fixed number.")
    ] = None
    streams_per_replica: Annotated[float, Flag("Streams per replica that scaling aims at.", expert=True)] = 16.0
    surge: Annotated[
        bool, Flag("Start new replicas before old ones end on updates; needs room for twice as many.", expert=True)
    ] = False
    cpus: Annotated[float, Flag("CPUs of one replica, as Ray counts them.")] = 1.0
    gpus: Annotated[float, Flag("GPUs of one replica, as Ray counts them.")] = 0.0
    http_port: Annotated[int, Flag("Port of Ray's health page on loopback; 0 picks a free one.", expert=True)] = 8000

    def __post_init__(self) -> None:
        at_least(self, 1, "replicas")
        at_least(self, 0, "cpus", "gpus")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise UsageError(f"max_replicas={self.max_replicas}: need at least replicas={self.replicas}")
        if not self.streams_per_replica > 0:
            raise UsageError(f"streams_per_replica={self.streams_per_replica}: need more than 0")
        if not 0 <= self.http_port < 2**16:
            raise UsageError(f"http_port={self.http_port}: need 0 (a free one) to {2**16 - 1}")

    @property
    def most_replicas(self) -> int:
        """Largest number of replicas at once, also during an update."""
        return (self.max_replicas or self.replicas) * (2 if self.surge else 1)

    def kv_memory(self, num_machines: int) -> str:
        """Return the share of its device's free memory that a replica may take for K/V.

        Replicas that may share a device, by CPUs or by a part of a GPU each, take half of it together.
        """
        together = self._together(num_machines)
        if self.gpus:
            together = min(together, max(int(1 / self.gpus), 1))
        return f"{50 / together:.3g}%"

    def kv_swap(self, num_machines: int) -> str:
        """Return the share of its machine's free memory that a replica on a GPU may take for evicted sessions' K/V."""
        return f"{25 / self._together(num_machines):.3g}%" if self.gpus else "0"

    def _together(self, num_machines: int) -> int:
        return math.ceil(self.most_replicas / num_machines)


@dataclass(frozen=True, slots=True)
class DeployConfig(ServerConfig):
    """What every replica serves, as `serve` has it, and how many there are: the file's section [deploy]."""

    deploy: Scale = Scale()
