"""The kernel: Debian's cloud flavour, fetched with apt and unpacked below the cache folder, never installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vm.cache import cache_folder

META_PACKAGE = "linux-image-cloud-amd64"
MODULES = (
    "sch_netem",
    "sch_tbf",
    "sch_codel",
    "sch_plug",
    "veth",
)
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
    modules: tuple[Path, ...]  # in the order in which to load them


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
    for place, module in enumerate(_load_order(unpacked / "lib" / "modules")):
        shutil.copy(module, kept / f"{place:02d}-{module.name}")


def _load_order(modules: Path) -> list[Path]:
    """The files of MODULES, each after those it depends on. Read from the files: the package has no modules.dep."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = files[name]
        for needed in _dependencies(path):
            add(needed)
        if path not in order:
            order.append(path)

    for name in MODULES:
        add(name)
    return order


def _dependencies(module: Path) -> list[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def _kernel(folder: Path) -> Kernel:
    return Kernel(folder.name, folder / "vmlinuz", tuple(sorted(folder.glob("*.ko*"))))
