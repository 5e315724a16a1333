"""The chat's loop: reads a line, then answers it or runs its command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, cast, get_args

from rich.console import Console
from rich.table import Table

from outrider_client.cli.chat.commands import COMMANDS, SlashCommand, parse_command
from outrider_client.cli.chat.conversation import ChatConversation
from outrider_client.cli.chat.link import ChatLink
from outrider_client.client import Client
from outrider_client.core.config import ClientConfig, Mode, Privacy
from outrider_client.core.prompt import PromptMessage
from outrider_client.core.statistics import Statistics
from outrider_client.display.display import cut_remark, display_for, show_answer
from outrider_client.display.messages import print_message, printable
from outrider_client.display.status_line import format_bytes
from outrider_client.privacy.fences import private_kinds, read_private_file
from outrider_proto.errors import LinkError, OutriderError, Reason, Refusal, UsageError
from outrider_proto.files import write_atomically

View = Literal["markdown", "origins"]


class ChatRepl:
    """One conversation with one client. `link` is the emulated link to the server, if there is one.

    `stays`: a first answer that fails does not end the chat, since somebody is there to ask again.
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
    ) -> None:
        self._client = client
        self._mode: Mode = config.mode
        self._privacy: Privacy = config.privacy
        self._max_new_tokens = config.max_new_tokens
        self._view: View = "markdown"
        self._as_json = as_json
        self._stays = stays
        self._failed: PromptMessage | None = None  # the last question, where it got no answer
        self._conversation = conversation
        self._statistics: list[Statistics] = []
        self._console = Console(highlight=False)
        self._link = link

    def run(self, lines: Iterable[str]) -> None:
        """Report answers that fail and go on; raise the error of a first one unless the chat stays."""
        for line in lines:
            try:
                slash = parse_command(line)
                if slash == SlashCommand("quit"):
                    return
                if slash is None:
                    self._conversation.add_question(line.removeprefix("/") if line.startswith("//") else line)
                    self._answer()
                else:
                    self._execute(slash)
            except OutriderError as error:
                if not self._stays and not self._statistics and not line.startswith("/"):
                    raise
                print_message(f"{error}{_way_out(error)}")

    def _answer(self) -> None:
        """Answer the conversation's last message, a question."""
        self._failed = None
        self._print_private()
        display = display_for(self._client, as_json=self._as_json, markdown=self._view == "markdown")
        try:
            finished = show_answer(
                self._client, self._conversation.messages, display, mode=self._mode, privacy=self._privacy
            )
            self._statistics.append(finished.statistics)
            if not self._as_json and (cut := cut_remark(finished, self._max_new_tokens)):
                print_message(cut)
            if finished.reason == "unverified" and self._mode != "offline":
                print_message("the link did not come back: the end of this answer is unverified; /retry asks again")
        except KeyboardInterrupt:
            print_message("stopped")
        except OutriderError:
            # Unlike a stopped answer, a failed one leaves no trace: the next prompt would have two questions in a row.
            self._failed = self._conversation.remove_last()
            raise
        private = self._conversation.is_private and self._privacy == "local"
        self._conversation.add_answer(display.written.text, private=private)

    def _execute(self, slash: SlashCommand) -> None:
        match slash.name, slash.argument:
            case "help", _:
                self._help()
            case "stats", _:
                self._console.print(statistics_table(self._statistics) if self._statistics else "no answer yet")
            case "mode", argument:
                self._mode = cast(Mode, self._choice("mode", argument, self._mode, get_args(Mode)))
            case "privacy", argument:
                self._privacy = cast(Privacy, self._choice("privacy", argument, self._privacy, get_args(Privacy)))
            case "view", argument:
                self._view = cast(View, self._choice("view", argument, self._view, get_args(View)))
            case "link", argument:
                self._show_link(argument)
            case "private", argument:
                self._conversation.attach(read_private_file(Path(argument)))
            case "history", _:
                self._console.print(printable(self._conversation.text()) or "nothing yet", markup=False)
            case "save", argument:
                self._save(argument)
            case "retry", _:
                self._retry()
            case "clear", _:
                self._failed = None
                self._conversation.clear()
                self._client.begin_conversation()

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
        if self._conversation.is_private and self._privacy == "local":
            print_message("this conversation holds private text: answered on this device alone, until /clear")

    def _help(self) -> None:
        for name, (argument, meaning) in COMMANDS.items():
            self._console.print(f"{f'/{name} {argument}':28} {meaning}", markup=False)
        self._console.print("<<private: ...>> in a message never leaves this device; \\<< is for code.", markup=False)

    def _choice(self, name: str, argument: str, now: str, choices: tuple[str, ...]) -> str:
        """The choice that `argument` names; without one print the present choice and keep it."""
        if argument and argument not in choices:
            raise UsageError(f"/{name} {argument}: choose one of {', '.join(choices)}")
        if not argument:
            self._console.print(f"{name} {now}; choose from: {', '.join(choices)}", markup=False)
        return argument or now

    def _show_link(self, argument: str) -> None:
        if argument and self._link is None:
            raise UsageError("/link: this link is a real one; start the chat with --profile NAME to have one to change")
        if self._link is not None and argument:
            self._link.change(argument)
        rtt_ms = self._statistics[-1].rtt_ms if self._statistics else 0.0
        self._console.print(f"{self._client.link_state.value}, R {rtt_ms:.0f} ms", markup=False)
        if self._link is not None:
            self._console.print(self._link.description, markup=False)

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs the name of a file")
        try:
            write_atomically(Path(name), self._conversation.text() + "\n", mode=0o600)
        except OSError as error:
            raise UsageError(f"{name}: cannot be written ({error.strerror})") from error


def _way_out(error: OutriderError) -> str:
    match error:
        case Refusal(reason=Reason.CONTEXT_FULL):
            return "; /clear starts a new conversation"
        case LinkError():
            return "; /retry asks again"
        case _:
            return ""


def statistics_table(answers: Sequence[Statistics]) -> Table:
    """Tabulate the last answer's statistics beside those of all, of which there is at least one."""
    table = Table("", "last answer", f"all {len(answers)}", box=None, pad_edge=False)
    for name, last, together in zip(_NAMES, _column(answers[-1:]), _column(answers), strict=True):
        table.add_row(name, last, together)
    return table


_NAMES = ("tokens", "tokens/s", "first token, ms", "τ", "R, ms", "target calls", "up", "down", "outages", "unverified")


def _column(answers: Sequence[Statistics]) -> tuple[str, ...]:
    """Sum up, with means weighted by each answer's tokens or target calls."""
    tokens = sum(each.new_tokens for each in answers)
    calls = sum(each.target_calls for each in answers)
    seconds = sum(each.new_tokens / each.tokens_per_second for each in answers if each.tokens_per_second)
    return (
        f"{tokens}",
        f"{tokens / seconds:.1f}" if seconds else "-",
        f"{sum(each.time_to_first_token_ms for each in answers) / len(answers):.0f}",
        f"{sum(each.mean_acceptance_length * each.target_calls for each in answers) / max(calls, 1):.2f}",
        f"{answers[-1].rtt_ms:.0f}",
        f"{calls}",
        format_bytes(sum(each.bytes_up for each in answers)),
        format_bytes(sum(each.bytes_down for each in answers)),
        f"{sum(each.outages for each in answers)}",
        f"{sum(each.unverified for each in answers)}",
    )
