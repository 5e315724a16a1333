"""The edge bundles on offer: building them, and the bytes of their files. Knows no gRPC.

A file is found by its name in a manifest that was made here: nothing a client says becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from outrider_proto.bundles import CHUNK_BYTES, BundleFile, BundleManifest
from outrider_proto.errors import OutriderError, Reason, Refusal, Violation
from outrider_server.bundles.builder import BuiltBundle, BundleOffer, build, cache_dir, checked_weights

_log = logging.getLogger(__name__)
_ANSWER_S = 5.0  # how long a manifest request waits for a bundle that is being built
_AGAIN_S = 30.0  # before a failed build is tried again
MAX_FETCHES = 8  # files under way at once
MAX_FETCHES_OF_PEER = 4


class EdgeBundles:
    """Bundles of one target with each of its drafters, in each kind of weights. Raises UsageError.

    Without drafters there is one that copies from the text (lookup).
    """

    def __init__(
        self, target: str, drafters: Sequence[str] = (), weights: tuple[str, ...] = (), cache: Path | None = None
    ) -> None:
        sources = [str(drafter) for drafter in drafters] or ["lookup"]
        offers = [BundleOffer(target, source, kind) for source in sources for kind in checked_weights(weights)]
        self._offers: dict[tuple[str, str], BundleOffer] = {}
        for offer in offers:
            self._offers.setdefault((offer.drafter_name, offer.weights), offer)
        self._cache = cache or cache_dir()
        self._builds: dict[BundleOffer, asyncio.Task[BuiltBundle]] = {}
        self._built: dict[str, BuiltBundle] = {}  # by bundle id
        self._one_at_a_time = asyncio.Lock()
        self._fetches = Counter[str]()  # by peer
        self._draining = False

    async def manifest(self, drafter: str = "", weights: str = "") -> BundleManifest:
        """Return the manifest of a bundle; empty arguments choose the server's first. Raises Refusal."""
        self._check_open()
        task = self._build_task(self._offer(drafter, weights))
        # wait(), not wait_for(): a timeout must not cancel the build.
        await asyncio.wait({task}, timeout=_ANSWER_S)
        # Again: the server may have begun to drain meanwhile.
        self._check_open()
        if not task.done():
            raise Refusal(Reason.BUNDLE_NOT_READY, "the server is still building this edge bundle: ask again")
        if task.cancelled() or task.exception() is not None:
            raise Refusal(Reason.NO_BUNDLE, "the server could not build this edge bundle: its log says why")
        built = task.result()
        self._built[built.manifest.bundle_id] = built
        return replace(
            built.manifest,
            drafters=tuple(dict.fromkeys(name for name, _ in self._offers)),
            weights_on_offer=tuple(dict.fromkeys(kind for _, kind in self._offers)),
        )

    async def chunks(self, bundle_id: str, name: str, offset: int, peer: str) -> AsyncGenerator[bytes]:
        """Yield a file's bytes from `offset` on, for one address. Raises Refusal."""
        self._check_open()
        built, file = self._find(bundle_id, name)
        if not 0 <= offset <= file.size_bytes:
            raise Violation(Reason.MALFORMED_FRAME, f"offset={offset}: {name} has {file.size_bytes} bytes")
        if self._fetches.total() >= MAX_FETCHES or self._fetches[peer] >= MAX_FETCHES_OF_PEER:
            most = f"{MAX_FETCHES} files are being fetched already, or {MAX_FETCHES_OF_PEER} from your address"
            raise Refusal(Reason.SERVER_FULL, f"{most}: try again")
        self._fetches[peer] += 1
        try:
            async with contextlib.aclosing(_read(built.directory / file.name, offset)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    self._check_open()
        except OSError as error:
            self._forget(built)
            raise Refusal(Reason.BUNDLE_CHANGED, f"{name} is gone from the server: ask for the manifest") from error
        finally:
            # Subtraction drops addresses with none left, so that the table does not grow.
            self._fetches -= Counter([peer])

    def drain(self) -> None:
        """End all fetches: clients go on where they stopped, with the next server. Safe to call twice."""
        self._draining = True

    async def stop(self) -> None:
        """End all builds. Safe to call twice."""
        self.drain()
        builds, self._builds = self._builds, {}
        for task in builds.values():
            task.cancel()
        await asyncio.gather(*builds.values(), return_exceptions=True)

    def _check_open(self) -> None:
        if self._draining:
            raise Refusal(Reason.SHUTTING_DOWN, "the server is shutting down")

    def _offer(self, drafter: str, weights: str) -> BundleOffer:
        for (name, kind), offer in self._offers.items():
            if drafter in ("", name) and weights in ("", kind):
                return offer
        drafters, kinds = (", ".join(dict.fromkeys(names)) for names in zip(*self._offers, strict=True))
        raise Refusal(Reason.NO_BUNDLE, f"this server's edge bundles have drafter {drafters} and weights {kinds}")

    def _build_task(self, offer: BundleOffer) -> asyncio.Task[BuiltBundle]:
        task = self._builds.get(offer)
        if task is None:
            task = self._builds[offer] = asyncio.create_task(self._build(offer), name="outrider edge bundle")
            task.add_done_callback(lambda done: self._ended(offer, done))
        return task

    async def _build(self, offer: BundleOffer) -> BuiltBundle:
        async with self._one_at_a_time:
            return await build(offer, self._cache)

    def _ended(self, offer: BundleOffer, task: asyncio.Task[BuiltBundle]) -> None:
        """Log what went wrong, and allow another attempt after a while."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        unknown = None if isinstance(error, OutriderError | OSError) else error
        _log.error("edge bundle of %s and %s: %s", offer.target, offer.drafter, error, exc_info=unknown)
        asyncio.get_running_loop().call_later(_AGAIN_S, self._builds.pop, offer, None)

    def _find(self, bundle_id: str, name: str) -> tuple[BuiltBundle, BundleFile]:
        built = self._built.get(bundle_id)
        if built is None:
            raise Refusal(Reason.BUNDLE_CHANGED, "this server has no such bundle, or not yet: ask for the manifest")
        for file in built.manifest.files:
            if file.name == name:
                return built, file
        raise Violation(Reason.MALFORMED_FRAME, f"the bundle has no file {name[:100]!r}")

    def _forget(self, built: BuiltBundle) -> None:
        """Forget a bundle that must be built again."""
        self._built.pop(built.manifest.bundle_id, None)
        for offer, task in list(self._builds.items()):
            if task.done() and not task.cancelled() and task.exception() is None and task.result() is built:
                del self._builds[offer]


async def _read(path: Path, offset: int) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
