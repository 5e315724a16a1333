"""Options of `outrider-lab answer`, which its command reads before torch is imported."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from outrider_models.core.options import TARGET_HELP
from outrider_proto.options.fields import Flag


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Who answers, and how much."""

    target: Annotated[str | None, Flag(TARGET_HELP, expert=True)] = None
    tokens: Annotated[int, Field(ge=1), Flag("Answer tokens wanted.", expert=True)] = 1_500_000
    dtype: Annotated[str, Flag("Number format in which the target is served.", expert=True)] = "int8"
    batch: Annotated[int, Field(ge=1), Flag("Answers written at once.", expert=True)] = 64
    max_new_tokens: Annotated[int, Field(ge=1), Flag("Most tokens of an answer.", expert=True)] = 200
