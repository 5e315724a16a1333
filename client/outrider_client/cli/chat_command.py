"""`outrider chat`."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from outrider_client.cli.chat.conversation import Conversation
from outrider_client.cli.chat.input import lines
from outrider_client.cli.chat.link import ChatLink
from outrider_client.cli.chat.repl import Talk
from outrider_client.cli.options import client_config
from outrider_client.client import Client
from outrider_client.privacy.prompt_input import read_private


def chat(
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    private: Annotated[Path | None, Option(help="A file whose text goes along, and never leaves this device.")] = None,
    profile: Annotated[
        str | None, Option(help="Put an emulated link before the server, which /link can cut: paper-4g, ...")
    ] = None,
    history: Annotated[bool, Option(help="Remember what was said, private text left out, for the arrow keys.")] = True,
    **options: Any,  # the shared ones
) -> None:
    """Talk. /help says what can be asked; <<...>> is private; Ctrl-C ends an answer, Ctrl-D the conversation."""
    config = client_config(options)
    conversation = Conversation("" if private is None else read_private(private))
    with contextlib.ExitStack() as stack:
        link = None if profile is None else stack.enter_context(ChatLink(profile, config.server))
        reached = config
        if link is not None:
            reached = replace(config, server=link.address, access=config.access.through(config.server))
        client = stack.enter_context(Client(reached))
        Talk(client, config, conversation, link, as_json=as_json).run(lines(_history() if history else None))


def _history() -> Path:
    from platformdirs import user_state_path

    return user_state_path("outrider") / "chat_history"
