"""Building an edge bundle in a process of its own, and caching it.

The process takes neither the interpreter's lock nor more than one core from the target. The cache key covers everything
that the bundle depends on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.load import family_without_files
from outrider_drafters.quantization.quantize import Weights
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import UsageError

_NICE = 10


@dataclass(frozen=True, slots=True)
class BundleOffer:
    """A bundle on offer. `target` and `drafter` are as configured."""

    target: str
    drafter: str
    weights: str

    @property
    def drafter_name(self) -> str:
        """The name that clients see, without the path."""
        return Path(DrafterSource.parse(self.drafter).name).name


@dataclass(frozen=True, slots=True)
class BuiltBundle:
    """A complete bundle on disk."""

    directory: Path
    manifest: BundleManifest


def cache_dir() -> Path:
    """Return the default folder of bundles, by the XDG rule."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider" / "bundles"


def checked_weights(requested: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of weights to offer; by default int8. Raises UsageError."""
    for weights in requested:
        if weights not in get_args(Weights):
            raise UsageError(f"edge_weights={weights}: need one of {', '.join(get_args(Weights))}")
        if weights == "int4" and find_spec("torchao") is None:
            raise UsageError(f"edge_weights={weights} needs torchao: pip install 'outrider[edge]'")
    return requested or ("int8",)


async def build(offer: BundleOffer, cache: Path) -> BuiltBundle:
    """Return the bundle from the cache, or build it. Raises UsageError or OSError."""
    directory = cache / await asyncio.to_thread(cache_key, offer)
    if (built := await asyncio.to_thread(read_built, offer, directory)) is not None:
        return built
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)  # what is still there is damaged
    await asyncio.to_thread(cache.mkdir, parents=True, exist_ok=True)
    # Inside the cache: a rename works only within one file system.
    with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as building:
        await _run_builder(offer, Path(building) / "bundle")
        # A rename fails where another server with this cache has been quicker: its bundle is as good.
        with suppress(OSError):
            (Path(building) / "bundle").replace(directory)
    if (built := await asyncio.to_thread(read_built, offer, directory)) is None:
        raise UsageError(f"{directory}: no bundle, though it was built there")
    return built


async def _run_builder(offer: BundleOffer, out: Path) -> None:
    arguments = ["--target", offer.target, "--drafter", offer.drafter, "--weights", offer.weights, "--out", str(out)]
    process = await asyncio.create_subprocess_exec(
        # -P: a file in the current folder must not be imported in place of a module of that name.
        *(sys.executable, "-P", "-m", "outrider_models.cli.app", "bundle", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        # One thread and a low priority: the target needs the cores.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with suppress(AttributeError, OSError):  # not on this system, or it has ended already
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        _, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise UsageError(
            stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        )


def read_built(offer: BundleOffer, directory: Path) -> BuiltBundle | None:
    """Return the bundle in a directory, None if it is incomplete."""
    try:
        bundle = find_bundle(directory)
    except UsageError:
        return None
    if bundle is None:
        return None
    manifest = BundleManifest(
        target_name=bundle.target,
        target_fingerprint=bundle.target_fingerprint,
        tokenizer_fingerprint=bundle.tokenizer_fingerprint,
        tap=bundle.tap["fingerprint"],
        drafter=offer.drafter_name,
        weights=bundle.weights,
        files=tuple(_file(directory, name) for name in sorted({"bundle.json", *bundle.files})),
    )
    return BuiltBundle(directory, manifest)


def _file(directory: Path, name: str) -> BundleFile:
    with (directory / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return BundleFile(name, file.tell(), digest)


def cache_key(offer: BundleOffer) -> str:
    """Return a hash of the models' files, the offer, and the software versions."""
    digest = hashlib.sha256(repr((astuple(offer), version("outrider"), version("torch"))).encode())
    drafter = DrafterSource.parse(offer.drafter)
    vocabulary = drafter.options.draft_vocab_file
    chosen = () if vocabulary is None else (vocabulary.resolve(),)
    for path in sorted({*_files(offer.target), *_files(drafter.name), *chosen}):
        # Size and time stand for the contents: to read all weights would take too long.
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _files(name: str) -> Iterator[Path]:
    path = Path(name).expanduser()
    if path.is_file():
        yield path.resolve()
    elif family_without_files(name) is None:
        yield from (file.resolve() for file in resolve_dir(name).rglob("*") if file.is_file())
