"""An answer to a private prompt: the target tells what it makes of the safe prefix, the link is hung up, and only then
does the drafter read the rest and write alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event, Finished, LinkChanged, Warned
from outrider_client.core.prompt import Prompt
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.drafting.drafting_thread import Drafting, DraftingThread
from outrider_client.models.private_tokens import Split
from outrider_client.privacy.alone import Alone
from outrider_client.privacy.safe_prefix import SafePrefix
from outrider_proto.errors import Reason, Refusal, UsageError

if TYPE_CHECKING:
    from outrider_client.generation.context import Equipment

NO_FEATURES = "the target could not be asked about the safe part: the drafter writes without its features"


async def answer_privately(
    equipment: Equipment, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]
) -> None:
    """Raises UsageError, Refusal, or LinkError when there is no server to begin with."""
    if equipment.models.drafter is None:
        raise UsageError("private text needs a drafter to answer it here: name one, or choose privacy=placeholder")
    parts = _split(equipment, prompt, config)
    _watch(equipment, config, emit)
    # A state of its own, which ends with the answer: what the client's own one has computed stays as if there had been
    # nothing private, to the last bit.
    drafting = DraftingThread(equipment.models.drafter, equipment.models.drafter_threads)
    try:
        await _answer(equipment, drafting, parts, config, emit)
    finally:
        await drafting.close()


async def _answer(
    equipment: Equipment, drafting: Drafting, parts: Split, config: ClientConfig, emit: Callable[[Event], None]
) -> None:
    if drafting.tap.fingerprint and not drafting.can_look_out:
        raise UsageError(
            "this drafter knows private text only through the target: name one that reads it itself (moa, eagle,"
            " independent), or choose privacy=placeholder"
        )
    before, meter = equipment.session.num_bytes, Meter(equipment.clock(), drafting.names)
    if not await SafePrefix(equipment, drafting, config, meter, parts.safe).fetch():
        emit(Warned(NO_FEATURES))
    alone = Alone(equipment.models, drafting, config, meter, equipment.clock, emit)
    held = await alone.write(parts)
    emit(Finished("private", _statistics(equipment, meter, alone.num_new_tokens, before), held))


def _split(equipment: Equipment, prompt: Prompt, config: ClientConfig) -> Split:
    parts, room = equipment.models.split(prompt, raw=config.raw), equipment.models.max_context
    if len(parts.whole) >= room:
        raise Refusal(Reason.CONTEXT_FULL, f"prompt and private text are too long: the target's context is {room}")
    return parts


def _watch(equipment: Equipment, config: ClientConfig, emit: Callable[[Event], None]) -> None:
    equipment.session.watcher = lambda state, detail: emit(LinkChanged(state, detail))
    if equipment.session.state is LinkState.CONNECTING and config.mode != "offline":
        emit(LinkChanged(LinkState.CONNECTING))


def _statistics(equipment: Equipment, meter: Meter, num_tokens: int, before: tuple[int, int]) -> Statistics:
    up, down = equipment.session.num_bytes
    return meter.snapshot(
        equipment.clock(),
        new_tokens=num_tokens,
        unverified=num_tokens,
        bytes_up=up - before[0],
        bytes_down=down - before[1],
        rtt_s=equipment.session.rtt.mean_s or 0.0,
    )
