"""The choice of the target's token after every row: argmax, or a draw from the processed distribution.

The draw for position p uses one uniform number that depends on (seed, p) alone, from a counter-based generator. So the
choice depends neither on the tree it is compared with, nor on batching, nor on interruptions of the session.

Two ways lead to the same tokens. `RowChoices` draws when it is asked: nodes beside the path cost nothing, but the host
waits for each answer. `BatchedChoices` draws for all rows of all sessions beforehand, on the device, and copies the
tokens to the host at once; what it sends to the device it sends before the pass. Rules of an answer, typical acceptance
and log probabilities are computed for one session at a time in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider_drafters.contracts.token_draw import choose_tokens, distribution, distributions, drawn, filters, uniforms
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_proto.frames import MIN_LOGPROB, Sampling, TokenLogprob
from outrider_proto.tree import ROOT, DraftTree
from outrider_server.engine.acceptance import NOT_TYPICAL, AcceptedPath

NOT_FINITE = -1  # in place of a token
_ENTROPY_FLOOR = 1e-5  # keeps ln finite; part of the published rule
_VALUES = 2**24  # of a distribution that are held at once, 128 MiB in float64


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """Choose tokens by `sampling`, from logits that the `rules` of the answer have changed."""

    sampling: Sampling
    rules: AnswerRules | None = None

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
        p = self.distribution(logits[rows])
        entropy = -(p * (p + _ENTROPY_FLOOR).log()).sum(-1)
        threshold = (self.sampling.alpha * (-entropy).exp()).clamp(max=self.sampling.epsilon)
        drafted = p[row, tokens]
        return torch.where(drafted > threshold[row], drafted.log(), NOT_TYPICAL).tolist()


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

    @property
    def reads_logits(self) -> bool:
        """True if tokens are not all that it wants to know."""
        sampler = self.sampler
        return sampler.rules is not None or self.num_logprobs is not None or sampler.sampling.acceptance == "typical"


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
    """Tokens for all rows of requests without rules, made on the device and copied to the host at once.

    What the device needs for them is sent here: behind the layers of a pass, an upload would wait for all of them.
    Those of requests with rules are made when they are asked for: a mask of tokens takes the host as long as a small
    pass, and only rows on the path get one.
    """

    def __init__(self, requests: Sequence[ChoiceRequest], device: torch.device) -> None:
        super().__init__()
        drawing = [one for one in requests if one.sampler.rules is None and one.sampler.sampling.draws]
        # top-p sorts the whole vocabulary: only for those who want it.
        kinds = ([one for one in drawing if (one.sampler.sampling.top_p < 1.0) == sorts] for sorts in (False, True))
        self._drawing = [_DrawingRows(members, device) for members in kinds if members]
        self._reads_logits = any(one.reads_logits for one in requests)
        self._chosen = torch.empty(0)  # of every row, on the device

    def choose(self, logits: Tensor) -> None:
        tokens = likeliest = logits.argmax(-1)
        for rows in self._drawing:
            tokens = tokens.index_copy(0, rows.index, rows.drawn(logits))
        self._chosen = _finite(logits, likeliest, tokens)
        if self._reads_logits:  # else the logits can go with the pass: a GPU has little room for two of them
            super().choose(logits)

    def read(self) -> None:
        self._tokens = self._chosen.tolist()

    def token(self, request: ChoiceRequest, node: int) -> int:
        if request.sampler.rules is not None:
            return super().token(request, node)
        return self._tokens[request.first + 1 + node]


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
    # numpy's argmax is 8 times as fast as torch's on a CPU, and 30 times in bfloat16. Both return the first of equal
    # values, which replies must not depend on.
    if logits.device.type == "cpu":
        values = logits.to(torch.promote_types(logits.dtype, torch.float32)).numpy()
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
    # topk on the logits as they are: in float32 log probabilities neighbors can round to equals and change order.
    best, likeliest = judged.topk(min(num_top, judged.shape[-1]))
    scores = torch.cat([judged.gather(-1, tokens[:, None]), best], dim=-1)
    # Rounding may give slightly more than 0, and -inf does not fit the frame: both would be refused as malformed.
    logprobs = (scores - judged.logsumexp(-1, keepdim=True)).clamp(MIN_LOGPROB, 0.0)
    return tuple(
        TokenLogprob(logprob, tuple(zip(top, values, strict=True)))
        for logprob, top, values in zip(
            logprobs[:, 0].tolist(), likeliest.tolist(), logprobs[:, 1:].tolist(), strict=True
        )
    )


class _DrawingRows:
    """All rows of some requests: `index` [rows] is where they lie in the logits of the pass."""

    def __init__(self, members: Sequence[ChoiceRequest], device: torch.device) -> None:
        self._samplings = [one.sampler.sampling for one in members]
        index = [row for one in members for row in range(one.rows.start, one.rows.stop)]
        numbers = [u for one in members for u in uniforms(one.sampler.sampling.seed, one.positions)]
        table = [index, *np.repeat(filters(self._samplings), [len(one.positions) for one in members], axis=1), numbers]
        # All in one upload, in a type that holds the smallest uniform's bits as well as any row's number.
        sent = torch.from_numpy(np.array(table, np.float64)).to(device)
        self.index, self._filters, self._uniforms = sent[0].long(), sent[1:5], sent[5]

    def drawn(self, logits: Tensor) -> Tensor:
        """Draw their tokens [rows] from the logits [n, vocab] of the pass."""
        size = max(_VALUES // logits.shape[-1], 1)
        parts = torch.split(self.index, size), torch.split(self._filters, size, 1), torch.split(self._uniforms, size)
        return torch.cat(
            [drawn(distributions(logits[i], kept, self._samplings), u) for i, kept, u in zip(*parts, strict=True)]
        )
