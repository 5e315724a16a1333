"""The choice of the target's token after every row: argmax, or a draw from the processed distribution.

The draw for position p uses one uniform number that depends on (seed, p) alone, from a counter-based generator. So the
choice depends neither on the tree it is compared with, nor on batching, nor on interruptions of the session.

Two ways lead to the same tokens. `RowChoices` computes what it is asked for, when it is asked: nodes beside the path
cost nothing, but the host waits for each answer. `BatchedChoices` computes all rows of all sessions beforehand, on the
device, and copies everything to the host at once; what it sends to the device it sends before the pass. An answer's
rules are applied row by row in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.contracts.token_draw import choose_tokens, distribution, distributions, drawn, filters, uniforms
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_proto.frames import MIN_LOGPROB, Sampling, TokenLogprob
from outrider_proto.tree import ROOT, DraftTree
from outrider_server.engine.acceptance import NOT_TYPICAL, AcceptedPath

NOT_FINITE = -1  # in place of a token
_ENTROPY_FLOOR = 1e-5  # keeps ln finite; part of the published rule
_VALUES = 2**24  # of a distribution that are held at once, 128 MiB in float64


class Sampler:
    """Choose tokens by `sampling`, from logits that the `rules` of the answer have changed."""

    def __init__(self, sampling: Sampling, rules: AnswerRules | None = None) -> None:
        self.sampling = sampling
        self.rules = rules

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the distribution [n, vocab] float64 after temperature, top-k, top-p and min-p."""
        return distribution(logits, self.sampling)

    def choose(self, logits: Tensor, positions: Sequence[int]) -> list[int]:
        """Return n tokens for logits [n, vocab]; positions[i] is the position that row i predicts."""
        return choose_tokens(logits, self.sampling, positions)

    def log_probs(self, logits: Tensor, tree: DraftTree) -> list[float]:
        """Return ln p of every node's token below its parent, NOT_TYPICAL below the threshold.

        logits: [1 + nodes, vocab] of root and nodes.
        """
        if not len(tree):
            return []
        parents, tokens = torch.tensor([tree.parents, tree.tokens], device=logits.device)
        # Siblings share the distribution below their parent, and top-p is slow: run each row once.
        rows, row = (parents + 1).unique(return_inverse=True)
        limits = torch.tensor([[self.sampling.epsilon], [self.sampling.alpha]], dtype=torch.float64)
        return _typical(self.distribution(logits[rows]), row, tokens, *limits.to(logits.device)).tolist()


def _typical(p: Tensor, row: Tensor, tokens: Tensor, epsilon: Tensor, alpha: Tensor) -> Tensor:
    """Return ln p[row, tokens], NOT_TYPICAL below the threshold of the row: acceptance.py has the rule.

    p: [n, vocab] float64; row, tokens: [nodes]; epsilon, alpha: [n] or [1] float64.
    """
    entropy = -(p * (p + _ENTROPY_FLOOR).log()).sum(-1)
    threshold = torch.minimum(alpha * (-entropy).exp(), epsilon)
    drafted = p[row, tokens]
    return torch.where(drafted > threshold[row], drafted.log(), NOT_TYPICAL)


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One session's rows of logits: those of root and nodes. Row i predicts positions[i]."""

    sampler: Sampler
    tree: DraftTree
    positions: Sequence[int]
    num_logprobs: int | None  # as in Draft
    first: int  # its first row in the pass
    text: Sequence[int] = ()  # of a request with rules: the tokens up to the root, which they read

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.positions))


class RowChoices:
    """Choices made when they are asked for; rules are applied to the rows that are asked for alone.

    choose() comes first, then read(), then the questions.
    """

    def __init__(self) -> None:
        self._logits = torch.empty(0, 0)
        self._tokens: list[int] = []  # the likeliest of every row

    def choose(self, logits: Tensor) -> None:
        """Take the logits [rows, vocab] of the pass. On a GPU the host waits for nothing, not even for them."""
        self._logits = logits

    def read(self) -> None:
        """Wait for what was chosen."""
        self._tokens = argmax(self._logits)

    def is_finite(self, request: ChoiceRequest) -> bool:
        """Return whether all its rows have a largest logit that is a number."""
        return NOT_FINITE not in self._tokens[request.rows]

    def token(self, request: ChoiceRequest, node: int) -> int:
        """Return the token after `node`, or the root."""
        row, rules = 1 + node, request.sampler.rules
        if rules is None and not request.sampler.sampling.draws:
            return self._tokens[request.first + row]
        logits = self._logits[request.first + row : request.first + row + 1]
        if rules is not None:
            logits = rules.applied(logits, request.text, request.tree.path_tokens(_path_to(request.tree, node)))
        return request.sampler.choose(logits, request.positions[row : row + 1])[0]

    def log_probs(self, request: ChoiceRequest) -> Sequence[float]:
        """Return what Sampler.log_probs() does."""
        return request.sampler.log_probs(self._logits[request.rows], request.tree)

    def logprobs(self, request: ChoiceRequest, accepted: AcceptedPath) -> tuple[TokenLogprob, ...]:
        """Return what token_logprobs() does; nothing where none were asked for."""
        if request.num_logprobs is None:
            return ()
        return token_logprobs(self._logits[request.rows], request.tree, accepted, request.num_logprobs)


class BatchedChoices(RowChoices):
    """Choices for all rows of requests without rules, made on the device and copied to the host at once.

    What the device needs for them is sent here: behind the layers of a pass, an upload would wait for all of them.
    Those of requests with rules are made when they are asked for: a mask of tokens takes the host as long as a small
    pass, and only rows on the path get one.
    """

    def __init__(self, requests: Sequence[ChoiceRequest], vocab: int, device: torch.device) -> None:
        super().__init__()
        free = [one for one in requests if one.sampler.rules is None]
        chunks = list(_chunks([one for one in free if not one.sampler.sampling.greedy], vocab))
        judged = _chunks([one for one in free if one.num_logprobs is not None], vocab)
        self._drawing = [_drawing_rows(members, device) for members in chunks if members[0].sampler.sampling.draws]
        self._typical = [_typical_rows(members, device) for members in chunks if not members[0].sampler.sampling.draws]
        self._judged = [_Rows(members, device, *_edges(members)) for members in judged]
        self._has_rules = len(free) < len(requests)
        self._copy: _HostCopy | None = None
        self._log_probs: dict[int, NDArray[np.float64]] = {}
        self._logprobs: dict[int, NDArray[np.float64]] = {}

    def choose(self, logits: Tensor) -> None:
        if self._has_rules:  # else the logits can go with the pass: a GPU has little room for two of them
            super().choose(logits)
        tokens = likeliest = logits.argmax(-1)
        for rows in self._drawing:
            tokens = tokens.index_copy(0, rows.index, drawn(rows.distributions(logits), rows.sent[0]))
        self._copy = _HostCopy(
            [
                _finite(logits, likeliest, tokens),
                *(_typical_log_probs(rows, logits) for rows in self._typical),
                *(_judged_log_probs(rows, logits, tokens) for rows in self._judged),
            ]
        )

    def read(self) -> None:
        assert self._copy is not None
        chosen, *arrays = self._copy.arrays()
        self._tokens = chosen.astype(np.int64).tolist()
        self._log_probs = _by_first_row(self._typical, arrays[: len(self._typical)])
        self._logprobs = _by_first_row(self._judged, arrays[len(self._typical) :])

    def token(self, request: ChoiceRequest, node: int) -> int:
        if request.sampler.rules is not None:
            return super().token(request, node)
        return self._tokens[request.first + 1 + node]

    def log_probs(self, request: ChoiceRequest) -> Sequence[float]:
        if request.sampler.rules is not None:
            return super().log_probs(request)
        return self._log_probs[request.first][1:].tolist()  # type: ignore[no-any-return] # numpy's tolist

    def logprobs(self, request: ChoiceRequest, accepted: AcceptedPath) -> tuple[TokenLogprob, ...]:
        if request.num_logprobs is None or request.sampler.rules is not None:
            return super().logprobs(request, accepted)
        rows, path = self._logprobs[request.first], [1 + node for node in accepted.path]
        own = [*rows[path, 0].tolist(), *([] if accepted.bonus is None else [float(rows[path[-1] if path else 0, 1])])]
        tops, values = np.split(rows[[0, *path][: len(own)], 2:], 2, axis=1)
        num_top = request.num_logprobs  # others of the chunk may have asked for more
        return _framed(own, tops[:, :num_top].astype(np.int64).tolist(), values[:, :num_top].tolist())


def _path_to(tree: DraftTree, node: int) -> list[int]:
    """Return the nodes from the first level to this one; none for the root."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


def argmax(logits: Tensor) -> list[int]:
    """Return the first largest index of every row, as torch's argmax does; NOT_FINITE where there is no largest."""
    # The largest logit alone tells: NaN counts as larger than all numbers, and -inf elsewhere is a token ruled out.
    # numpy's argmax is 8 times as fast as torch's on a CPU. Both return the first of equal values, which replies must
    # not depend on.
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        values = logits.numpy()
        largest = values.argmax(-1)
        finite = np.isfinite(np.take_along_axis(values, largest[:, None], -1)[:, 0])
        return np.where(finite, largest, NOT_FINITE).tolist()  # type: ignore[no-any-return] # numpy's tolist
    return _finite(logits, logits.argmax(-1)).tolist()


def _finite(logits: Tensor, likeliest: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the tokens chosen, else the likeliest; NOT_FINITE where even that one's logit is no finite number."""
    # Marked on the device: a flag of its own would be one more transfer, and the host would wait for it.
    is_finite = logits.gather(-1, likeliest[:, None])[:, 0].isfinite()
    return (likeliest if chosen is None else chosen).where(is_finite, NOT_FINITE)


def token_logprobs(logits: Tensor, tree: DraftTree, accepted: AcceptedPath, num_top: int) -> tuple[TokenLogprob, ...]:
    """Return log probabilities of path and bonus, each with the `num_top` likeliest tokens in its place.

    logits: [1 + nodes, vocab] of root and nodes, before temperature, top-k and top-p. Raises Violation for NaN.
    """
    bonus = () if accepted.bonus is None else (accepted.bonus,)
    tokens = torch.tensor([*tree.path_tokens(accepted.path), *bonus], device=logits.device)
    rows = [0, *(1 + node for node in accepted.path)][: len(tokens)]  # logits of a row predict the token after it
    judged = logits[rows].float()
    likeliest, top = judged.topk(min(num_top, judged.shape[-1]))
    scores = torch.cat([judged.gather(-1, tokens[:, None]), likeliest], dim=-1)
    logprobs = _within_frame(scores - judged.logsumexp(-1, keepdim=True))
    return _framed(logprobs[:, 0].tolist(), top.tolist(), logprobs[:, 1:].tolist())


def _within_frame(logprobs: Tensor) -> Tensor:
    # Rounding may give slightly more than 0, and -inf does not fit the frame: both would be refused as malformed.
    return logprobs.clamp(MIN_LOGPROB, 0.0)


def _framed(
    own: Sequence[float], tops: Sequence[Sequence[int]], values: Sequence[Sequence[float]]
) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(logprob, tuple(zip(top, likeliest, strict=True)))
        for logprob, top, likeliest in zip(own, tops, values, strict=True)
    )


def _chunks(requests: Sequence[ChoiceRequest], vocab: int) -> Iterator[list[ChoiceRequest]]:
    """Yield requests that are processed alike, as many at once as there is memory for, in the order of their rows."""

    def kind(request: ChoiceRequest) -> tuple[bool, bool]:
        return request.sampler.sampling.draws, request.sampler.sampling.top_p < 1.0

    for _, alike in groupby(sorted(requests, key=kind), kind):
        chunk, num_rows = list[ChoiceRequest](), 0
        for request in alike:
            if chunk and (num_rows + len(request.positions)) * vocab > _VALUES:
                yield chunk
                chunk, num_rows = [], 0
            chunk.append(request)
            num_rows += len(request.positions)
        yield chunk


class _Rows:
    """The rows of a chunk's members, one behind the other, with what is known of them before the pass.

    `more` [k, rows]: sent along, as `sent`. `index` [rows]: where they lie in the logits of the pass.
    """

    def __init__(self, members: Sequence[ChoiceRequest], device: torch.device, *more: Sequence[float]) -> None:
        self.members = members
        self._samplings = [one.sampler.sampling for one in members]
        sizes = [len(one.positions) for one in members]
        index = [row for one in members for row in range(one.rows.start, one.rows.stop)]
        table = [index, *np.repeat(filters(self._samplings), sizes, axis=1), *more]
        # All in one upload, in a type that holds the smallest uniform's bits as well as any row's number.
        sent = torch.from_numpy(np.array(table, np.float64)).to(device)
        self.index, self._filters, self.sent = sent[0].long(), sent[1:5], sent[5:]

    def of(self, logits: Tensor) -> Tensor:
        """Return their rows of the pass's logits."""
        first, stop = self.members[0].first, self.members[-1].rows.stop
        return logits[first:stop] if len(self.index) == stop - first else logits[self.index]

    def distributions(self, logits: Tensor) -> Tensor:  # [rows, vocab] float64
        return distributions(self.of(logits), self._filters, self._samplings)


def _drawing_rows(members: Sequence[ChoiceRequest], device: torch.device) -> _Rows:
    return _Rows(members, device, [u for one in members for u in uniforms(one.sampler.sampling.seed, one.positions)])


def _typical_rows(members: Sequence[ChoiceRequest], device: torch.device) -> _Rows:
    epsilon = [one.sampler.sampling.epsilon for one in members for _ in one.positions]
    alpha = [one.sampler.sampling.alpha for one in members for _ in one.positions]
    return _Rows(members, device, *_edges(members), epsilon, alpha)


def _typical_log_probs(rows: _Rows, logits: Tensor) -> Tensor:
    """Return what Sampler.log_probs() does, [rows]: row by row, with a number that says nothing for roots."""
    parents, tokens = rows.sent[:2].long()
    return _typical(rows.distributions(logits), parents, tokens, rows.sent[2], rows.sent[3])


def _judged_log_probs(rows: _Rows, logits: Tensor, chosen: Tensor) -> Tensor:
    """Return log probabilities and likeliest tokens, [rows, 2 + 2k] float64.

    Columns: ln p of the row's own token, below its parent; ln p of the token `chosen` after the row; the k likeliest
    tokens after it; ln p of these.
    """
    parents, tokens = rows.sent.long()
    judged = rows.of(logits).float()
    # topk on the logits as they are: in float32 log probabilities neighbors can round to equals and change order.
    most = max(one.num_logprobs or 0 for one in rows.members)
    likeliest, top = judged.topk(min(most, judged.shape[-1]))
    norms = judged.logsumexp(-1, keepdim=True)
    after = judged.gather(-1, chosen[rows.index][:, None]) - norms
    own = judged[parents, tokens][:, None] - norms[parents]
    return torch.cat([_within_frame(torch.cat([own, after], -1)), top.double(), _within_frame(likeliest - norms)], -1)


def _edges(members: Sequence[ChoiceRequest]) -> tuple[list[int], list[int]]:
    """Return for the row of every node its parent's row and its token; for a root, its own row and token 0."""
    parents: list[int] = []
    tokens: list[int] = []
    for one in members:
        root = len(parents)
        parents += [root, *(root + 1 + parent for parent in one.tree.parents)]
        tokens += [0, *one.tree.tokens]
    return parents, tokens


class _HostCopy:
    """One transfer of many tensors to the host, begun at once. float64 holds token ids and float32 as they are."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        flat = torch.cat([tensor.double().flatten() for tensor in tensors])
        self._flat, self._copied = flat, None
        if flat.device.type == "cuda":
            # Pinned: into other memory the host would copy by itself, and wait for the whole pass before.
            self._flat = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._copied = torch.cuda.current_stream(flat.device).record_event()

    def arrays(self) -> list[NDArray[np.float64]]:
        """Wait for the copy, and return the tensors."""
        if self._copied is not None:
            self._copied.synchronize()
        ends = np.cumsum([shape.numel() for shape in self._shapes])[:-1]
        parts = np.split(self._flat.cpu().numpy(), ends)
        return [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _by_first_row(chunks: Sequence[_Rows], arrays: Sequence[NDArray[np.float64]]) -> dict[int, NDArray[np.float64]]:
    """Return each member's rows, by its `first`."""
    found: dict[int, NDArray[np.float64]] = {}
    for chunk, rows in zip(chunks, arrays, strict=True):
        ends = np.cumsum([len(one.positions) for one in chunk.members])[:-1]
        found |= {one.first: part for one, part in zip(chunk.members, np.split(rows, ends), strict=True)}
    return found
