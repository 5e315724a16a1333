"""The server's configuration: one frozen value, checked once.

Each field is an option of `outrider-server serve` (options.py) and a key of its TOML file (file.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from outrider_proto.errors import UsageError
from outrider_proto.tree import MAX_NODES
from outrider_server.config.schema import FORBID_EXTRA, Flag
from outrider_server.config.security import SecurityConfig
from outrider_server.config.telemetry import TelemetryConfig
from outrider_server.kv.size import parse_bytes

SchedulerName = Literal["fair", "plain"]


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of one server. Raises UsageError for values out of range."""

    __pydantic_config__ = FORBID_EXTRA

    session_ttl_s: Annotated[float, Flag("Seconds a session is kept after its stream has ended.")] = 600.0
    max_sessions: Annotated[int, Flag("Largest number of sessions at once.")] = 64
    max_nodes: Annotated[int, Flag("Largest number of nodes in a draft tree.")] = MAX_NODES
    batch_tokens: Annotated[int, Flag("Rows of one pass: drafted nodes, roots and parts of prompts.")] = 1024
    chunk_tokens: Annotated[int, Flag("Tokens of one session's prompt processed in one pass.")] = 512
    scheduler: Annotated[
        SchedulerName,
        Flag("fair: equal shares for all keys; plain: every draft runs in the next pass, however long others wait."),
    ] = "fair"
    adaptive_trees: Annotated[bool, Flag("Ask clients for smaller draft trees while the server is busy.")] = True
    kv_memory: Annotated[
        str | None, Flag("Memory for K/V and features of all sessions, such as 2GiB. Default: half of the free memory.")
    ] = None
    shared_prefixes: Annotated[
        Literal["payer", "all", "none"],
        Flag("Sessions that share K/V rows of a common prefix: those of one key (payer), all, or none."),
    ] = "payer"
    room_wait_s: Annotated[float, Flag("Seconds a request waits for K/V memory before it is refused.")] = 20.0
    stall_s: Annotated[
        float, Flag("Seconds after which a stream ends if its client reads nothing or has not sent Open.")
    ] = 60.0
    drain_s: Annotated[float, Flag("Seconds that running requests get to finish when the server stops.")] = 5.0

    def __post_init__(self) -> None:
        if not self.session_ttl_s >= 0:
            raise UsageError(f"session_ttl={self.session_ttl_s}: need 0 seconds or more")
        if self.max_sessions < 1:
            raise UsageError(f"max_sessions={self.max_sessions}: need at least 1")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise UsageError(f"max_nodes={self.max_nodes}: need 1 to {MAX_NODES}")
        for name in ("batch_tokens", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: need at least 1")
        if self.scheduler not in get_args(SchedulerName):
            raise UsageError(f"scheduler={self.scheduler}: need one of {', '.join(get_args(SchedulerName))}")
        if self.kv_memory is not None:
            parse_bytes(self.kv_memory)
        if not self.room_wait_s >= 0:
            raise UsageError(f"room_wait={self.room_wait_s}: need 0 seconds or more")
        if not self.stall_s > 0:
            raise UsageError(f"stall={self.stall_s}: need more than 0 seconds")
        if not self.drain_s >= 0:
            raise UsageError(f"drain={self.drain_s}: need 0 seconds or more")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of `outrider-server serve`. `target` and `drafters` are directories or hub names.

    `pace`: named hardware, or a file that describes it, to whose times passes are stretched. `server_draft`: sessions
    may have the server draft for them, with the drafter of their features. `edge_bundle`: devices may fetch target and
    drafter from here, with `edge_weights` (empty: int8 where torchao is installed), built in `edge_cache`.
    """

    __pydantic_config__ = FORBID_EXTRA

    target: Annotated[
        str, Flag("Directory or hub name of the target, a Hugging Face causal LM. Default: the embedded one.")
    ]
    drafters: Annotated[
        tuple[str, ...],
        Flag("Drafter whose features to offer; repeatable. Default: the embedded target's.", name="drafter"),
    ] = ()
    host: Annotated[str, Flag("Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1"
    port: Annotated[int, Flag("Port to listen on; 0 picks a free one.")] = 50051
    dtype: Annotated[str, Flag("Data type of the target: float32, bfloat16 or float16.")] = "float32"
    device: Annotated[str, Flag("Device of the target: cpu, cuda, cuda:1, ...")] = "cpu"
    max_context: Annotated[int | None, Flag("Largest number of tokens in a session. Default: the target's limit.")] = (
        None
    )
    threads: Annotated[int | None, Flag("CPU threads of the target. Default: all cores; 1 for a small target.")] = None
    tensor_parallel: Annotated[int, Flag("Number of processes on this machine to divide the target among.")] = 1
    limits: LimitsConfig = LimitsConfig()
    security: SecurityConfig = field(default_factory=SecurityConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    pace: Annotated[
        str | Path | None,
        Flag("Emulate slower hardware: stretch every pass to the times of a named profile (paper) or a TOML file."),
    ] = None
    server_draft: Annotated[bool, Flag("Draft on the server for sessions that ask for it.")] = False
    edge_bundle: Annotated[
        bool, Flag("Serve edge bundles: what a device needs of target and drafter (`outrider pull`).")
    ] = True
    edge_weights: Annotated[
        tuple[str, ...],
        Flag("Weights of edge bundles: float32, bfloat16, int8 or int4; repeatable, the first is the default."),
    ] = ()
    edge_cache: Annotated[Path | None, Flag("Folder for edge bundles. Default: the user's cache folder.")] = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UsageError(f"port={self.port}: need 0 (a free one) to {2**16 - 1}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads={self.threads}: need at least 1")
        if self.tensor_parallel < 1:
            raise UsageError(f"tensor_parallel={self.tensor_parallel}: need at least 1")
