"""Parameters of OpenAI's that do not exist here. Clients send some of them with the value that changes nothing: that is
taken; any other is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

# Any: whatever JSON holds
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "metadata": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "web_search_options": (),
    "moderation": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
}
_NEUTRAL_OF_MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "name": (),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
    "function_call": (),
    "tool_calls": ([],),
}


def without_neutral(given: Any) -> Any:
    """A request without the parameters that change nothing. Raises for one that would."""
    return _without(given, _NEUTRAL)


def message_without_neutral(given: Any) -> Any:
    """As `without_neutral`, a message."""
    return _without(given, _NEUTRAL_OF_MESSAGE)


def _without(given: Any, neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    if not isinstance(given, Mapping):
        return given
    for name in given.keys() & neutral.keys():
        if given[name] is not None and not any(_same(given[name], value) for value in neutral[name]):
            raise PydanticCustomError("unsupported_parameter", "{what}", {"name": name, "what": _said(neutral[name])})
    return {name: value for name, value in given.items() if name not in neutral}


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _said(values: tuple[Any, ...]) -> str:
    return f"not supported here, but for {' or '.join(map(repr, values))}" if values else "not supported here"
