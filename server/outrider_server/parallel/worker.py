"""A process that holds a share of the target and runs every pass that rank 0 announces.

Started by ranks.py with the number of a socket; ends when that closes, whatever it is doing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

_Inbox = SimpleQueue[Any]  # Any: the parameters of a shard, then passes, None at the end


def main() -> None:
    # A terminal signals the whole process group, but rank 0 still needs this process while it drains.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leader: Connection = Connection(int(sys.argv[1]))
    inbox: _Inbox = SimpleQueue()
    threading.Thread(target=_listen, args=(leader, inbox), name="outrider orders", daemon=True).start()
    try:
        _follow(leader, inbox)
    except Exception as error:
        with suppress(OSError):
            leader.send_bytes(f"{type(error).__name__}: {error}".encode())
        # Not sys.exit(): one of torch's threads may be stuck in a collective, and would keep the process alive.
        os._exit(1)


def _listen(leader: Connection, inbox: _Inbox) -> None:
    try:
        while (message := leader.recv()) is not None:
            inbox.put(message)
    except (EOFError, OSError):
        os._exit(1)  # rank 0 is gone
    inbox.put(None)


def _follow(leader: Connection, inbox: _Inbox) -> None:
    import torch

    import outrider_drafters  # noqa: F401 - before transformers, so that torchao says nothing
    from outrider_server.engine.attention import IMPLEMENTATION
    from outrider_server.engine.compatibility import trial
    from outrider_server.parallel.gathered_attention import WorkerAttention
    from outrider_server.parallel.ranks import LOADED, READY
    from outrider_server.parallel.shard import Shard, leave, load_shard

    leader.send_bytes(READY)
    shard = Shard(**inbox.get())
    model = load_shard(shard)
    leader.send_bytes(LOADED)
    slots, implementation = WorkerAttention(), IMPLEMENTATION
    with torch.inference_mode():
        while (message := inbox.get()) is not None:
            on_slots, checking, arguments = message
            wanted = IMPLEMENTATION if on_slots else "eager"
            if wanted != implementation:
                model.set_attn_implementation(wanted)
                implementation = wanted
            rows = {name: torch.from_numpy(array).to(shard.own_device) for name, array in arguments.items()}
            with nullcontext() if checking is None else trial(model, *checking):
                model(**rows, use_cache=False, **({"slots": slots} if on_slots else {}))
    leave()


if __name__ == "__main__":
    main()
