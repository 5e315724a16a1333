"""What a server is told at start: one frozen value, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider_proto.errors import UsageError
from outrider_proto.tree import MAX_NODES


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one server takes on. Raises UsageError for values out of range."""

    session_ttl_s: float = 600.0  # how long a session outlives its stream
    max_sessions: int = 64
    max_nodes: int = MAX_NODES  # of a draft tree
    chunk_tokens: int = 512  # of a long context, processed in one pass

    def __post_init__(self) -> None:
        if not self.session_ttl_s >= 0:
            raise UsageError(f"session_ttl={self.session_ttl_s}: need 0 seconds or more")
        if self.max_sessions < 1:
            raise UsageError(f"max_sessions={self.max_sessions}: need at least 1")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise UsageError(f"max_nodes={self.max_nodes}: need 1 to {MAX_NODES}")
        if self.chunk_tokens < 1:
            raise UsageError(f"chunk_tokens={self.chunk_tokens}: need at least 1")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything `outrider-server serve` can be told. `target` and `drafters` are directories or hub names.

    `pace`: named hardware, or a file that describes some, to whose times the passes are stretched. `server_draft`:
    sessions may have the server draft for them, with the drafter of their features. `edge_bundle`: devices may fetch
    target and drafter from here, with `edge_weights` (empty: int8 where torchao is there), made in `edge_cache`.
    """

    target: str
    drafters: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 50051  # 0 picks a free one
    dtype: str = "float32"
    device: str = "cpu"
    max_context: int | None = None  # None: the target's own
    threads: int | None = None  # CPU threads of the target; None: one for a small target, else torch's choice
    limits: Limits = Limits()
    pace: str | Path | None = None
    server_draft: bool = False
    edge_bundle: bool = True
    edge_weights: tuple[str, ...] = ()
    edge_cache: Path | None = None  # None: the user's cache folder

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UsageError(f"port={self.port}: need 0 (a free one) to {2**16 - 1}")
