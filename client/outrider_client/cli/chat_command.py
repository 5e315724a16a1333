"""The command `outrider chat`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from outrider_client.cli.chat.conversation import ChatConversation
from outrider_client.cli.chat.input import is_interactive, read_lines
from outrider_client.cli.interrupts import raise_on_interrupt
from outrider_client.cli.options import ClientOptions, with_models
from outrider_client.cli.pull import can_offer_pull, check_target, with_pull_offered
from outrider_client.core.config import PRIVACY_PANEL, ClientConfig
from outrider_client.display.messages import print_message
from outrider_proto.files import read_text


def chat_command(
    options: ClientOptions,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per event, and of an error.")] = False,
    system: Annotated[str | None, Option(help="System message: how the model is to answer.")] = None,
    private: Annotated[
        Path | None,
        Option(help="File whose text is added to the first message as private text.", rich_help_panel=PRIVACY_PANEL),
    ] = None,
    profile: Annotated[
        str | None,
        Option(help="Emulate a link of this profile (paper-4g, ...) to the server; /link can then cut and change it."),
    ] = None,
    history: Annotated[
        bool,
        Option(
            help="Keep the lines typed for the arrow keys in later chats, and the last chat for /load; no private text."
        ),
    ] = True,
) -> None:
    """Chat with the model. /help lists commands; <<private: ...>> stays here; Ctrl-C stops an answer, Ctrl-D leaves."""
    folder = None
    if history and is_interactive() and not as_json:
        from platformdirs import user_state_path

        folder = user_state_path("outrider")
    config = options.config()
    chat = _Chat(
        ChatConversation("" if private is None else read_text(private, "private"), system or ""),
        read_lines(None if folder is None else folder / "chat_history"),
        None if folder is None else folder / "last_chat.json",
        profile,
        as_json=as_json,
        asks=can_offer_pull(config) and not as_json,
    )
    if chat.asks:
        with_pull_offered(config, chat.run)
    else:
        chat.run(with_models(config))


@dataclass(frozen=True, slots=True)
class _Chat:
    """A chat before it has a server. `asks`: on a terminal, about what this device lacks."""

    conversation: ChatConversation
    lines: Iterable[str]
    autosave: Path | None
    profile: str | None
    as_json: bool
    asks: bool

    def run(self, config: ClientConfig) -> None:
        """Talk to the configuration's server, or one of the chat's own where there is none."""
        from outrider_client.cli.chat.link import chat_link
        from outrider_client.cli.chat.own_server import needs_own_server, own_server
        from outrider_client.cli.chat.repl import ChatRepl
        from outrider_client.client import Client
        from outrider_client.connection.emulated import link_profile

        raise_on_interrupt()
        if self.profile is not None:
            link_profile(self.profile)  # for its error, before a server is started
        with contextlib.ExitStack() as stack:
            config = replace(config, served_as=config.server)  # by which it is found again, whatever leads to it
            if needs_own_server(config):
                print_message(f"no server at {config.server}: starting one, for this chat alone")
                config = replace(config, server=stack.enter_context(own_server(config)))
            link = None if self.profile is None else stack.enter_context(chat_link(self.profile, config.server))
            reached = config
            if link is not None:
                reached = replace(
                    config, server=link.emulated.link.address, access=config.access.through(config.server)
                )
            client = stack.enter_context(Client(reached))
            if self.asks and config.mode != "offline":
                check_target(client, config)
            repl = ChatRepl(
                client,
                config,
                self.conversation,
                link,
                as_json=self.as_json,
                stays=is_interactive(),
                autosave=self.autosave,
            )
            if is_interactive() and not self.as_json:
                repl.greet()
            repl.run(self.lines)
