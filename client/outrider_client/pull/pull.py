"""Pulls an edge bundle: all that a device needs of target and drafter, from the server that verifies for it.

What was downloaded is kept over broken links, full disks and killed processes until the bundle is complete.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path

from outrider_client.connection.access import PLAIN, Access
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.policy import Backoff
from outrider_client.models.pulled import pulled_dir
from outrider_client.pull.bundle_source import BundleSource
from outrider_client.pull.partial_bundle import FOR_LOADING, CorruptFileError, PartialBundle, PartialFile
from outrider_drafters.trials.trial import Trial
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import TRANSIENT_REASONS, LinkError, OutriderError, Reason, Refusal, UsageError, Violation
from outrider_proto.frames import ServerDescription

_BUILD_S = 1800.0  # for a server to build the bundle of a large target
# Unlike a session, a pull fails at once when it is over quota or stalled. It waits while a bundle is being built.
_TRANSIENT = (TRANSIENT_REASONS - {Reason.STALLED, Reason.OVER_QUOTA}) | {
    Reason.BUNDLE_NOT_READY,
    Reason.BUNDLE_CHANGED,
}


@dataclass(frozen=True, slots=True)
class PullConfig:
    """A bundle to pull and its destination. Raises UsageError.

    `drafter` and `weights` are the server's names for them, empty for its first. `out` None: the user's data directory,
    where `outrider generate --server` finds it. `retry_s`: time without a new byte after which to give up, once the
    server was reached.
    """

    server: str
    out: Path | None = None
    drafter: str = ""
    weights: str = ""
    retry_s: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)
    access: Access = PLAIN

    def __post_init__(self) -> None:
        if not self.retry_s >= 0:
            raise UsageError(f"retry={self.retry_s}: need 0 seconds or more")


# The names of the events and of their fields are the format of `pull --json`: programs read them.
@dataclass(frozen=True, slots=True)
class PullStarted:
    """A download starts, or resumes after a broken link, with `kept_bytes` of it here already."""

    bundle_id: str
    target: str
    drafter: str
    weights: str
    size_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class BytesPulled:
    count: int


@dataclass(frozen=True, slots=True)
class FilePulled:
    """A file is complete and matches its checksum."""

    name: str


@dataclass(frozen=True, slots=True)
class BundleTried:
    """All files are here; the bundle is loaded for the first time, where it can do no harm, which takes seconds."""


@dataclass(frozen=True, slots=True)
class PullWaiting:
    """The pull failed for now, and is tried again after a delay."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Pulled:
    """The bundle is in place. `changed`: it was not in place before."""

    directory: Path
    bundle_id: str
    target: str
    target_fingerprint: str
    drafter: str
    weights: str
    size_bytes: int
    changed: bool


PullEvent = PullStarted | BytesPulled | FilePulled | BundleTried | PullWaiting | Pulled


async def pull_bundle(config: PullConfig, watch: Callable[[PullEvent], None] = lambda event: None) -> Pulled:
    """Download what is missing and put the bundle in place. Raises UsageError (a full disk), Refusal or LinkError."""
    transport = GrpcTransport(config.server, config.access)
    partial = PartialBundle(config.out if config.out is not None else pulled_dir(config.server))
    with partial.locked():
        return await _Pull(config, transport, partial, watch).run()


class _Pull:
    """One pull, over as many connections as it takes."""

    def __init__(
        self, config: PullConfig, transport: GrpcTransport, partial: PartialBundle, watch: Callable[[PullEvent], None]
    ) -> None:
        self._config = config
        self._transport = transport
        self._partial = partial
        self._watch = watch
        self._corrupt: set[str] = set()
        self._reached = False
        self._num_attempts = 0  # since the last byte
        self._progress_at = self._started_at = time.monotonic()
        self._generator = random.Random()

    async def run(self) -> Pulled:
        while True:
            try:
                async with self._transport.channel() as channel:
                    return await self._attempt(BundleSource(self._transport, channel))
            except CorruptFileError:
                continue  # once per file: the second time `_finish` raises Violation instead
            except (LinkError, Refusal) as error:
                if isinstance(error, Refusal) and error.reason not in _TRANSIENT:
                    raise
                await self._wait(error)

    async def _attempt(self, source: BundleSource) -> Pulled:
        manifest = await self._manifest(source)
        with self._partial.disk_errors_explained():
            if await asyncio.to_thread(self._partial.is_in_place, manifest):
                return self._done(manifest, changed=False)
            kept = await asyncio.to_thread(self._partial.prepare, manifest)
            started = PullStarted(
                manifest.bundle_id, manifest.target_name, manifest.drafter, manifest.weights, manifest.size_bytes, kept
            )
            self._watch(started)
            for file in manifest.files:
                if not await asyncio.to_thread(self._partial.has, file):
                    await self._fetch(source, manifest.bundle_id, file)
            self._watch(BundleTried())
            # Closed also when this task is cancelled: the thread that waits for it ends then.
            with closing(Trial("model", *FOR_LOADING, times=1 + manifest.size_bytes / 2**30)) as trial:
                await asyncio.to_thread(self._partial.place, manifest, trial)
        return self._done(manifest, changed=True)

    async def _manifest(self, source: BundleSource) -> BundleManifest:
        description = await source.describe()
        self._reached = True
        manifest = await source.manifest(self._config.drafter, self._config.weights)
        check_manifest(manifest, description)
        return manifest

    async def _fetch(self, source: BundleSource, bundle_id: str, file: BundleFile) -> None:
        with await asyncio.to_thread(PartialFile, self._partial.directory / file.name, file) as part:
            if part.num_bytes < file.size_bytes:
                # Closed at once on errors: its `finally` cancels the call, which would go on streaming.
                async with aclosing(source.fetch(bundle_id, file, part.num_bytes)) as chunks:
                    async for data in chunks:
                        await asyncio.to_thread(part.write, data)
                        self._num_attempts, self._progress_at = 0, time.monotonic()
                        self._watch(BytesPulled(len(data)))
            if part.num_bytes < file.size_bytes:
                raise LinkError(f"{self._config.server}: the server ended {file.name} too early")
            await asyncio.to_thread(self._finish, part, file)
        self._watch(FilePulled(file.name))

    def _finish(self, part: PartialFile, file: BundleFile) -> None:
        try:
            part.finish()
        except CorruptFileError as error:
            if file.name in self._corrupt:
                raise Violation(error.reason, f"{error}, twice") from error
            self._corrupt.add(file.name)
            raise

    async def _wait(self, error: OutriderError) -> None:
        """Sleep until the next attempt. Raises the error if there is to be none."""
        is_building = isinstance(error, Refusal) and error.reason is Reason.BUNDLE_NOT_READY
        # While the server builds the bundle no byte can come: its own limit counts then, not the one for broken links.
        waited_s = time.monotonic() - (self._started_at if is_building else self._progress_at)
        if not self._reached:
            raise error
        if waited_s >= (_BUILD_S if is_building else self._config.retry_s):
            kept = f"{self._partial.num_bytes:,} bytes are kept in {self._partial.directory}: pull again to go on"
            message = f"{error}; {kept}"
            raise Refusal(error.reason, message) if isinstance(error, Refusal) else LinkError(message)
        self._num_attempts += 1
        delay_s = self._config.backoff.delay_s(self._num_attempts, self._generator)
        self._watch(PullWaiting(str(error), delay_s))
        await asyncio.sleep(delay_s)
        if is_building:
            self._progress_at = time.monotonic()

    def _done(self, manifest: BundleManifest, *, changed: bool) -> Pulled:
        pulled = Pulled(
            directory=self._partial.out,
            bundle_id=manifest.bundle_id,
            target=manifest.target_name,
            target_fingerprint=manifest.target_fingerprint,
            drafter=manifest.drafter,
            weights=manifest.weights,
            size_bytes=manifest.size_bytes,
            changed=changed,
        )
        self._watch(pulled)
        return pulled


def check_manifest(manifest: BundleManifest, server: ServerDescription) -> None:
    """Raise Violation for a bundle that does not fit the server that offers it."""
    for name in ("target_fingerprint", "tokenizer_fingerprint"):
        ours, theirs = getattr(manifest, name), getattr(server, name)
        if ours != theirs:
            raise Violation(Reason.MALFORMED_FRAME, f"the bundle has {name} {ours}, the server itself {theirs}")
    if manifest.tap and manifest.tap not in {tap.fingerprint for tap in server.taps}:
        raise Violation(
            Reason.MALFORMED_FRAME,
            f"the bundle's drafter needs features {manifest.tap}, which the server does not offer",
        )
