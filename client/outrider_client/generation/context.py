"""The objects that all answers of a session share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider_client.connection.session import ClientSession
from outrider_client.controller.mode_controller import ModeController
from outrider_client.drafting.drafting_thread import AsyncDrafter
from outrider_client.drafting.local_drafter import AcceptanceCheck
from outrider_client.models.local_models import LocalModels
from outrider_client.text.transcript import Transcript


@dataclass(frozen=True, slots=True, eq=False)
class GenerationContext:
    """What a session's answers share. Offline `drafting` writes where it may, else `writing`, else the fallback."""

    models: LocalModels
    session: ClientSession
    transcript: Transcript
    drafting: AsyncDrafter | None
    writing: AsyncDrafter | None
    fallback_drafter: AsyncDrafter
    acceptance_check: AcceptanceCheck
    controller: ModeController
    clock: Callable[[], float]
