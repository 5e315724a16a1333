"""What all answers of a client share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider_client.connection.session import Session
from outrider_client.controller.mode_controller import Pilot
from outrider_client.drafting.acceptance_check import Fit
from outrider_client.drafting.drafting_thread import Drafting
from outrider_client.models.local_models import LocalModels
from outrider_client.text.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Equipment:
    """`last_resort` drafts where `drafting` is not there or cannot. `clock` counts seconds."""

    models: LocalModels
    session: Session
    transcript: Transcript
    drafting: Drafting | None
    last_resort: Drafting
    fit: Fit
    pilot: Pilot
    clock: Callable[[], float]
