"""The kernel: Debian's cloud flavour, fetched with apt and unpacked below the cache folder, never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
META_PACKAGE = "linux-image-cloud-amd64"
MODULES = "sch_netem", "sch_tbf", "sch_codel", "sch_plug", "veth"  # none of them needs another
WITH_MODULES = "+".join(("", *MODULES))  # ends a cached folder's name, so that one made with fewer is not taken
DOWNLOAD_TIMEOUT_S = 200.0
APT_OPTIONS = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")


class KernelUnavailableError(RuntimeError):
    """apt cannot give the kernel: it does not know the package, or there is no network."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked package; `name` is the package's, with the release in it."""

    name: str
    image: Path
    modules: tuple[Path, ...]


def debian_kernel() -> Kernel:
    """The kernel in the cache (delete the folder to get a newer one), else the newest that apt knows.

    Raises KernelUnavailableError.
    """
    if (kernel := cached_kernel()) is not None:
        return kernel
    if (package := newest_package()) is None:
        raise KernelUnavailableError(f"apt knows no {META_PACKAGE}: run apt-get update")
    _fetch(package)
    return _kernel(cache_folder() / (package + WITH_MODULES))


def cached_kernel() -> Kernel | None:
    folders = sorted(cache_folder().glob(f"linux-image-*{WITH_MODULES}"))
    return _kernel(folders[-1]) if folders else None


def newest_package() -> str | None:
    """The real package behind the meta package, such as `linux-image-6.1.0-1-cloud-amd64`."""
    if shutil.which("apt-cache") is None:
        return None
    found = subprocess.run(["apt-cache", "depends", META_PACKAGE], capture_output=True, text=True, check=False)
    names = re.findall(r"Depends: (linux-image-\d\S+)", found.stdout)
    return names[0] if names else None


def _fetch(package: str) -> None:
    """Download and unpack beside the cache's entry, then move it there whole: two runs at once do not meet."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        folder = Path(temporary)
        _download(package, folder)
        (archive,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder / "all"], check=True)
        _keep_needed(folder / "all", folder / "kept")
        target = cache_folder() / (package + WITH_MODULES)
        if not target.exists():
            (folder / "kept").rename(target)


def _download(package: str, folder: Path) -> None:
    command = ["apt-get", *APT_OPTIONS, "download", package]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise KernelUnavailableError(f"{package}: not downloaded in {DOWNLOAD_TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        raise KernelUnavailableError(f"apt-get download {package}: {error.stderr.strip()}") from None


def _keep_needed(unpacked: Path, kept: Path) -> None:
    kept.mkdir()
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    shutil.copy(image, kept / "vmlinuz")
    for name in MODULES:
        (module,) = unpacked.rglob(f"{name}.ko*")
        shutil.copy(module, kept)


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/outrider-netsim-vm` where that is set, else `.cache/netsim-vm` here; made if need be."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = Path(home) / "outrider-netsim-vm" if home else REPOSITORY / ".cache" / "netsim-vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _kernel(folder: Path) -> Kernel:
    return Kernel(folder.name, folder / "vmlinuz", tuple(sorted(folder.glob("*.ko*"))))
