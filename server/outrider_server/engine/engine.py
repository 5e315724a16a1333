"""The engine: one pass of the target over the rows of any number of sessions. Knows no frames and no threads.

launch() starts the pass, finish() waits for it and judges the trees; on a GPU the host is free between the two. Neither
changes a session: commit() applies one session's result, commit_all() those of a whole pass.
"""

from __future__ import annotations

import sys
import time
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never

import numpy as np
import torch
from torch import Tensor

from outrider_drafters.contracts.tap import Activations, TapState
from outrider_drafters.emulation.pace import Pace
from outrider_proto.frames import Finish, TokenLogprob
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath, verify_path, verify_typical
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.grouped_attention import DEVICE_LIMITS, HOST_LIMITS
from outrider_server.engine.sampler import NOT_FINITE, BatchedChoices, ChoiceRequest, RowChoices, Sampler, argmax
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target, TargetOutput
from outrider_server.kv.buffers import is_out_of_memory
from outrider_server.kv.pages import PagedBuffer
from outrider_server.kv.slot import KVSlot, LayerTensors

_NO_TREE = DraftTree()


@dataclass(frozen=True, slots=True)
class StepInput:
    """One session's share of a pass. Without a sampler it is only context: no root, no tree, no verdict."""

    sequence: Sequence
    chain: abc.Sequence[int]  # follows what is held
    tree: DraftTree = _NO_TREE  # hangs below the chain's last token, the root
    sampler: Sampler | None = None
    logprobs: int | None = None  # as in Draft
    max_context: int = sys.maxsize  # tokens at which the text ends, where the target's are not fewer

    @property
    def num_rows(self) -> int:
        return len(self.chain) + len(self.tree)


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Start and end of the forward pass and the choice of its tokens, in seconds of time.monotonic()."""

    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one StepInput.

    Logits that are not `finite` (NaN or infinite) choose no token: there is no path, and nothing may be committed.
    """

    step_input: StepInput
    timing: StepTiming
    accepted: AcceptedPath | None  # None for context only
    hidden: dict[int, Tensor]  # states of the chain and the accepted path, by layer
    logprobs: tuple[TokenLogprob, ...] = ()
    finite: bool = True


class _PassTimer:
    """Times a pass, by the device where that computes it while the host goes on."""

    def __init__(self, device: torch.device, started: float) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.started = started
        self._first = self._event()
        self._last: torch.cuda.Event | None = None

    def launched(self) -> None:
        """Note that all of the pass has been launched."""
        self._last = self._event()

    def wait(self) -> None:
        """Wait until the device is through with it."""
        if self._last is not None:
            self._last.synchronize()

    def ended(self, now: float) -> float:
        """Return when that was, after wait(): `now`, or earlier where the host has come late."""
        if self._first is None or self._last is None:
            return now
        device_ms: float = self._first.elapsed_time(self._last)
        return min(now, self.started + device_ms / 1e3)

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch
        event.record(self._stream)
        return event


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedPass:
    """A pass of which nothing has been read yet. `requests`: what each input wants to know of its logits."""

    inputs: abc.Sequence[StepInput]
    requests: abc.Sequence[ChoiceRequest | None]
    choices: RowChoices | None
    hidden: Mapping[int, Tensor]
    timer: _PassTimer


class Engine:
    """Runs passes on one target; with a pace, each lasts as long as on that hardware.

    `attention`: compute similar sessions together (bunched), or each on its own (plain). `choices`: draw all tokens on
    the device and read them at once (batched), or one at a time as they are needed (plain); auto: batched unless the
    device is the host, which waits for nothing and would compute what nobody needs.
    """

    def __init__(
        self,
        target: Target,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        attention: Literal["bunched", "plain"] = "bunched",
        choices: Literal["auto", "batched", "plain"] = "auto",
    ) -> None:
        on_host = target.kv.device.type == "cpu"
        limits = HOST_LIMITS if on_host else DEVICE_LIMITS
        self._limits = limits if attention == "bunched" else None
        self._is_batched = choices == "batched" or (choices == "auto" and not on_host)
        self.target = target
        self._pace = pace
        self._clock = clock
        self._sleep = sleep
        self._eos = frozenset(target.eos_token_ids)

    def verify(self, inputs: abc.Sequence[StepInput]) -> list[StepResult]:
        """Run one forward pass over all inputs, at most one per session, and judge the trees."""
        return self.finish(self.launch(inputs))

    @torch.inference_mode()
    def launch(self, inputs: abc.Sequence[StepInput]) -> LaunchedPass:
        """Start a forward pass over all inputs, at most one per session, and the choice of its tokens.

        Until finish() their sessions must stay as they are, but for rows that a shared prefix takes over.
        """
        timer, last = _PassTimer(self.target.kv.device, self._clock()), self.target.max_context - 1
        segments = [
            BatchSegment(step_input.sequence.slot, len(step_input.chain), step_input.tree, last)
            for step_input in inputs
        ]
        requests, keep = _choice_requests(inputs, segments)
        # Before the pass: behind its layers, what this sends to the device would wait for all of them.
        choices = self._choices([request for request in requests if request is not None])
        output = self._forward(inputs, segments, keep)
        if choices is not None:
            choices.choose(output.logits)
        timer.launched()
        return LaunchedPass(inputs, requests, choices, output.hidden, timer)

    @torch.inference_mode()
    def finish(self, launched: LaunchedPass) -> list[StepResult]:
        """Wait for a pass, read its tokens, and judge the trees."""
        inputs, requests, choices = launched.inputs, launched.requests, launched.choices
        launched.timer.wait()
        if choices is not None:
            choices.read()
        timing = self._timing(launched)
        accepted = [self._verify_tree(one, request, choices) for one, request in zip(inputs, requests, strict=True)]
        logprobs = [
            choices.logprobs(request, path) if choices and request and path else ()
            for request, path in zip(requests, accepted, strict=True)
        ]
        hidden = _kept_hidden(inputs, accepted, launched.hidden)
        return [
            StepResult(one, timing, path, rows, own, finite=path is not None or one.sampler is None)
            for one, path, rows, own in zip(inputs, accepted, hidden, logprobs, strict=True)
        ]

    @torch.inference_mode()
    def target_works(self) -> bool:
        """Return whether the target still runs, with finite logits, a text that no client has chosen."""
        slot = KVSlot(self.target.kv)
        slot.reserve(1)
        token = min(self._eos, default=0)
        try:
            segment = BatchSegment(slot, 1, _NO_TREE, self.target.max_context - 1)
            output = self.target.forward([token], [0], FlatBatch([segment]), [0], frozenset())
            return NOT_FINITE not in argmax(output.logits)
        except Exception as error:
            return is_out_of_memory(error)  # there may be memory again

    @torch.inference_mode()
    def commit_all(self, results: abc.Sequence[StepResult]) -> list[Exception | None]:
        """Commit each result of a pass; return what went wrong with each. Paths in pages are moved by one copy."""
        try:
            placed = _place_paths(results)
        except Exception:
            # Each moves its own rows then, so that only the one at fault fails. None has been moved yet: what fails is
            # the copy, which is made before anything is written.
            placed = False
        failures: list[Exception | None] = []
        for result in results:
            failures.append(None)
            try:
                self.commit(result, placed=placed)
            except Exception as error:
                failures[-1] = error
        return failures

    @torch.inference_mode()
    def commit(self, result: StepResult, *, placed: bool = False) -> None:
        """Keep the chain and the accepted path, and the hidden states that their features need.

        `placed`: the path's rows have been moved already.
        """
        step_input, accepted = result.step_input, result.accepted
        path = accepted.path if accepted else ()
        # Only a text that goes on has a next root; after an end, no draft can follow it.
        bonus = accepted.bonus if accepted and accepted.finish is Finish.NOT_YET else None
        tokens = [step_input.tree.tokens[node] for node in path]
        step_input.sequence.commit(step_input.chain, path, tokens, bonus, placed=placed)
        if tap := step_input.sequence.tap:
            # A pass has the layers of every session's tap: keep those of its own.
            step_input.sequence.add_hidden({layer: result.hidden[layer] for layer in tap.hidden_layers})

    @torch.inference_mode()
    def tap(self, sequences: abc.Sequence[Sequence]) -> None:
        """Compute the features that committed rows lack; sessions that share a tap go in one batch."""
        shared: dict[TapState, list[Sequence]] = {}
        for sequence in sequences:
            if sequence.tap_state is not None and sequence.num_untapped:
                shared.setdefault(sequence.tap_state, []).append(sequence)
        for state, members in shared.items():
            sizes = [sequence.num_untapped for sequence in members]
            rows = state.rows(_side_by_side([sequence.activations() for sequence in members])).float().cpu().numpy()
            for sequence, own in zip(members, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
                sequence.add_features(own)

    def _forward(
        self, inputs: abc.Sequence[StepInput], segments: abc.Sequence[BatchSegment], keep: list[int]
    ) -> TargetOutput:
        tokens = [token for step_input in inputs for token in (*step_input.chain, *step_input.tree.tokens)]
        positions = [position for segment in segments for position in segment.positions]
        wanted = frozenset(
            layer for step_input in inputs if step_input.sequence.tap for layer in step_input.sequence.tap.hidden_layers
        )
        batch = FlatBatch(segments, limits=self._limits, invariant=self.target.batch_invariant)
        return self.target.forward(tokens, positions, batch, keep, wanted)

    def _timing(self, launched: LaunchedPass) -> StepTiming:
        """Return when the pass began and ended, after the rest of its time on the emulated hardware."""
        timer = launched.timer
        if self._pace is None:
            return StepTiming(timer.started, timer.ended(self._clock()))
        num_rows = sum(step_input.num_rows for step_input in launched.inputs)
        left = timer.started + self._pace.pass_s(num_rows) - self._clock()
        if left > 0:
            self._sleep(left)
        return StepTiming(timer.started, self._clock())

    def _choices(self, asked: abc.Sequence[ChoiceRequest]) -> RowChoices | None:
        """Prepare the choice of the target's tokens; None where nothing is to be chosen."""
        if not asked:
            return None
        return BatchedChoices(asked, self.target.kv.device) if self._is_batched else RowChoices()

    def _verify_tree(
        self, step_input: StepInput, request: ChoiceRequest | None, choices: RowChoices | None
    ) -> AcceptedPath | None:
        """Apply the acceptance rule; None where there is nothing to be accepted, or not by these logits."""
        if request is None or choices is None or not choices.is_finite(request):
            return None
        # The limit is the session's own: a flat batch holds sessions of many lengths.
        tree, max_depth = request.tree, self._max_depth(step_input)
        choose = partial(choices.token, request)
        match request.sampler.sampling.acceptance:
            case "exact":
                return verify_path(tree, choose, self._eos, max_depth)
            case "typical":
                return verify_typical(tree, choices.log_probs(request), choose, self._eos, max_depth)
            case _:
                assert_never(request.sampler.sampling.acceptance)

    def _max_depth(self, step_input: StepInput) -> int:
        """Return how many nodes fit below the root, leaving one position for the bonus."""
        root = step_input.sequence.slot.length + len(step_input.chain) - 1
        return max(0, min(self.target.max_context, step_input.max_context) - 2 - root)


def _place_paths(results: abc.Sequence[StepResult]) -> bool:
    """Move the K/V rows of all accepted paths, where they lie in pages, by one copy; return whether that was done."""
    moves = []
    for result in results:
        path, slot = result.accepted.path if result.accepted else (), result.step_input.sequence.slot
        if move := slot.path_move(len(result.step_input.chain), path):
            if not isinstance(slot.buffer, PagedBuffer):
                return False
            moves.append((slot.buffer, *move))
    if moves:
        moves[0][0].pool.move(moves)  # all sessions' pages are of one pool, that of the engine's memory
    return True


def _choice_requests(
    inputs: abc.Sequence[StepInput], segments: abc.Sequence[BatchSegment]
) -> tuple[list[ChoiceRequest | None], list[int]]:
    """Return what each input wants to know of its rows of logits, None for context only; and which rows need logits.

    Those are every root and node.
    """
    requests: list[ChoiceRequest | None] = []
    rows: list[int] = []  # of the flat batch
    first = 0
    for step_input, segment in zip(inputs, segments, strict=True):
        root, first = first + len(step_input.chain) - 1, first + segment.num_rows
        if step_input.sampler is None:
            requests.append(None)
            continue
        positions = [position + 1 for position in segment.positions[len(step_input.chain) - 1 :]]
        rules = step_input.sampler.rules
        text = () if rules is None else _text(step_input, rules.reads_from)
        requests.append(
            ChoiceRequest(step_input.sampler, step_input.tree, positions, step_input.logprobs, len(rows), text)
        )
        rows.extend(range(root, first))
    return requests, rows


def _text(step_input: StepInput, first: int) -> list[int]:
    """Return the tokens of positions first, first + 1, ... up to the root."""
    held = step_input.sequence.slot.length
    return [*step_input.sequence.tokens[first:held], *step_input.chain[max(first - held, 0) :]]


def _side_by_side(parts: abc.Sequence[Activations]) -> Activations:
    """Concatenate activations as if they were of one session."""
    if len(parts) == 1:
        return parts[0]
    return Activations(
        keys=_joined([part.keys for part in parts]),
        values=_joined([part.values for part in parts]),
        hidden={layer: torch.cat([part.hidden[layer] for part in parts]) for layer in parts[0].hidden},
    )


def _joined(parts: abc.Sequence[Tensor | abc.Sequence[Tensor]]) -> LayerTensors:
    """Concatenate the rows of all layers, or of each where they differ."""
    whole = [part for part in parts if isinstance(part, Tensor)]
    if len(whole) == len(parts):
        return torch.cat(whole, dim=2)
    return [torch.cat(same, dim=1) for same in zip(*parts, strict=True)]


def _kept_hidden(
    inputs: abc.Sequence[StepInput], accepted: abc.Sequence[AcceptedPath | None], hidden: Mapping[int, Tensor]
) -> list[dict[int, Tensor]]:
    """Return, of a pass's hidden states [rows, E], those of each input's chain and accepted path."""
    kept: list[int] = []
    sizes: list[int] = []
    first = 0
    for step_input, path in zip(inputs, accepted, strict=True):
        tree = first + len(step_input.chain)
        rows = [*range(first, tree), *(tree + node for node in (path.path if path else ()))]
        kept += rows
        sizes.append(len(rows))
        first = tree + len(step_input.tree)
    if hidden and len(kept) < first:
        # All sessions' rows by one index: each of its own would be sent to the device by itself.
        index = torch.tensor(kept, device=next(iter(hidden.values())).device)
        hidden = {layer: rows[index] for layer, rows in hidden.items()}
    parts = {layer: torch.split(rows, sizes) for layer, rows in hidden.items()}
    return [{layer: rows[number] for layer, rows in parts.items()} for number in range(len(inputs))]
