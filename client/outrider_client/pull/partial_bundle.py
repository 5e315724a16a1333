"""Files of a bundle on their way in: gathered beside their destination, checked one by one, put in place as a whole.

OUT           the bundle, once it is whole
OUT.part/     what is there of the next one: finished files by their names, and NAME.part
OUT.part.old/ the bundle before, between the two renames that replace it
OUT.lock      held by whoever fills OUT.part
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from outrider_drafters.checkpoints.bundle import DRAFTER, MANIFEST, find_bundle
from outrider_drafters.checkpoints.source import DrafterOptions
from outrider_drafters.load import FAMILIES
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import Reason, UsageError, Violation

_PART = ".part"


class CorruptFileError(Violation):
    """A file whose bytes are not those that its digest promised. What had come of it is gone."""


class PartialBundle:
    """Where the bundle for `out` grows. Raises UsageError for an `out` that holds something else."""

    def __init__(self, out: Path) -> None:
        self.out = out.expanduser().resolve()
        self.directory = self.out.with_name(self.out.name + _PART)
        self._old = self.out.with_name(self.directory.name + ".old")
        self._whole: set[BundleFile] = set()  # looked at already
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{out}: a file; name a directory")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / MANIFEST).is_file():
            raise UsageError(f"{out}: holds something else than an edge bundle; name another directory")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with it. Raises UsageError while somebody else is."""
        path = self.out.with_name(self.out.name + ".lock")
        with self.explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = FileLock(path).acquire(blocking=False)
            except Timeout:
                raise UsageError(f"{self.out}: another pull into it is under way; let it end") from None
        with lock:
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A fault of the disk as UsageError, which says what is kept."""
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"{error.filename or self.directory}: {error.strerror}; {self.num_bytes:,} bytes are kept in"
                f" {self.directory}: pull again when there is room for the rest"
            ) from error

    @property
    def num_bytes(self) -> int:
        """All that is there."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())

    def is_in_place(self, manifest: BundleManifest) -> bool:
        """Whether `out` is that bundle already."""
        if self._old.exists() and not self.out.exists():  # a pull that was killed between the renames
            self._old.rename(self.out)
        return all(_is_whole(self.out / file.name, file) for file in manifest.files)

    def prepare(self, manifest: BundleManifest) -> int:
        """Drop what is of another bundle, take over what `out` has already; how many bytes are there then. Raises
        UsageError where the disk has no room for the rest."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._drop_strangers({file.name for file in manifest.files})
        for file in manifest.files:
            path, before = self.directory / file.name, self.out / file.name
            path.parent.mkdir(exist_ok=True)
            if not self.has(file) and _is_whole(before, file):
                shutil.copyfile(before, path)
        kept = sum(min(self._size(file), file.size_bytes) for file in manifest.files)
        free = shutil.disk_usage(self.directory).free
        if free < manifest.size_bytes - kept:
            raise UsageError(
                f"{self.directory}: {manifest.size_bytes - kept:,} more bytes are needed and {free:,} are free;"
                f" make room, or name another place with --out"
            )
        return kept

    def has(self, file: BundleFile) -> bool:
        """Whether a file is whole; one that is not is removed."""
        path = self.directory / file.name
        if file in self._whole and path.exists():
            return True
        if _is_whole(path, file):
            self._whole.add(file)
            return True
        path.unlink(missing_ok=True)
        return False

    def part(self, file: BundleFile) -> PartialFile:
        """What there is of a file, open to take the rest."""
        return PartialFile(self.directory / file.name, file)

    def place(self, manifest: BundleManifest) -> None:
        """Check the whole, then let it be `out`. Raises Violation for a bundle that is not what it was said to be."""
        check_bundle(self.directory, manifest)
        if not self.out.exists():
            self.directory.rename(self.out)
            return
        shutil.rmtree(self._old, ignore_errors=True)
        self.out.rename(self._old)
        try:
            self.directory.rename(self.out)
        except OSError:
            self._old.rename(self.out)
            raise
        shutil.rmtree(self._old, ignore_errors=True)

    def _drop_strangers(self, names: set[str]) -> None:
        for path in list(self.directory.rglob("*")):
            if path.is_file() and path.relative_to(self.directory).as_posix().removesuffix(_PART) not in names:
                path.unlink()

    def _size(self, file: BundleFile) -> int:
        path = self.directory / file.name
        for candidate in (path, _part_of(path)):
            if candidate.exists():
                return candidate.stat().st_size
        return 0


class PartialFile:
    """One file on its way in; use as a context manager. What is on disk already counts."""

    def __init__(self, path: Path, file: BundleFile) -> None:
        self._path = path
        self._file = file
        self._digest = hashlib.sha256()
        self.num_bytes = 0
        self._out = _part_of(path).open("a+b", buffering=0)  # what is written is the system's, not in a buffer of ours
        self._out.seek(0)
        while data := self._out.read(1 << 20):
            self._add(data)
        if self.num_bytes > file.size_bytes:
            self._start_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._out.close()

    def write(self, data: bytes) -> None:
        """All of it, or OSError with as much of it as there was room for."""
        rest = memoryview(data)
        while rest:
            count = self._out.write(rest)
            self._add(rest[:count])
            rest = rest[count:]

    def finish(self) -> None:
        """Give the file its name. Raises CorruptFileError, and drops what came, unless it is what was promised."""
        if self.num_bytes != self._file.size_bytes or self._digest.digest() != self._file.sha256:
            self._start_anew()
            raise CorruptFileError(Reason.MALFORMED_FRAME, f"{self._file.name}: not the bytes its checksum promised")
        os.fsync(self._out.fileno())
        self._out.close()
        _part_of(self._path).replace(self._path)

    def _add(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self.num_bytes += len(data)

    def _start_anew(self) -> None:
        self._out.truncate(0)
        self._digest = hashlib.sha256()
        self.num_bytes = 0


def check_bundle(directory: Path, manifest: BundleManifest) -> None:
    """Raises Violation unless the files make the bundle that the manifest told of, whose drafter is in it."""
    try:
        bundle = find_bundle(directory)
        assert bundle is not None
        bundle.source(directory, DrafterOptions())
        told = (bundle.target_fingerprint, bundle.tokenizer_fingerprint, bundle.tap["fingerprint"])
        listed = {MANIFEST, *bundle.files} == {file.name for file in manifest.files}
        elsewhere = bundle.drafter not in {DRAFTER, *(family.name for family in FAMILIES if not family.needs_files)}
    except (UsageError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Violation(Reason.MALFORMED_FRAME, f"the server's bundle cannot be used: {error}") from error
    if told != (manifest.target_fingerprint, manifest.tokenizer_fingerprint, manifest.tap) or not listed:
        raise Violation(Reason.MALFORMED_FRAME, "the server's bundle is another one than its manifest told of")
    if elsewhere:
        raise Violation(Reason.MALFORMED_FRAME, f"the server's bundle has its drafter elsewhere: {bundle.drafter!r}")


def _is_whole(path: Path, file: BundleFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest() == file.sha256


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + _PART)
