"""Generates the answer to a private prompt.

The target reads the safe prefix and sends its features, the connection is closed, and only then does the drafter read
the private rest and write the answer alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event, Finished, LinkChanged, Warned
from outrider_client.core.prompt import Prompt
from outrider_client.drafting.drafting_thread import AsyncDrafter, DraftingThread
from outrider_client.generation.instruments import Instruments
from outrider_client.models.private_tokens import PrivateSplit
from outrider_client.privacy.local_writer import check_writer, write_locally
from outrider_client.privacy.safe_prefix import SafePrefix
from outrider_proto.errors import Reason, Refusal, UsageError

if TYPE_CHECKING:
    from outrider_client.generation.context import GenerationContext

NO_FEATURES = "the target could not be reached for the safe part: the drafter writes without its features"


async def generate_privately(
    context: GenerationContext, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]
) -> None:
    """Write the answer. Raises UsageError, Refusal, or LinkError when no server can be reached at the start."""
    if (writer := context.models.writer) is None:
        raise UsageError(
            "private text is answered on this device alone, and no drafter here writes sensible text: choose"
            " privacy=placeholder, or name a small language model with the target's tokenizer (--offline-drafter)"
        )
    # In a thread: while a long text is tokenized, heartbeats and all other answers of this loop would wait.
    parts = await asyncio.to_thread(context.models.split, prompt, raw=config.raw_form)
    if len(parts.whole) >= (room := context.models.max_context):
        raise Refusal(Reason.CONTEXT_FULL, f"prompt and private text are too long: the target's context is {room}")
    context.session.watcher = lambda state, detail: emit(LinkChanged(state, detail))
    if context.session.state is LinkState.CONNECTING and config.mode != "offline":
        emit(LinkChanged(LinkState.CONNECTING))
    # A drafting thread of its own, which ends with the answer: the state of the client's own drafter stays exactly as
    # if there had been no private text.
    drafting = DraftingThread(writer, context.models.drafter_threads)
    try:
        await _answer(context, drafting, parts, config, emit)
    finally:
        await drafting.close()


async def _answer(
    context: GenerationContext,
    drafting: AsyncDrafter,
    parts: PrivateSplit,
    config: ClientConfig,
    emit: Callable[[Event], None],
) -> None:
    check_writer(context.models, drafting, config)
    instruments = Instruments(context.session, context.controller, drafting.names, context.clock)
    if not await SafePrefix(context, drafting, config, instruments, parts.safe).fetch():
        emit(Warned(NO_FEATURES))
    meter, clock = instruments.meter, context.clock
    num_tokens, rest = await write_locally(parts, context.models, drafting, config, meter, clock, emit)
    emit(Finished("private", instruments.statistics(num_tokens, num_tokens), rest))
