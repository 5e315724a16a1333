"""Check whether this machine can boot the guest, and name the command that would enable it."""

from __future__ import annotations

import platform
import shutil
import sys
from functools import cache

from vm.kernel_package import META_PACKAGE, cached_kernel, newest_package

TOOLS = {
    "qemu-system-x86_64": "apt-get install qemu-system-x86",
    "busybox": "apt-get install busybox-static",
    "apt-get": "run on Debian",
    "dpkg-deb": "run on Debian",
    "ldd": "run on a glibc system",
}


@cache
def missing() -> str | None:
    """Why no guest can be booted here, with the remedy; None when one can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"{sys.platform} on {platform.machine()}: the guest takes this machine's Python, which must be Linux x86_64"
        )
    for tool, remedy in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed: {remedy}"
    if cached_kernel() is None and newest_package() is None:
        return f"apt knows no {META_PACKAGE}: run on Debian, after apt-get update"
    return None
