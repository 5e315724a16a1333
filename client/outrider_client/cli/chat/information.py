"""What a chat tells of itself: whom it talks to, its commands, and what its answers cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from outrider_client.cli.chat.commands import COMMANDS
from outrider_client.client import Client
from outrider_client.core.config import ClientConfig
from outrider_client.core.statistics import Statistics
from outrider_client.display.messages import explained
from outrider_client.models.pulled import find_pulled
from outrider_proto.errors import OutriderError
from outrider_proto.terminal.text import one_line

_HINT = '/help lists the commands, """ begins a message of several lines, Ctrl-D leaves'


def greeting(client: Client, config: ClientConfig) -> Text:
    """Name model, drafter and server, and say whether the server answers. Asks it, unless the mode is offline."""
    text = Text(f"{_model(config)}, {_drafter(config)}, ")
    if config.mode == "offline":
        text.append("offline: no server is asked", style="yellow")
    else:
        text.append(f"server {config.server} ").append_text(_link_state(client, config))
    return text.append(f"\n{_HINT}", style="dim")


def _model(config: ClientConfig) -> str:
    is_pulled = config.target is not None and config.target == find_pulled(config.server)
    return f"the model pulled from {config.server}" if is_pulled else str(config.target)


def _drafter(config: ClientConfig) -> str:
    match config.drafters:
        case ():
            return "no drafter"
        case (None,):
            return "its own drafter"
        case drafters:
            return f"drafter {', '.join(map(str, drafters))}"


def _link_state(client: Client, config: ClientConfig) -> Text:
    try:
        client.describe()
    except OutriderError as error:
        # No reason to end: the server may come, and until then there are /help and /load.
        return Text(f"● not online: {explained(error, config.server)}", style="red")
    return Text("● online", style="green")


def model_lines(client: Client, config: ClientConfig) -> str:
    """Name the models here, and those that the server has if it answers."""
    here = f"here: {_model(config)}, {_drafter(config)}"
    try:
        served = client.describe()
    except OutriderError as error:
        there = str(explained(error, config.server))
    else:
        there = f"{served.target_name}, context of {served.max_context} tokens, outrider-server {served.server_version}"
    return f"{one_line(here)}\n{one_line(f'{config.server}: {there}')}"


def help_lines() -> list[str]:
    commands = [f"{f'/{name} {argument}':36} {meaning}" for name, (argument, meaning) in COMMANDS.items()]
    return [*commands, "<<private: ...>> in a message never leaves this device; \\<< is for code."]


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
        decimal(sum(each.bytes_up for each in answers)),
        decimal(sum(each.bytes_down for each in answers)),
        f"{sum(each.outages for each in answers)}",
        f"{sum(each.unverified for each in answers)}",
    )
