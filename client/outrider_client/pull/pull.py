"""Pulling an edge bundle: all that a device needs of target and drafter, from the server that verifies for it. What has
come stays, over broken links, full disks and ends of the process, until it is whole."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from outrider_client.connection.access import PLAIN, Access
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.policy import Backoff
from outrider_client.models.pulled import pulled_dir
from outrider_client.pull.bundle_source import BundleSource, bundle_source
from outrider_client.pull.partial_bundle import CorruptFileError, PartialBundle, PartialFile
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import TRANSIENT_REASONS, LinkError, OutriderError, Reason, Refusal, UsageError, Violation
from outrider_proto.frames import ServerDescription

_MAKING_S = 1800.0  # for a server to make a bundle of a large target
# Unlike a session, a pull ends at once over quota or stalled; it waits for a bundle in the making instead.
_TRANSIENT = (TRANSIENT_REASONS - {Reason.STALLED, Reason.OVER_QUOTA}) | {
    Reason.BUNDLE_NOT_READY,
    Reason.BUNDLE_CHANGED,
}


@dataclass(frozen=True, slots=True)
class PullConfig:
    """What to pull, and where to. Raises UsageError.

    `drafter` and `weights` as the server names them, empty for its first. `out` None: the user's data directory, where
    `outrider generate --server` looks. `retry_s`: how long to try without a byte once the server was reached.
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


@dataclass(frozen=True, slots=True)
class PullStarted:
    """What will come, and how much of it is there already. Said again where a broken link was taken up."""

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
    """A file is there, and is what was promised."""

    name: str


@dataclass(frozen=True, slots=True)
class PullWaiting:
    """Before it is tried again."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Pulled:
    """The bundle is in place. `changed`: it was not there before."""

    directory: Path
    bundle_id: str
    target: str
    target_fingerprint: str
    drafter: str
    weights: str
    size_bytes: int
    changed: bool


PullEvent = PullStarted | BytesPulled | FilePulled | PullWaiting | Pulled


async def pull(order: PullConfig, watch: Callable[[PullEvent], None] = lambda event: None) -> Pulled:
    """Fetch what is missing and put it in place; what has come is kept, whatever happens.

    Raises UsageError (full disks included), Refusal, or LinkError when the server cannot be reached at first or stays
    away for too long.
    """
    transport = GrpcTransport(order.server, order.access)
    staging = PartialBundle(order.out if order.out is not None else pulled_dir(order.server))
    with staging.locked():
        return await _Pull(order, transport, staging, watch).run()


class _Pull:
    """One pull over however many connections."""

    def __init__(
        self, order: PullConfig, transport: GrpcTransport, staging: PartialBundle, watch: Callable[[PullEvent], None]
    ) -> None:
        self._order = order
        self._transport = transport
        self._staging = staging
        self._watch = watch
        self._corrupt: set[str] = set()
        self._reached = False
        self._num_attempts = 0  # since the last byte
        self._heard_at = self._began_at = time.monotonic()
        self._generator = random.Random()

    async def run(self) -> Pulled:
        while True:
            try:
                async with bundle_source(self._transport) as source:
                    return await self._attempt(source)
            except CorruptFileError:
                continue  # once a file: _fetch lets the second time pass
            except (LinkError, Refusal) as error:
                if isinstance(error, Refusal) and error.reason not in _TRANSIENT:
                    raise
                await self._wait(error)

    async def _attempt(self, source: BundleSource) -> Pulled:
        manifest = await self._manifest(source)
        with self._staging.explained():
            if await asyncio.to_thread(self._staging.is_in_place, manifest):
                return self._done(manifest, changed=False)
            kept = await asyncio.to_thread(self._staging.prepare, manifest)
            self._watch(_started(manifest, kept))
            for file in manifest.files:
                if not await asyncio.to_thread(self._staging.has, file):
                    await self._fetch(source, manifest.bundle_id, file)
            await asyncio.to_thread(self._staging.place, manifest)
        return self._done(manifest, changed=True)

    async def _manifest(self, source: BundleSource) -> BundleManifest:
        description = await source.describe()
        self._reached = True
        manifest = await source.manifest(self._order.drafter, self._order.weights)
        check_manifest(manifest, description)
        return manifest

    async def _fetch(self, source: BundleSource, bundle_id: str, file: BundleFile) -> None:
        with await asyncio.to_thread(self._staging.part, file) as part:
            if part.num_bytes < file.size_bytes:
                async with aclosing(source.fetch(bundle_id, file, part.num_bytes)) as chunks:
                    async for data in chunks:
                        await asyncio.to_thread(part.write, data)
                        self._heard(len(data))
            if part.num_bytes < file.size_bytes:
                raise LinkError(f"{self._order.server}: the server ended {file.name} too early")
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

    def _heard(self, count: int) -> None:
        self._num_attempts = 0
        self._heard_at = time.monotonic()
        self._watch(BytesPulled(count))

    async def _wait(self, error: OutriderError) -> None:
        """Until the next attempt is due. Raises the error where there is to be none."""
        making = isinstance(error, Refusal) and error.reason is Reason.BUNDLE_NOT_READY
        waited_s = time.monotonic() - (self._began_at if making else self._heard_at)
        if not self._reached:
            raise error
        if waited_s >= (_MAKING_S if making else self._order.retry_s):
            raise _given_up(error, self._staging)
        self._num_attempts += 1
        delay_s = self._order.backoff.delay_s(self._num_attempts, self._generator)
        self._watch(PullWaiting(str(error), delay_s))
        await asyncio.sleep(delay_s)
        if making:
            self._heard_at = time.monotonic()

    def _done(self, manifest: BundleManifest, *, changed: bool) -> Pulled:
        pulled = Pulled(
            directory=self._staging.out,
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
    """Raises Violation for a bundle that would not fit the very server that offers it."""
    for name in ("target_fingerprint", "tokenizer_fingerprint"):
        ours, theirs = getattr(manifest, name), getattr(server, name)
        if ours != theirs:
            raise Violation(Reason.MALFORMED_FRAME, f"the bundle has {name} {ours}, the server itself {theirs}")
    if manifest.tap and manifest.tap not in {tap.fingerprint for tap in server.taps}:
        raise Violation(Reason.MALFORMED_FRAME, f"the bundle's drafter wants features {manifest.tap}: not on offer")


def _started(manifest: BundleManifest, kept: int) -> PullStarted:
    return PullStarted(
        manifest.bundle_id, manifest.target_name, manifest.drafter, manifest.weights, manifest.size_bytes, kept
    )


def _given_up(error: OutriderError, staging: PartialBundle) -> OutriderError:
    kept = f"{error}; {staging.num_bytes:,} bytes are kept in {staging.directory}: pull again to go on"
    return Refusal(error.reason, kept) if isinstance(error, Refusal) else LinkError(kept)
