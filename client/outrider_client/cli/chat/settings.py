"""What a chat's commands change of its answers: how they are written, how long they get, and how they look."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from outrider_client.core.config import UNLIMITED, ClientConfig, Mode, Privacy
from outrider_proto.errors import UsageError

View = Literal["markdown", "origins"]
_LIMIT = "max_new_tokens"
_CHOICES: dict[str, tuple[str, ...]] = {"mode": get_args(Mode), "privacy": get_args(Privacy), "view": get_args(View)}
_NUMBERS: dict[str, tuple[str, type[int] | type[float]]] = {  # name: field, type
    "temperature": ("temperature", float),
    "top-k": ("top_k", int),
    "top-p": ("top_p", float),
    "min-p": ("min_p", float),
    "seed": ("seed", int),
    "max-tokens": (_LIMIT, int),
}
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
            **{field: self._number(field) for field, _ in _NUMBERS.values()},
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
        if not argument:
            return ", ".join(f"{name} {self._shown(field)}" for name, (field, _) in _NUMBERS.items())
        name, _, value = argument.removeprefix("parameter ").partition(" ")  # as Ollama has it
        name = name.replace("_", "-")
        if name not in _NUMBERS:
            raise UsageError(f"/set {name}: choose one of {', '.join(_NUMBERS)}")
        field, parse = _NUMBERS[name]
        try:
            number = UNLIMITED if (field, value) == (_LIMIT, _ALL) else parse(value)
        except ValueError:
            raise UsageError(f"/set {argument}: need a number, as in /set {name} 1") from None
        self._config = self._config.for_answer(**{field: number})
        return ""

    def _number(self, field: str) -> float:
        number: float = getattr(self._config if field == _LIMIT else self._config.sampling, field)
        return number

    def _shown(self, field: str) -> str:
        return _ALL if (field, self.max_new_tokens) == (_LIMIT, UNLIMITED) else f"{self._number(field):g}"
