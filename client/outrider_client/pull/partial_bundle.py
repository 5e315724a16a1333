"""A bundle while it is downloaded: collected beside its destination, checked file by file, put in place as a whole.

OUT           the complete bundle
OUT.part/     the next one so far: finished files under their names, and NAME.part
OUT.part.old/ the previous bundle, between the two renames that replace it
OUT.lock      held by the process that fills OUT.part
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from outrider_drafters.checkpoints.bundle import MANIFEST, find_bundle
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.load import open_drafter
from outrider_drafters.trials.trial import OutOfBounds, Stopped, Trial
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import Reason, UsageError, Violation

_PART = ".part"
FOR_LOADING = ("outrider_client.models.local_models", "transformers")  # what `load_once` needs


class CorruptFileError(Violation):
    """A file does not match its digest. Its bytes were deleted."""


class PartialBundle:
    """The bundle for `out`. Raises UsageError for an `out` that holds something else."""

    def __init__(self, out: Path) -> None:
        self.out = out.expanduser().resolve()
        self.directory = self.out.with_name(self.out.name + _PART)
        self._old = self.out.with_name(self.directory.name + ".old")
        self._whole: set[BundleFile] = set()  # checked already
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{out}: is a file; name a directory")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / MANIFEST).is_file():
            raise UsageError(f"{out}: holds other files than an edge bundle; name another directory")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises UsageError while another process does."""
        path = self.out.with_name(self.out.name + ".lock")
        with self.disk_errors_explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = FileLock(path).acquire(blocking=False)
            except Timeout:
                raise UsageError(f"{self.out}: another pull into it is in progress; wait for it to end") from None
        with lock:
            try:
                yield
            finally:
                # While it is held, or two others could hold two files of this name. Windows refuses that; there
                # filelock itself removes the file.
                with suppress(PermissionError):
                    path.unlink(missing_ok=True)

    @contextmanager
    def disk_errors_explained(self) -> Iterator[None]:
        """Turn disk errors into UsageErrors that say what is kept."""
        try:
            yield
        except BrokenPipeError:
            raise  # no disk: whoever reads the progress has gone
        except OSError as error:
            remedy = f"{self.num_bytes:,} bytes are kept in {self.directory}: make room and pull again"
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                remedy = "allow writing there, or name another place with --out"
            raise UsageError(f"{error.filename or self.directory}: {error.strerror}; {remedy}") from error

    @property
    def num_bytes(self) -> int:
        """Size of everything downloaded so far."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())

    def is_in_place(self, manifest: BundleManifest) -> bool:
        """True if `out` is that bundle already."""
        # A pull that was killed between the two renames in `place` left no `out`: undo the first one.
        if self._old.exists() and not self.out.exists():
            self._old.rename(self.out)
        return all(_is_whole(self.out / file.name, file) for file in manifest.files)

    def prepare(self, manifest: BundleManifest) -> int:
        """Drop other files, copy those that `out` has; return the bytes here. Raises UsageError for a full disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._drop_other_files({file.name for file in manifest.files})
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
        """True if a file is complete and correct; delete one that is not."""
        path = self.directory / file.name
        if file in self._whole and path.exists():
            return True
        if _is_whole(path, file):
            self._whole.add(file)
            return True
        path.unlink(missing_ok=True)
        return False

    def place(self, manifest: BundleManifest, trial: Trial) -> None:
        """Check the bundle as a whole, load it in a trial, then rename it to `out`.

        Raises Violation if it differs from the manifest, or cannot be loaded; UsageError if it could not be tried.
        """
        try:
            check_bundle(self.directory, manifest)
            trial.run(f"{__name__}:load_once", str(self.directory))
        except (OutOfBounds, Stopped) as error:
            # A device that is slow or short of memory is as likely the reason as the bundle.
            raise UsageError(
                f"{self.directory}: cannot be loaded on this device within bounds: {error}; its files are kept: pull"
                " again when less runs beside it, or a smaller bundle (--weights int4)"
            ) from error
        except UsageError as error:
            raise Violation(Reason.MALFORMED_FRAME, f"the server's bundle cannot be used: {error}") from error
        if not self.out.exists():
            self.directory.rename(self.out)
            return
        # A directory cannot be renamed onto one that holds files, so the old bundle goes aside first. A crash between
        # the two renames is undone by `is_in_place`.
        shutil.rmtree(self._old, ignore_errors=True)
        self.out.rename(self._old)
        try:
            self.directory.rename(self.out)
        except OSError:
            self._old.rename(self.out)
            raise
        shutil.rmtree(self._old, ignore_errors=True)

    def _drop_other_files(self, names: set[str]) -> None:
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
    """A file while it is downloaded, as a context manager. Bytes that are on disk already count."""

    def __init__(self, path: Path, file: BundleFile) -> None:
        self._path, self._part = path, _part_of(path)
        self._file = file
        self._out = self._part.open("ab", buffering=0)  # unbuffered: bytes outlive this process
        if self.num_bytes > file.size_bytes:
            self._out.truncate(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._out.close()

    @property
    def num_bytes(self) -> int:
        return self._part.stat().st_size

    def write(self, data: bytes) -> None:
        """Write all of it. On a full disk raise OSError, keeping as much as there was room for."""
        rest = memoryview(data)
        while rest:  # an unbuffered write may take only a part
            rest = rest[self._out.write(rest) :]

    def finish(self) -> None:
        """Check the file and give it its name. If its digest differs, delete its bytes and raise CorruptFileError."""
        if not _is_whole(self._part, self._file):
            self._out.truncate(0)
            raise CorruptFileError(Reason.MALFORMED_FRAME, f"{self._file.name}: its bytes do not match its checksum")
        os.fsync(self._out.fileno())
        self._out.close()
        self._part.replace(self._path)


def check_bundle(directory: Path, manifest: BundleManifest) -> None:
    """Raise UsageError for files that are no bundle with its drafter inside, Violation for one of another manifest."""
    bundle = find_bundle(directory)
    assert bundle is not None
    open_drafter(DrafterSource(str(directory)))
    fingerprints = (bundle.target_fingerprint, bundle.tokenizer_fingerprint, bundle.tap["fingerprint"])
    listed = {MANIFEST, *bundle.files} == {file.name for file in manifest.files}
    if fingerprints != (manifest.target_fingerprint, manifest.tokenizer_fingerprint, manifest.tap) or not listed:
        raise Violation(Reason.MALFORMED_FRAME, "the server's bundle is not the one in its manifest")


def load_once(directory: str) -> None:
    """Load a bundle as the commands do that use it. Raises UsageError."""
    from outrider_client.core.config import ClientConfig
    from outrider_client.models.local_models import LocalModels

    models = LocalModels.load(ClientConfig(target=directory))
    models.prepare()
    if models.load_text is not None:
        models.text.try_out()


def _is_whole(path: Path, file: BundleFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest() == file.sha256


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + _PART)
