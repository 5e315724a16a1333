"""The settings of `outrider-bench load`, validated."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider_bench.load.clients.settings import ClientSettings
from outrider_bench.load.clients.texts import PromptMix
from outrider_bench.load.clients.worker import Assignment
from outrider_client.connection.access import Access
from outrider_proto.errors import UsageError
from outrider_server.engine.hf_model import DTYPES


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The settings of a load run. Raises UsageError."""

    settings: ClientSettings
    clients: tuple[int, ...]  # how many at once, one run after another
    mix: PromptMix
    workers: int
    server: str | None  # a running one; None: one is started with `server_options` added to the usual ones
    server_options: tuple[str, ...]
    shared_prefixes: str
    dtype: str
    device: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype}: need one of {', '.join(DTYPES)}")

    @property
    def serve_options(self) -> list[str]:
        """Options for `outrider-server serve`."""
        room = max(64, 2 * max(self.clients))  # a stream whose link broke keeps its place until the server notices
        settings = self.settings
        named = ["--target", str(settings.target), "--drafter", settings.drafter, "--max-sessions", str(room)]
        named += ["--dtype", self.dtype, "--device", self.device, "--shared-prefixes", self.shared_prefixes]
        return [*named, "--no-edge-bundle", *self.server_options]

    def assignment(self, num_clients: int, server: str, texts: Path, cores: Sequence[int]) -> Assignment:
        return Assignment(self.settings, server, texts, tuple(range(num_clients)), num_clients, tuple(cores))

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        content = asdict(self)
        settings = content.pop("settings")
        shown = {"target": str(self.settings.target), "access": names_of(self.settings.access)}
        return {**settings, **content, **shown, "mix": self.mix.settings}


def names_of(access: Access) -> dict[str, Any]:  # Any: JSON
    """Return the options of an access: files by name, never a key."""
    content = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(access).items()}
    del content["key"]
    return content


def client_counts(text: str) -> tuple[int, ...]:
    """Read `1,4,16,64`. Raises UsageError."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"clients={text!r}: need numbers separated by commas, such as 1,4,16") from None
    if min(counts) < 1:
        raise UsageError(f"clients={text!r}: need at least 1 client each time")
    return counts


def words_of(text: str) -> tuple[str, ...]:
    """Split `text` into words as a shell would. Raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"server_options={text!r}: {error}") from None
