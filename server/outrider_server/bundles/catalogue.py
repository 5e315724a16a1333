"""The edge bundles on offer: building them, and the bytes of their files. Knows no gRPC.

A file is found by its name in a manifest that was made here: nothing a client says becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider_proto.bundles import CHUNK_BYTES, BundleFile, BundleManifest
from outrider_proto.errors import OutriderError, Reason, Refusal, Violation
from outrider_server.bundles.builder import BuiltBundle, BundleOffer, build, cache_dir, checked_weights

_log = logging.getLogger(__name__)
_ANSWER_S = 5.0  # how long a manifest request waits for a bundle that is being built
_AGAIN_S = 30.0  # before a failed build is tried again
MAX_FETCHES = 8  # files under way at once
MAX_FETCHES_OF_PEER = 4
_TURN_S = 60.0  # a fetch keeps its place for at least so long while others wait


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A fetch under way: whose, and since when."""

    peer: str
    since: float


class EdgeBundles:
    """Bundles of one target with each of its drafters, in each kind of weights. Raises UsageError.

    Without drafters there is one that copies from the text (lookup).
    """

    def __init__(
        self,
        target: str,
        drafters: Sequence[str] = (),
        weights: tuple[str, ...] = (),
        cache: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
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
        self._clock = clock
        self._places: dict[_Place, None] = {}  # the oldest first
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
        place = self._take_place(peer)
        try:
            async with contextlib.aclosing(_read(built.directory, file, offset)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    self._check_open()
                    if place not in self._places:
                        raise Refusal(Reason.SERVER_FULL, "others wait for this place: fetch the rest later")
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # which tells nothing of the bundle
                raise Refusal(Reason.SERVER_FULL, f"{name} cannot be opened now: try again") from error
            if self._forget(built):
                _log.error("edge bundle in %s: %s: %s; it is built again", built.directory, name, error)
                await asyncio.to_thread(_remove, built.directory)
            raise Refusal(Reason.BUNDLE_CHANGED, f"{name} is gone from the server: ask for the manifest") from error
        finally:
            self._places.pop(place, None)

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

    def _take_place(self, peer: str) -> _Place:
        """Return a place for one more fetch: a free one, or one of whoever has most. Raises Refusal."""
        num_of = Counter(place.peer for place in self._places)
        if num_of[peer] >= MAX_FETCHES_OF_PEER:
            raise Refusal(
                Reason.SERVER_FULL, f"{MAX_FETCHES_OF_PEER} files are being fetched from your address: try again"
            )
        if len(self._places) >= MAX_FETCHES:
            oldest = max(self._places, key=lambda place: num_of[place.peer])  # of equals the first, which is the oldest
            is_fair = num_of[oldest.peer] <= num_of[peer] + 1
            if is_fair and self._clock() - oldest.since < _TURN_S:
                raise Refusal(Reason.SERVER_FULL, f"{MAX_FETCHES} files are being fetched already: try again")
            # Not ended here: it may wait for its client, and hears of it with its next chunk.
            del self._places[oldest]
        place = _Place(peer, self._clock())
        self._places[place] = None
        return place

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

    def _forget(self, built: BuiltBundle) -> bool:
        """Forget a bundle that must be built again; False if it was forgotten already."""
        if self._built.get(built.manifest.bundle_id) is not built:
            return False
        del self._built[built.manifest.bundle_id]
        for offer, task in list(self._builds.items()):
            if task.done() and not task.cancelled() and task.exception() is None and task.result() is built:
                del self._builds[offer]
        return True


async def _read(directory: Path, file: BundleFile, offset: int) -> AsyncGenerator[bytes]:
    """Yield a file's bytes. Raises OSError, of a whole file that is not as it was made before its last chunk."""
    digest, held = hashlib.sha256(), b""
    with await asyncio.to_thread((directory / file.name).open, "rb") as opened:
        if os.fstat(opened.fileno()).st_size != file.size_bytes:
            raise OSError("its size has changed")
        opened.seek(offset)
        while chunk := await asyncio.to_thread(opened.read, CHUNK_BYTES):
            if held:
                yield held
            digest.update(chunk)
            held = chunk
    if offset == 0 and digest.digest() != file.sha256:
        raise OSError("its bytes have changed")
    if held:
        yield held


def _remove(directory: Path) -> None:
    # Aside first: another build may put its bundle there meanwhile.
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix=".damaged-", dir=directory.parent) as aside:
        directory.rename(Path(aside) / directory.name)
