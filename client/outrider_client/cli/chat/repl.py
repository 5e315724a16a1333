"""The chat's loop: reads a line, then answers it or runs its command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outrider_client.cli.chat.commands import LEAVING, AnswerSettings, SlashCommand, parse_command
from outrider_client.cli.chat.conversation import ChatConversation
from outrider_client.cli.chat.information import greeting, help_lines, model_lines, statistics_table
from outrider_client.cli.chat.link import ChatLink
from outrider_client.client import Client
from outrider_client.core.config import ClientConfig
from outrider_client.core.prompt import PromptMessage
from outrider_client.core.statistics import Statistics
from outrider_client.display.display import cut_remark, display_for, show_answer
from outrider_client.display.messages import explained, print_message, report_error
from outrider_client.privacy.fences import private_kinds
from outrider_proto.errors import LinkError, OutriderError, Reason, Refusal, UsageError
from outrider_proto.files import read_text, write_atomically
from outrider_proto.terminal.console import TerminalConsole


class ChatRepl:
    """One conversation with one client. `link` is the emulated link to the server, if there is one.

    `stays`: a first answer that fails does not end the chat, since somebody is there to ask again. `autosave` is a file
    for the conversation as it is after each answer, unless it holds private text.
    """

    def __init__(
        self,
        client: Client,
        config: ClientConfig,
        conversation: ChatConversation,
        link: ChatLink | None = None,
        *,
        as_json: bool = False,
        stays: bool = False,
        autosave: Path | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._settings = AnswerSettings(config)
        self._as_json = as_json
        self._stays = stays
        self._autosave = autosave
        self._failed: PromptMessage | None = None  # the last question, where it got no answer
        self._conversation = conversation
        self._statistics: list[Statistics] = []
        self._console = TerminalConsole(highlight=False)
        self._link = link

    def run(self, lines: Iterable[str]) -> None:
        """Report answers that fail and go on; raise the error of a first one unless the chat stays."""
        for line in lines:
            try:
                slash = parse_command(line)
                if slash is not None and slash.name in LEAVING:
                    return
                if slash is None:
                    self._conversation.add_question(line.removeprefix("/") if line.startswith("//") else line)
                    self._answer()
                else:
                    self._execute(slash)
            except KeyboardInterrupt:
                # It came a moment too late to stop an answer, or stops a command. The conversation goes on.
                print_message("stopped")
            except OutriderError as error:
                reported = explained(error, self._config.server)
                if not self._stays and not self._statistics and not line.startswith("/"):
                    raise reported from error
                report_error(reported, as_json=self._as_json, hint=_way_out(error))

    def greet(self) -> None:
        self._console.print(greeting(self._client, self._config))

    def _answer(self) -> None:
        """Answer the conversation's last message, a question."""
        self._failed = None
        self._print_private()
        settings = self._settings
        display = display_for(self._client, as_json=self._as_json, markdown=settings.view == "markdown")
        try:
            finished = show_answer(self._client, self._conversation.prompt, display, **settings.overrides)
            self._statistics.append(finished.statistics)
            if not self._as_json and (cut := cut_remark(finished, settings.config.max_new_tokens)):
                more = "; ask it to go on, or /set max-tokens" if finished.reason == "limit" else ""
                print_message(f"{cut}{more}")
            if finished.reason == "unverified" and settings.config.mode != "offline":
                print_message("the link did not come back: the end of this answer is unverified; /retry asks again")
        except KeyboardInterrupt:
            print_message("stopped")
        except OutriderError:
            # Unlike a stopped answer, a failed one leaves no trace: the next prompt would have two questions in a row.
            self._failed = self._conversation.messages.pop()
            raise
        private = self._conversation.is_private and settings.config.privacy == "local"
        self._conversation.add_answer(display.written.text, private=private)
        self._keep()

    def _keep(self) -> None:
        if self._autosave is None or self._conversation.is_private:
            return
        try:
            self._autosave.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._autosave, self._conversation.to_json() + "\n", mode=0o600)
        except OSError as error:
            print_message(f"{self._autosave}: this chat is not kept ({error.strerror})")
            self._autosave = None

    def _execute(self, slash: SlashCommand) -> None:
        match slash.name, slash.argument:
            case "help", _:
                self._print("\n".join(help_lines()))
            case "stats", _:
                self._console.print(statistics_table(self._statistics) if self._statistics else "no answer yet")
            case ("mode" | "privacy" | "view") as name, argument:
                self._print(self._settings.choose(name, argument))
            case "set", argument:
                self._print(self._settings.set_number(argument))
            case "model", _:
                self._print(model_lines(self._client, self._config))
            case "system", argument:
                self._system(argument)
            case "link", argument:
                self._show_link(argument)
            case "private", argument:
                self._conversation.attach(read_text(_path(slash), "private"))
            case "history", _:
                self._print(self._conversation.text() or "nothing yet")
            case "save", _:
                self._save(slash)
            case "load", _:
                self._load(slash)
            case "retry", _:
                self._retry()
            case "undo", _:
                if self._failed is None:  # one that failed has left the conversation already
                    self._conversation.undo()
                self._failed = None
                self._print("the last question and its answer are dropped")
            case "clear", _:
                self._failed = None
                self._conversation.clear()
                self._client.begin_conversation()

    def _print(self, text: str) -> None:
        if text:
            self._console.print(text, markup=False)

    def _system(self, argument: str) -> None:
        if not argument:
            return self._print(self._conversation.system_text or "no system message")
        return self._conversation.set_system("" if argument == "-" else argument)

    def _retry(self) -> None:
        messages = self._conversation.messages
        if self._failed is not None:
            messages.append(self._failed)
            return self._answer()
        if not messages:
            raise UsageError("/retry: there is no question yet")
        before = messages.pop()
        try:
            self._answer()
        except OutriderError:
            messages += [*filter(None, [self._failed]), before]  # as they were
            self._failed = None
            raise

    def _print_private(self) -> None:
        """Tell what of the newest message was taken as private, and what follows for the answer."""
        if kinds := private_kinds(self._conversation.messages[-1:]):
            print_message(f"private: {', '.join(kinds)}")
        if self._conversation.is_private and self._settings.config.privacy == "local":
            way_out = "/system -" if self._conversation.has_private_system else "/clear"
            print_message(f"this conversation holds private text: answered on this device alone, until {way_out}")

    def _show_link(self, argument: str) -> None:
        if argument and self._link is None:
            raise UsageError("/link: this link is a real one; start the chat with --profile NAME to have one to change")
        if self._link is not None and argument:
            self._link.change(argument)
        rtt_ms = self._statistics[-1].rtt_ms if self._statistics else 0.0
        self._print(f"{self._client.link_state.value}, R {rtt_ms:.0f} ms")
        if self._link is not None:
            self._print(self._link.emulated.summary)

    def _save(self, slash: SlashCommand) -> None:
        path = _path(SlashCommand(slash.name, slash.argument.removesuffix("!").rstrip()))
        text = self._conversation.to_json() if path.suffix == ".json" else self._conversation.text()
        try:
            if path.exists() and not slash.argument.endswith("!"):
                raise UsageError(f"{path} exists: /save {slash.argument}! replaces it")
            write_atomically(path, text + "\n", mode=0o600)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
        self._print(f"saved to {path}")

    def _load(self, slash: SlashCommand) -> None:
        path = self._autosave if self._autosave is not None and not slash.argument else _path(slash)
        self._conversation.load_json(read_text(path))
        self._failed = None
        self._client.begin_conversation()
        self._print(f"{len(self._conversation.messages)} messages; /history shows them")


def _path(slash: SlashCommand) -> Path:
    """The file that a command names; ~ is the user's home. Raises UsageError."""
    if not slash.argument:
        raise UsageError(f"/{slash.name} needs the name of a file")
    try:
        return Path(slash.argument).expanduser()
    except RuntimeError as error:  # there is no such user
        raise UsageError(f"/{slash.name} {slash.argument}: {error}") from error


def _way_out(error: OutriderError) -> str:
    match error:
        case Refusal(reason=Reason.CONTEXT_FULL):
            return "; /clear starts a new conversation"
        case LinkError():
            return "; /retry asks again"
        case _:
            return ""
