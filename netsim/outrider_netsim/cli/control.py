"""`outrider-netsim set`: change a running link from another terminal, over a Unix socket that only its user can open.

{folder of the user, 0700}/PID.sock <- ["delay=100ms", "cut=up"]    -> {"done": "..."} or {"error": "..."}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import ADJUSTMENTS, LinkOptions, adjusted_profile
from outrider_netsim.cli.terminal import console
from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import EngineError, ProfileError

if TYPE_CHECKING:
    from rich.console import Console

    from outrider_netsim.cli.link_controls import LinkControls
    from outrider_netsim.link import Link

SWITCHES = ("cut", "restore")
ANSWER_TIMEOUT_S = 10.0
ANSWER_BYTES = 1 << 16
NEED = "delay=, jitter=, loss=, rate=, queue=, in-order=, distribution=, profile=, cut or restore (cut=up for one way)"

app = typer.Typer()


@app.command("set")
def set_link(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...",
            help=f"What to change, as in the options of run: {NEED}. link=PID names one of several running links.",
        ),
    ] = None,
) -> None:
    """Change a link that `run` or `proxy` keeps open; without NAME=VALUE, say what is running.

    outrider-netsim set delay=100ms rate=5mbit/20mbit
    """
    changes = [word for word in words or [] if not word.startswith("link=")]
    wanted = [word.removeprefix("link=") for word in words or [] if word.startswith("link=")]
    remove_stale()
    links = {file.stem: file for file in sorted(_folder().glob("*.sock")) if not wanted or file.stem == wanted[-1]}
    running = {pid: answer for pid, file in links.items() if (answer := _asked(file, [])) is not None}
    if not running:
        raise EngineError(f"no link runs here{f' as {wanted[-1]}' if wanted else ''}: start one with run or proxy")
    if not changes:
        for pid, text in running.items():
            console.print(f"{pid}: {text}", soft_wrap=True, markup=False)
        return
    if len(running) > 1:
        raise ProfileError(f"{len(running)} links run: add link=PID, one of {', '.join(running)}")
    ((pid, _),) = running.items()
    console.print(_asked(links[pid], changes), soft_wrap=True, markup=False)


@contextlib.asynccontextmanager
async def controllable(controls: LinkControls, link: Link, said: Console) -> AsyncIterator[None]:
    """Let `set` change the link until the end of the block, where this system can."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            words = json.loads(await reader.readline())
            writer.write(json.dumps(_changed(controls, link, words)).encode())
            await writer.drain()
        writer.close()

    async with contextlib.AsyncExitStack() as undo:
        try:
            remove_stale()
            file = _folder() / f"{os.getpid()}.sock"
            file.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(answer, file)
            file.chmod(0o600)
        except (OSError, EngineError, NotImplementedError, AttributeError) as error:
            said.print(f"`set` cannot change this link: {error}", soft_wrap=True, markup=False)
        else:
            undo.callback(file.unlink, missing_ok=True)
            undo.callback(server.close)
        yield


def _changed(controls: LinkControls, link: Link, words: Sequence[str]) -> dict[str, str]:
    try:
        _change(controls, link, [str(word) for word in words])
    except (ProfileError, EngineError) as error:
        return {"error": str(error)}
    cut = f", cut {' and '.join(sorted(link.cut_ways))}" if link.is_cut else ""
    return {"done": f"{link.profile.name}, mean round trip {link.profile.round_trip_ms:.1f} ms; {link.engine}{cut}"}


def _change(controls: LinkControls, link: Link, words: Sequence[str]) -> None:
    """Apply all changes, or none."""
    from outrider_netsim.profiles.builtin import profile_named

    profile, adjustments, switches = link.profile, dict[str, str | bool](), list[tuple[str, tuple[Way, ...]]]()
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        if name in SWITCHES and (not equals or value in WAYS):
            switches.append((name, tuple(way for way in WAYS if value in ("", way))))
        elif name == "profile" and value:
            profile = profile_named(value)
        elif name == "in_order" and value in ("true", "false"):
            adjustments[name] = value == "true"
        elif name in ADJUSTMENTS and name != "in_order" and value:
            adjustments[name] = value
        else:
            raise ProfileError(f"{word!r}: need {NEED}")
    profile = adjusted_profile(profile, LinkOptions(**adjustments))  # type: ignore[arg-type]  # checked by its parsers
    if profile != link.profile:
        controls.set(profile)
    for switch, ways in switches:
        (controls.by_hand.cut if switch == "cut" else controls.by_hand.restore)(ways)


def _asked(file: Path, words: Sequence[str]) -> str | None:
    """Return what a link says to a request; None, and its socket removed, where it has ended."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(ANSWER_TIMEOUT_S)
        try:
            channel.connect(str(file))
        except (ConnectionRefusedError, FileNotFoundError):
            # Another process has the number of a killed one.
            file.unlink(missing_ok=True)
            return None
        try:
            channel.sendall(json.dumps(list(words)).encode() + b"\n")
            answer = json.loads(b"".join(iter(lambda: channel.recv(ANSWER_BYTES), b"")) or b"{}")
        except (OSError, ValueError) as error:
            raise EngineError(f"the link of process {file.stem} does not answer: {error}") from None
    if "error" in answer:
        raise ProfileError(answer["error"])
    return str(answer.get("done", ""))


def remove_stale() -> list[str]:
    """Remove and list the sockets of links that were killed. Raises EngineError as `set` does."""
    removed = []
    for file in _folder().glob("*.sock"):
        try:
            os.kill(int(file.stem), 0)
        except (ProcessLookupError, PermissionError):
            # A link's process is this user's.
            file.unlink(missing_ok=True)
            removed.append(f"removed {file}")
    return removed


def _folder() -> Path:
    """Return the folder of this user's sockets. Raises EngineError where others could write to it."""
    if not hasattr(socket, "AF_UNIX"):
        raise EngineError("this system has no Unix sockets")
    user = os.geteuid()
    runtime = Path(f"/run/user/{user}")
    parent = runtime if os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"outrider-netsim-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise EngineError(f"{folder} is not this user's alone: remove it")
    return folder
