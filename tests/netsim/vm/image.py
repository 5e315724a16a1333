"""The guest's file system: a large archive that is cached by its inputs, and a small one made for every run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from vm.cache import REPOSITORY, cache_folder
from vm.cpio import Entry, archive
from vm.interpreter import INTERPRETER, SITE, compiled, input_files, interpreter_entries
from vm.kernel_package import Kernel

HERE = Path(__file__).parent
NETSIM = REPOSITORY / "netsim" / "outrider_netsim"
GUEST_FOLDER = "/guest"


@dataclass(frozen=True, slots=True)
class GuestOrder:
    """A script whose `main` the guest calls with `arguments`."""

    script: Path
    arguments: dict[str, Any]  # Any: JSON, and the script knows what is in it


def image(kernel: Kernel, orders: Sequence[GuestOrder], seed: int) -> bytes:
    """The initramfs in which `/init` runs `orders`; `seed` decides the guest's chance."""
    return _base(kernel) + archive(_overlay(orders, seed))


def _overlay(orders: Sequence[GuestOrder], seed: int) -> list[Entry]:
    """What changes from run to run: the room under test, the scripts, the arguments, the seed."""
    calls = [{"script": f"{GUEST_FOLDER}/{order.script.name}", "arguments": order.arguments} for order in orders]
    scripts = {path.name: path for path in (*HERE.glob("guest_*.py"), HERE / "runner.py")}
    entries = [Entry(f"{GUEST_FOLDER}/{name}", path.read_bytes()) for name, path in scripts.items()]
    text = json.dumps({"seed": seed, "calls": calls})
    return [*entries, *_netsim(), Entry(f"{GUEST_FOLDER}/orders.json", text.encode()), _init()]


@cache
def _netsim() -> list[Entry]:
    """The room under test."""
    face = NETSIM / "__init__.pyi"  # read by lazy_loader at run time
    entries = [Entry(f"{SITE}/{face.relative_to(NETSIM.parent)}", face.read_bytes())]
    for path in NETSIM.rglob("*.py"):
        entries += _module(f"{SITE}/{path.relative_to(NETSIM.parent)}", path)
    return entries


def _module(place: str, path: Path) -> list[Entry]:
    """Source and bytecode: tracebacks into our own code show lines."""
    return [Entry(place, path.read_bytes()), Entry(cache_from_source(place), compiled(path, place))]


def _init() -> Entry:
    text = (HERE / "init.sh").read_text()
    for name, value in {"@PYTHON@": INTERPRETER, "@SITE@": SITE, "@GUEST@": GUEST_FOLDER}.items():
        text = text.replace(name, value)
    return Entry("/init", text.encode(), executable=True)


def _base(kernel: Kernel) -> bytes:
    """The cached archive of kernel modules, busybox and Python; older ones are removed."""
    path = cache_folder() / f"base-{_fingerprint(kernel)}.cpio"
    with contextlib.suppress(FileNotFoundError):  # also where another run has just removed it
        return path.read_bytes()
    for old in cache_folder().glob("base-*.cpio"):
        old.unlink(missing_ok=True)
    made = archive(_base_entries(kernel))
    with tempfile.NamedTemporaryFile(dir=cache_folder(), delete=False) as file:
        file.write(made)
    Path(file.name).replace(path)
    return made


@cache
def _fingerprint(kernel: Kernel) -> str:
    """Changes with the kernel, with any file of the interpreter or its packages, and with the code that packs them."""
    packers = [HERE / name for name in ("image.py", "interpreter.py", "cpio.py")]
    inputs = [*kernel.modules, _busybox(), *input_files(), *packers]
    stamps = [f"{path} {(status := path.stat()).st_size} {status.st_mtime_ns}" for path in sorted(inputs)]
    return hashlib.sha256("\n".join([kernel.name, *stamps]).encode()).hexdigest()[:16]


def _base_entries(kernel: Kernel) -> list[Entry]:
    return [
        Entry("/bin/busybox", _busybox().read_bytes(), executable=True),
        *(Entry(f"/modules/{path.name}", path.read_bytes()) for path in kernel.modules),
        *(Entry(folder, None) for folder in ("/dev", "/proc", "/sys", "/tmp", "/run")),
        Entry("/etc/hosts", b"127.0.0.1 localhost\n"),
        Entry("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\n"),
        *interpreter_entries(),
    ]


def _busybox() -> Path:
    return Path(os.path.realpath(str(shutil.which("busybox"))))
