"""Writes the drafter's answer to a private prompt.

Nothing here can send: neither session nor transcript is in reach. Keep that so, and this a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event, Private, Warned
from outrider_client.core.statistics import Meter
from outrider_client.drafting.drafting_thread import AsyncDrafter
from outrider_client.models.local_models import LocalModels
from outrider_client.models.private_tokens import PrivateSplit
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.repetition import repeats_a_phrase
from outrider_proto.errors import UsageError


def check_writer(models: LocalModels, drafting: AsyncDrafter, config: ClientConfig) -> None:
    """Raise UsageError for a drafter that cannot write on private text."""
    if drafting.tap.fingerprint and not drafting.can_draft_ahead:
        raise UsageError(
            "this drafter reads text only through the target: name one that reads it itself (moa, eagle,"
            " independent), or choose privacy=placeholder"
        )
    if models.only_copies and not config.raw:
        raise UsageError(
            "this drafter only copies what was written before: name one that writes (moa, eagle, independent), or"
            " choose privacy=placeholder"
        )


async def write_locally(
    prompt: PrivateSplit,
    models: LocalModels,
    drafting: AsyncDrafter,
    config: ClientConfig,
    meter: Meter,
    clock: Callable[[], float],
    emit: Callable[[Event], None],
) -> tuple[int, str]:
    """Write the whole answer; return its number of tokens, and text held back as an incomplete character.

    Raises UsageError if the drafter cannot continue the prompt at all.
    """
    text, tokens, written = Detokenizer(models.decode), list(prompt.whole), list[int]()
    rules = models.rules_of(config.for_answer_from(len(tokens)).sampling.rules)
    while True:
        if len(written) >= config.drafter_limit or len(tokens) >= models.max_context:
            emit(Warned(f"the answer is cut after {len(written)} tokens"))
            break
        token = await drafting.write(tokens, config.sampling, rules)
        if token is None:
            break
        # Before the check: the end-of-sequence token belongs to the answer, as in the server's.
        meter.tokens_arrived(clock())
        emit(Private(len(written), (token,), text.push((token,))))
        tokens.append(token)
        written.append(token)
        if token in models.eos_token_ids:
            break
        # Of JSON only the whole is of use, however much space stands in it.
        if not config.sampling.rules.json_schema and repeats_a_phrase(written):
            emit(Warned("the drafter repeats itself: the answer is cut"))
            break
    if not written:
        raise UsageError(
            "the drafter cannot continue private text: name another one (moa, eagle, independent), or"
            " choose privacy=placeholder"
        )
    return len(written), text.finish()
