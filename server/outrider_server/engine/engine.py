"""The engine: one pass of the target over the rows of any number of sessions. Knows no frames and no threads.

verify() runs the pass and walks the trees but changes no session; commit() then makes one session's share of it stand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never

import torch
from torch import Tensor

from outrider_drafters.contracts.tap import Activations, TapState
from outrider_drafters.emulation.pace import Pace
from outrider_proto.frames import Finish, TokenLogprob
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import Walk, walk, walk_typical
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import Piece
from outrider_server.engine.sampler import Chooser, token_logprobs
from outrider_server.engine.sequence import Held
from outrider_server.engine.target import Target

_NO_TREE = DraftTree()


@dataclass(frozen=True, slots=True)
class Work:
    """One session's share of a pass. `chain` follows what is held; `tree` hangs below its last token, the root.

    Without a chooser the chain is only context: no root, no tree, no verdict. `logprobs` as in Draft.
    """

    held: Held
    chain: Sequence[int]
    tree: DraftTree = _NO_TREE
    chooser: Chooser | None = None
    logprobs: int | None = None

    @property
    def num_rows(self) -> int:
        return len(self.chain) + len(self.tree)


@dataclass(frozen=True, slots=True)
class Timing:
    """When the forward pass began and ended, in seconds of time.monotonic()."""

    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass made of one Work: its walk (None for context only), its rows of the hidden states, and how likely
    the tokens of the walk are, if that was asked for."""

    work: Work
    timing: Timing
    walk: Walk | None
    hidden: dict[int, Tensor]
    logprobs: tuple[TokenLogprob, ...] = ()


class Engine:
    """Runs passes on one target; with a pace, each lasts as long as on that hardware. `attention`: of sessions that can
    be computed together, or (plain) of each on its own."""

    def __init__(
        self,
        target: Target,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        attention: Literal["bunched", "plain"] = "bunched",
    ) -> None:
        self._bunched = attention == "bunched"
        self.target = target
        self._pace = pace
        self._clock = clock
        self._sleep = sleep
        self._eos = frozenset(target.eos_token_ids)

    @torch.inference_mode()
    def verify(self, works: Sequence[Work]) -> list[Outcome]:
        """One forward pass over all works, at most one per session."""
        last = self.target.max_context - 1
        pieces = [Piece(work.held.slot, len(work.chain), work.tree, last) for work in works]
        tokens = [token for work in works for token in (*work.chain, *work.tree.tokens)]
        positions = [position for piece in pieces for position in piece.positions]
        wanted = frozenset(layer for work in works if work.held.tap for layer in work.held.tap.hidden_layers)
        keep = _rows_to_judge(works)
        started = self._clock()
        output = self.target.forward(tokens, positions, FlatBatch(pieces, bunched=self._bunched), keep, wanted)
        self._wait_out(started, len(tokens))
        timing = Timing(started, self._clock())
        walks = self._walks(works, pieces, output.logits)
        likely = _logprobs(works, walks, output.logits)
        outcomes, first = [], 0
        for work, piece, judged, of_words in zip(works, pieces, walks, likely, strict=True):
            rows = slice(first, first := first + piece.num_rows)
            hidden = {layer: h[rows] for layer, h in output.hidden.items()}
            outcomes.append(Outcome(work, timing, judged, hidden, of_words))
        return outcomes

    @torch.inference_mode()
    def commit(self, outcome: Outcome) -> None:
        """Keep the chain and the accepted path."""
        work, judged = outcome.work, outcome.walk
        path = judged.path if judged else ()
        bonus = judged.bonus if judged and judged.finish is Finish.NOT_YET else None
        work.held.commit(work.chain, path, [work.tree.tokens[node] for node in path], bonus)

    @torch.inference_mode()
    def tap(self, outcomes: Sequence[Outcome]) -> None:
        """Make features of what was committed, for the sessions that have a tap; those that share it in one batch."""
        shared: dict[TapState, list[Outcome]] = {}
        for outcome in outcomes:
            state = outcome.work.held.tap_state
            if state is not None and outcome.work.held.lacks_features:
                shared.setdefault(state, []).append(outcome)
        for state, members in shared.items():
            parts = [_untapped(outcome) for outcome in members]
            rows = state.rows(_side_by_side(parts)).float().cpu()
            sizes = [part.keys.shape[2] for part in parts]
            for outcome, own in zip(members, torch.split(rows, sizes), strict=True):
                outcome.work.held.add_features(own.numpy())

    def _wait_out(self, started: float, num_rows: int) -> None:
        """Sleep for what is left of the time that such a pass is to last."""
        if self._pace is not None:
            left = started + self._pace.pass_s(num_rows) - self._clock()
            if left > 0:
                self._sleep(left)

    def _walks(self, works: Sequence[Work], pieces: Sequence[Piece], logits: Tensor) -> list[Walk | None]:
        # One argmax and one transfer for all sessions that take it; drawing is dearer, and done on the path alone.
        likeliest = _likeliest(logits) if any(w.chooser and not w.chooser.sampling.draws for w in works) else []
        walks: list[Walk | None] = []
        root_row = 0  # of logits
        for work, piece in zip(works, pieces, strict=True):
            if work.chooser is None:
                walks.append(None)
                continue
            rows = logits[root_row : root_row + 1 + len(work.tree)]
            if work.chooser.sampling.draws:
                choose = partial(_draw, work.chooser, rows, piece.positions[len(work.chain) - 1 :])
            else:
                choose = partial(_look_up, likeliest, root_row)
            walks.append(self._walk(work, work.chooser, choose, rows))
            root_row += 1 + len(work.tree)
        return walks

    def _walk(self, work: Work, chooser: Chooser, choose: Callable[[int], int], logits: Tensor) -> Walk:
        """`logits` are those of root and nodes."""
        max_depth = self._max_depth(work)
        match chooser.sampling.acceptance:
            case "exact":
                return walk(work.tree, choose, self._eos, max_depth)
            case "typical":
                return walk_typical(work.tree, chooser.gains(logits, work.tree), choose, self._eos, max_depth)
            case _:
                assert_never(chooser.sampling.acceptance)

    def _max_depth(self, work: Work) -> int:
        """Nodes that fit below the root, leaving one position for the bonus."""
        root = work.held.slot.length + len(work.chain) - 1
        return max(0, self.target.max_context - 2 - root)


def _likeliest(logits: Tensor) -> list[int]:
    """The first of the largest values in every row, as torch's argmax has it; numpy's is 8 times as fast on a CPU."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return [int(token) for token in logits.numpy().argmax(-1)]
    return [int(token) for token in logits.argmax(-1).tolist()]


def _logprobs(works: Sequence[Work], walks: Sequence[Walk | None], logits: Tensor) -> list[tuple[TokenLogprob, ...]]:
    """Empty for those that did not ask."""
    found: list[tuple[TokenLogprob, ...]] = []
    root_row = 0  # of logits
    for work, judged in zip(works, walks, strict=True):
        num_rows = 0 if judged is None else 1 + len(work.tree)
        if judged is None or work.logprobs is None:
            found.append(())
        else:
            found.append(token_logprobs(logits[root_row : root_row + num_rows], work.tree, judged, work.logprobs))
        root_row += num_rows
    return found


def _look_up(chosen: list[int], root_row: int, node: int) -> int:
    return chosen[root_row + 1 + node]


def _draw(chooser: Chooser, logits: Tensor, positions: list[int], node: int) -> int:
    """`logits` and `positions` begin with the root's."""
    row = 1 + node
    return chooser.choose(logits[row : row + 1], [positions[row] + 1])[0]


def _rows_to_judge(works: Sequence[Work]) -> list[int]:
    """Rows of the flat batch whose logits count: every root and node."""
    rows: list[int] = []
    first = 0
    for work in works:
        stop = first + len(work.chain) + len(work.tree)
        if work.chooser is not None:
            rows.extend(range(first + len(work.chain) - 1, stop))
        first = stop
    return rows


def _untapped(outcome: Outcome) -> Activations:
    held = outcome.work.held
    assert held.tap is not None
    return held.untapped({layer: _standing(outcome, outcome.hidden[layer]) for layer in held.tap.hidden_layers})


def _side_by_side(parts: Sequence[Activations]) -> Activations:
    """As if they were of one session."""
    if len(parts) == 1:
        return parts[0]
    return Activations(
        keys=torch.cat([part.keys for part in parts], dim=2),
        values=torch.cat([part.values for part in parts], dim=2),
        hidden={layer: torch.cat([part.hidden[layer] for part in parts]) for layer in parts[0].hidden},
    )


def _standing(outcome: Outcome, hidden: Tensor) -> Tensor:
    """Of the rows of a pass [n, hidden], those of the chain and the accepted path."""
    num_chain = len(outcome.work.chain)
    path = outcome.walk.path if outcome.walk else ()
    if not path:
        return hidden[:num_chain]
    return torch.cat([hidden[:num_chain], hidden[[num_chain + node for node in path]]])
