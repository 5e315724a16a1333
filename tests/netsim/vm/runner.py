"""Runs in the guest: calls the `main` of each ordered script, and sends what it returned to the second serial port.

Each call is a process of its own, forked after the imports that all need, and with the guest's chance seeded anew.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import runpy
import struct
import time
import traceback
import zlib
from pathlib import Path

import guest_kernel  # noqa: F401 - with what it imports, for every process that is forked

ORDERS = Path(__file__).with_name("orders.json")
RESULT_PORT = Path("/dev/ttyS1")
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207  # include/uapi/linux/random.h


def main() -> None:
    orders = json.loads(ORDERS.read_text())
    for call in orders["calls"]:
        child = os.fork()
        if child == 0:
            send(answer(call, orders["seed"]))
            os._exit(0)  # whatever threads the script has left
        os.waitpid(child, 0)


def answer(call: dict[str, object], seed: int) -> dict[str, object]:
    """`{"result": ...}`, or `{"error": ...}` with the traceback when the script failed."""
    try:
        stir(seed)
        result = runpy.run_path(call["script"])["main"](call["arguments"])
        return {"result": result, "uptime_s": time.monotonic()}
    except BaseException:  # also SystemExit: whatever ends the script is its answer
        return {"error": traceback.format_exc()}


def send(answer: dict[str, object]) -> None:
    """Send a line. It is compressed: the guest needs its processor for every byte of a serial port."""
    line = base64.b64encode(zlib.compress(json.dumps(answer).encode())) + b"\n"
    with RESULT_PORT.open("ab", buffering=0) as port:
        while line:
            line = line[port.write(line) :]


def stir(seed: int) -> None:
    """Seed the kernel's random generator; nothing else differs from boot to boot."""
    entropy = hashlib.sha256(str(seed).encode()).digest()
    with open("/dev/random", "wb") as pool:
        fcntl.ioctl(pool, RNDADDENTROPY, struct.pack(f"ii{len(entropy)}s", 8 * len(entropy), len(entropy), entropy))
        fcntl.ioctl(pool, RNDRESEEDCRNG)


if __name__ == "__main__":
    main()
