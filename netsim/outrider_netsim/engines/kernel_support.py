"""Whether this machine's kernel has what the kernel engine needs, and what to do where it has not."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

MODULE = "sch_netem"
OTHER_ENGINE = "use --engine tun"


def kernel_support(root: Path = Path("/")) -> str | None:
    """Why the kernel engine cannot work on this machine, as far as files tell; None: it may. `root` is for tests."""
    if sys.platform != "linux":
        return f"{sys.platform} has no netem: use --engine proxy"
    if (root / "sys/module" / MODULE).exists():
        return None
    modules = root / "lib/modules" / platform.release()
    if not modules.is_dir():  # a container, say: whether the kernel can load netem shows when it is asked to
        return None
    builtin = modules / "modules.builtin"
    if builtin.exists() and f"/{MODULE}.ko" in builtin.read_text():
        return None
    if any(modules.rglob(f"{MODULE}.ko*")):
        return None
    return f"this kernel has no netem: {no_module(MODULE)}"


def no_module(name: str) -> str:
    """The remedy for a kernel without one of the modules."""
    return (
        f"load it (modprobe {name}); where the kernel {platform.release()} came without that module, install it "
        f"(Debian: linux-image-amd64 or linux-image-cloud-amd64, Ubuntu: linux-modules-extra-{platform.release()}) "
        f"or {OTHER_ENGINE}"
    )
