"""The guest's file system: kernel modules, busybox, Python, the room under test, the script and its arguments."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from vm.cpio import Entry, archive
from vm.interpreter import INTERPRETER, SITE, compiled, interpreter_entries
from vm.kernel_package import REPOSITORY, Kernel

HERE = Path(__file__).parent
NETSIM = REPOSITORY / "netsim" / "outrider_netsim"
PROTO = REPOSITORY / "proto" / "outrider_proto"  # whose errors netsim's are
GUEST_FOLDER = "/guest"


def image(kernel: Kernel, arguments: dict[str, Any], seed: int) -> bytes:  # Any: JSON
    """The initramfs in which `/init` runs the script; `seed` decides the guest's chance."""
    scripts = [Entry(f"{GUEST_FOLDER}/{name}", (HERE / name).read_bytes()) for name in ("runner.py", "script.py")]
    order = json.dumps({"seed": seed, "arguments": arguments}).encode()
    return _base(kernel) + archive([*scripts, Entry(f"{GUEST_FOLDER}/order.json", order), _init()])


@cache
def _base(kernel: Kernel) -> bytes:
    """What two boots have in common."""
    busybox = Path(os.path.realpath(str(shutil.which("busybox"))))
    face = NETSIM / "__init__.pyi"  # read by lazy_loader at run time
    return archive(
        [
            Entry("/bin/busybox", busybox.read_bytes(), executable=True),
            *(Entry(f"/modules/{path.name}", path.read_bytes()) for path in kernel.modules),
            *(Entry(folder, None) for folder in ("/dev", "/proc", "/sys", "/tmp", "/run")),
            Entry("/etc/hosts", b"127.0.0.1 localhost\n"),
            Entry("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\n"),
            *interpreter_entries(),
            Entry(f"{SITE}/{face.relative_to(NETSIM.parent)}", face.read_bytes()),
            *(entry for room in (NETSIM, PROTO) for path in room.rglob("*.py") for entry in _module(path, room)),
        ]
    )


def _module(path: Path, room: Path) -> list[Entry]:
    """Source and bytecode: tracebacks into our own code show lines."""
    place = f"{SITE}/{path.relative_to(room.parent)}"
    return [Entry(place, path.read_bytes()), Entry(cache_from_source(place), compiled(path, place))]


def _init() -> Entry:
    text = (HERE / "init.sh").read_text()
    for name, value in {"@PYTHON@": INTERPRETER, "@SITE@": SITE, "@GUEST@": GUEST_FOLDER}.items():
        text = text.replace(name, value)
    return Entry("/init", text.encode(), executable=True)
