"""What a chat's commands change of its answers: how they are written, how long they get, and how they look."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from outrider_client.core.config import UNLIMITED, ClientConfig, Mode, Privacy
from outrider_proto.errors import UsageError

View = Literal["markdown", "origins"]
_CHOICES: dict[str, tuple[str, ...]] = {"mode": get_args(Mode), "privacy": get_args(Privacy), "view": get_args(View)}
_NUMBERS: dict[str, type[int] | type[float]] = {"temperature": float, "max-tokens": int}
_ALL = "all"  # of max-tokens: as many as the context holds


class AnswerSettings:
    """The settings of the next answers; a configuration has their first values."""

    def __init__(self, config: ClientConfig) -> None:
        self.mode: Mode = config.mode
        self.privacy: Privacy = config.privacy
        self.view: View = "markdown"
        self._config = config

    @property
    def max_new_tokens(self) -> int:
        return self._config.max_new_tokens

    @property
    def overrides(self) -> dict[str, Any]:  # Any: as in ClientConfig.for_answer
        """What to pass to Client.generate."""
        return {
            "mode": self.mode,
            "privacy": self.privacy,
            "temperature": self._config.sampling.temperature,
            "max_new_tokens": self._config.max_new_tokens,
        }

    def choose(self, name: str, argument: str) -> str:
        """Choose by one of the commands /mode, /privacy, /view; return what to print. Raises UsageError."""
        choices = _CHOICES[name]
        if not argument:
            return f"{name} {getattr(self, name)}; choose from: {', '.join(choices)}"
        if argument not in choices:
            raise UsageError(f"/{name} {argument}: choose one of {', '.join(choices)}")
        match name:
            case "mode":
                self.mode = cast(Mode, argument)
            case "privacy":
                self.privacy = cast(Privacy, argument)
            case "view":
                self.view = cast(View, argument)
        return ""

    def set_number(self, argument: str) -> str:
        """Change a number by /set NAME VALUE; return what to print. Raises UsageError."""
        name, _, value = argument.partition(" ")
        if not argument:
            limit = _ALL if self.max_new_tokens == UNLIMITED else str(self.max_new_tokens)
            return f"temperature {self._config.sampling.temperature:g}, max-tokens {limit}"
        if name not in _NUMBERS:
            raise UsageError(f"/set {name}: choose one of {', '.join(_NUMBERS)}")
        try:
            number = UNLIMITED if argument == f"max-tokens {_ALL}" else _NUMBERS[name](value)
        except ValueError:
            raise UsageError(f"/set {argument}: need a number, as in /set {name} 1") from None
        changed = "temperature" if name == "temperature" else "max_new_tokens"
        self._config = self._config.for_answer(**{changed: number})
        return ""
