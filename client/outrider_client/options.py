"""The options that commands share, declared once, and the configuration they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from typer import Option

from outrider_client.config import ClientConfig, Mode, OnReconnect
from outrider_client.heartbeat import Patience
from outrider_drafters.shape import TreeShape
from outrider_proto.frames import Codec

_DEFAULT = ClientConfig()
_RENAMED = {"wait_for_link": "wait_for_link_s"}


def _options(
    server: Annotated[str, Option(help="The server's HOST:PORT.")] = _DEFAULT.server,
    target: Annotated[
        str | None,
        Option(help="Directory or hub name of the target (embedding, lm_head, tokenizer); the embedded one."),
    ] = None,
    drafter: Annotated[
        str | None, Option(help="Directory or hub name of the drafter, or none; the embedded one.")
    ] = None,
    mode: Annotated[Mode, Option(help="Who writes: drafter and target, the target alone, the drafter alone.")] = (
        _DEFAULT.mode
    ),
    max_new_tokens: Annotated[int, Option(help="Tokens of an answer.")] = _DEFAULT.max_new_tokens,
    temperature: Annotated[float, Option(help="0 is greedy.")] = _DEFAULT.sampling.temperature,
    top_k: Annotated[int, Option(help="Choose among so many; 0 is off.")] = _DEFAULT.sampling.top_k,
    top_p: Annotated[float, Option(help="Choose among so much probability; 1 is off.")] = _DEFAULT.sampling.top_p,
    seed: Annotated[int, Option(help="Of the choice.")] = _DEFAULT.sampling.seed,
    breadth: Annotated[int, Option(help="Nodes of the draft tree expanded a level.")] = _DEFAULT.shape.breadth,
    levels: Annotated[int, Option(help="Levels of the draft tree.")] = _DEFAULT.shape.levels,
    budget: Annotated[int, Option(help="Nodes of the draft tree, root not counted.")] = _DEFAULT.shape.budget,
    wait_for_features: Annotated[bool, Option(help="Draft on only with the newest features.")] = True,
    threads: Annotated[int | None, Option(help="CPU threads of the drafter; one for a small one.")] = _DEFAULT.threads,
    codec: Annotated[Codec, Option(help="Of the features.")] = _DEFAULT.codec,
    on_reconnect: Annotated[OnReconnect, Option(help="Let unverified tokens stand, or have them verified.")] = (
        _DEFAULT.on_reconnect
    ),
    offline_limit: Annotated[
        int | None, Option(help="Tokens the drafter may write in an outage; the answer's.")
    ] = None,
    offline_start: Annotated[bool, Option(help="Begin without a server if need be.")] = False,
    wait_for_link: Annotated[float, Option(help="Seconds to wait for it when the drafter is done.")] = 0.0,
    link_floor_ms: Annotated[float, Option(help="Silence that is never taken for a lost link.")] = (
        _DEFAULT.patience.floor_s * 1000
    ),
) -> None:
    """Never called: its signature is what counts."""


def with_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the shared options, and gets them as keywords."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(_options, eval_str=True).parameters.values()
    named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*named, *shared])  # type: ignore[attr-defined] # read by inspect
    return command


def client_config(options: dict[str, Any], **more: Any) -> ClientConfig:  # Any: each option has its own type
    """The configuration that the shared options make. Raises UsageError."""
    chosen = {_RENAMED.get(name, name): value for name, value in options.items()} | more
    shape = TreeShape(chosen.pop("breadth"), chosen.pop("levels"), chosen.pop("budget"))
    patience = Patience(floor_s=chosen.pop("link_floor_ms") / 1000)
    fixed = {name: chosen.pop(name) for name in ("server", "target", "drafter", "threads", "codec", "offline_start")}
    return replace(ClientConfig(shape=shape, patience=patience), **fixed).for_answer(**chosen)
