"""Check for the kernel modules that the kernel engine needs, and say how to get them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

MODULE = "sch_netem"
OTHER_ENGINE = "use --engine tun"


def kernel_support(root: Path = Path("/")) -> str | None:
    """Return why the kernel engine cannot work here, as far as files tell, or None."""
    if sys.platform != "linux":
        return f"{sys.platform} has no netem: use --engine proxy"
    if (root / "sys/module" / MODULE).exists():
        return None
    modules = root / "lib/modules" / platform.release()
    # No module folder, as in containers: only trying shows whether the kernel can load netem.
    if not modules.is_dir():
        return None
    builtin = modules / "modules.builtin"
    if builtin.exists() and f"/{MODULE}.ko" in builtin.read_text():
        return None
    if any(modules.rglob(f"{MODULE}.ko*")):
        return None
    return f"this kernel has no netem: {no_module(MODULE)}"


def no_module(name: str) -> str:
    """Return the remedy for a kernel without module `name`."""
    return (
        f"load it (modprobe {name}); where the kernel {platform.release()} came without that module, install it "
        f"(Debian: linux-image-amd64 or linux-image-cloud-amd64, Ubuntu: linux-modules-extra-{platform.release()}) "
        f"or {OTHER_ENGINE}"
    )
