"""The quality of what a drafter writes offline after the link has died for good.

Lower bound `stop`: the answer ends where the link died. Upper bound: the target's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_bench.core.pair import InProcessPair
from outrider_bench.core.prompts import CorpusQuestion
from outrider_drafters.contracts.drafter import Drafter
from outrider_lab.corpus.check import score_all
from outrider_lab.corpus.held_out import with_checks
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.frames import Draft, Features, Open, TapInfo
from outrider_proto.tree import DraftTree

CUTS = (1, 10, 25, 40)  # tokens that came before the link died


async def outage_scores(
    pair: InProcessPair,
    asked: Sequence[CorpusQuestion],
    expected: Sequence[tuple[int, ...]],
    cut: int,
    limit: int,
    step: Callable[[], None] = lambda: None,
) -> list[bool]:
    """Return which answers are right when the drafter goes on alone after `cut` tokens, up to `limit`."""
    drafter = pair.models.drafter
    assert drafter is not None
    texts = []
    for question, tokens in zip(asked, expected, strict=True):
        answer = list(tokens[:cut])
        if len(tokens) > cut:
            features = await features_of(pair, (*question.prompt, *answer), drafter.tap)
            answer += write_offline(
                drafter, (*question.prompt, *answer), features, limit - cut, pair.target.eos_token_ids
            )
        texts.append(pair.models.decode(answer))
        step()
    return score_all(with_checks([question.sample for question in asked]), texts)


def stop_scores(
    pair: InProcessPair, asked: Sequence[CorpusQuestion], expected: Sequence[tuple[int, ...]], cut: int
) -> list[bool]:
    """Return which answers are right when nothing follows the first `cut` tokens."""
    texts = [pair.models.decode(tokens[:cut]) for tokens in expected]
    return score_all(with_checks([question.sample for question in asked]), texts)


@torch.inference_mode()
def write_offline(
    drafter: Drafter, tokens: Sequence[int], features: NDArray[np.float32], limit: int, eos: Sequence[int]
) -> list[int]:
    """Continue greedily with `features` of all tokens but the last, for at most `limit` tokens."""
    state = drafter.new_state()
    state.append(tokens)
    # Features of the last token do not exist yet when the root is drafted from it.
    state.add_features(0, torch.from_numpy(features[: len(tokens) - 1]))
    written: list[int] = []
    while len(written) < limit and state.max_levels and not (written and written[-1] in eos):
        token = int(state.tree_logits(DraftTree())[0].argmax())
        written.append(token)
        state.append([token])
    return written


async def features_of(pair: InProcessPair, tokens: tuple[int, ...], tap: TapInfo) -> NDArray[np.float32]:
    """Return the rows [len(tokens), width] that a server with this tap sends."""
    if not tap.width:  # none are sent, and none would be waited for without end
        return np.empty((len(tokens), 0), np.float32)
    about = pair.verifier.describe()
    connection = await pair.transport().connect()
    connection.send(Open(PROTOCOL_VERSION, about.target_fingerprint, about.tokenizer_fingerprint, tap.fingerprint))
    connection.send(Draft(1, 0, tokens[:-1], tokens[-1], DraftTree()))
    rows: list[NDArray[np.float32]] = []
    while True:
        frame = await connection.receive()
        if isinstance(frame, Features):
            rows.append(frame.rows)
            if frame.last:
                await connection.close()
                return np.concatenate(rows)
