"""The tape: one drafter's guesses at every token of the target's answers, with fresh features and late ones.

    answer     t0   t1   t2   t3 ...          position i: the root is t_i, and everything up to it is known
                |    |
                |    guesses[()]              most likely tokens after the root of position 1
                |    guesses[(5,)]            ... and after token 5 below that root
                guesses of position 0

Guesses are the most likely next tokens of every expanded node and every leaf of the tree, so that trees of any shape
within the taped one can be grown again, and outcomes ranked. Answers are longer than what a replay may ask for, so that
the last draft is judged as the others are. A file is JSON, compressed if its name ends in .gz.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json, read_packed, write_atomically
from outrider_proto.frames import TapInfo

FORMAT = 1
MARGIN = 16  # tokens taped beyond the longest answer that a replay may ask for
_UNIT = 1000  # log-probabilities in the file are whole thousandths of a nat
TokenPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Guess:
    """The most likely next tokens in order, and their log-probabilities over the whole vocabulary."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TapedPosition:
    """Guesses by the path of tokens drafted below the root."""

    guesses: Mapping[TokenPath, Guess]


@dataclass(frozen=True, slots=True)
class TapedAnswer:
    """One prompt, the target's greedy answer and a position for each of its tokens.

    `limit`: tokens that a replay may ask for; the answer is shorter only where it ends by itself. `late`: the positions
    again, by how many tokens before the root lack their features (the answer's at most).

    `category` is that of a user's question, whose name is its `question_id`, with the turn if it has several (`81.2`);
    None: of the corpus, where names begin with the family.
    """

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    positions: tuple[TapedPosition, ...]
    limit: int
    late: Mapping[int, tuple[TapedPosition, ...]] = field(default_factory=dict)
    category: str | None = None

    @property
    def family(self) -> str:
        return self.name.partition("-")[0] if self.category is None else self.category


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Facts about the target that a replay needs."""

    size: int
    eos_token_ids: tuple[int, ...]
    max_context: int


@dataclass(frozen=True, slots=True)
class Tape:
    """Everything taped of one drafter and target.

    `rows` are some of the target's own feature rows, so that replayed frames have real sizes. `breadth` and `levels`:
    the widest and deepest trees that can be grown again; `choices`: paths of the fixed trees instead, where the drafter
    was made for those. `endless`: the drafter can go on from its own guesses without end; `stale_tolerant`,
    `tree_in_one_pass` and `levels_per_pass` as in drafters.
    """

    drafter: str
    tap: TapInfo
    stale_tolerant: bool
    tree_in_one_pass: bool
    levels_per_pass: int
    vocabulary: Vocabulary
    breadth: int
    levels: int
    choices: tuple[TokenPath, ...] | None
    endless: bool
    rows: tuple[tuple[float, ...], ...]
    recordings: tuple[TapedAnswer, ...]

    def num_passes(self, levels: int) -> int:
        """Return how many passes of the drafter so many levels take."""
        return -(-levels // self.levels_per_pass)

    def save(self, path: Path) -> None:
        """Write the tape atomically. Raises UsageError."""
        # mtime=0 below: equal tapes give equal files.
        data = json.dumps(_as_dict(self), separators=(",", ":")).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Tape:
        """Read a tape. Raises UsageError for other files and formats."""
        data = read_packed(path)
        try:
            found = parse_json(data, path)
        except UsageError as error:
            raise UsageError(f"{error}: not a tape; make one with outrider-lab record") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UsageError(f"{path}: not a tape of format {FORMAT}; make one with outrider-lab record")
        try:
            return _tape(found)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: a damaged tape ({error!r}); make one with outrider-lab record") from error


@dataclass(frozen=True, slots=True)
class Thinning:
    """A worse drafter: the share of the answer's tokens that it misses. Raises UsageError unless it is 0 to 1.

    Which tokens are hard is drawn from the seed, each with probability `share`. Wherever the target's token at such a
    position was guessed, it moves down the list to rank breadth + k with probability 2^-(k + 1): below all that is
    drafted, but not below all that may be predicted as a bonus. Probabilities keep their ranks, so that the drafter is
    as confident as before. Trees keep their sizes and times; tau falls with the share.
    """

    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"thin={self.share:g}: need 0 to 1")


def thinned(tape: Tape, thinning: Thinning) -> Tape:
    """Return the tape that a worse drafter would have made."""
    if not thinning.share:
        return tape
    return replace(tape, recordings=tuple(_thinned(each, tape.breadth, thinning) for each in tape.recordings))


def _thinned(recording: TapedAnswer, breadth: int, thinning: Thinning) -> TapedAnswer:
    ranks = [_rank(recording.name, number, breadth, thinning) for number in range(len(recording.answer))]

    def harder(positions: Sequence[TapedPosition]) -> tuple[TapedPosition, ...]:
        return tuple(
            _thinned_position(position, recording.answer, root, ranks) for root, position in enumerate(positions)
        )

    late = {lag: harder(positions) for lag, positions in recording.late.items()}
    return replace(recording, positions=harder(recording.positions), late=late)


def _rank(name: str, number: int, breadth: int, thinning: Thinning) -> int | None:
    """Return the rank that this token of the answer moves to, or None where it stays."""
    # One generator per token: which tokens are hard must not depend on order or on other answers.
    generator = random.Random(f"{thinning.seed}/{name}/{number}")
    if generator.random() >= thinning.share:
        return None
    rank = breadth
    while generator.random() < 0.5:
        rank += 1
    return rank


def _thinned_position(position: TapedPosition, answer: TokenPath, root: int, ranks: list[int | None]) -> TapedPosition:
    """Demote the hard tokens along the answer, from its token `root` on."""
    changed = {}
    for following in range(root + 1, len(answer)):
        path = answer[root + 1 : following]
        if path not in position.guesses:
            break
        rank = ranks[following]
        if rank is not None:
            changed[path] = _demoted(position.guesses[path], answer[following], rank)
    return TapedPosition({**position.guesses, **changed}) if changed else position


def _demoted(guess: Guess, token: int, rank: int) -> Guess:
    if token not in guess.tokens[:rank]:
        return guess
    others = [other for other in guess.tokens if other != token]
    return replace(guess, tokens=(*others[:rank], token, *others[rank:]))


def _as_dict(tape: Tape) -> dict[str, object]:
    tap, vocabulary = tape.tap, tape.vocabulary
    return {
        "format": FORMAT,
        "drafter": tape.drafter,
        "tap": [tap.fingerprint, tap.family, tap.width, tap.newest_only],
        "stale_tolerant": tape.stale_tolerant,
        "tree_in_one": tape.tree_in_one_pass,
        "levels_per_pass": tape.levels_per_pass,
        "vocabulary": [vocabulary.size, vocabulary.eos_token_ids, vocabulary.max_context],
        "breadth": tape.breadth,
        "levels": tape.levels,
        "choices": tape.choices,
        "endless": tape.endless,
        "rows": [[round(value, 4) for value in row] for row in tape.rows],
        "recordings": [_recording_as_dict(recording) for recording in tape.recordings],
    }


def _recording_as_dict(recording: TapedAnswer) -> dict[str, object]:
    return {
        "name": recording.name,
        "prompt": recording.prompt,
        "answer": recording.answer,
        "limit": recording.limit,
        "places": _packed_positions(recording.positions),
        # Pairs, not an object: JSON would turn the lags into strings.
        "late": [[lag, _packed_positions(positions)] for lag, positions in recording.late.items()],
        **({} if recording.category is None else {"category": recording.category}),
    }


def _packed_positions(positions: Sequence[TapedPosition]) -> list[object]:
    return [[[path, *_packed(guess)] for path, guess in position.guesses.items()] for position in positions]


def _packed(guess: Guess) -> tuple[tuple[int, ...], list[int]]:
    # Whole numbers compress better than floats.
    return guess.tokens, [round(value * _UNIT) for value in guess.log_probabilities]


def _tape(found: dict[str, Any]) -> Tape:  # Any: a file's content
    fingerprint, family, width, newest_only = found["tap"]
    size, eos, max_context = found["vocabulary"]
    return Tape(
        drafter=found["drafter"],
        tap=TapInfo(fingerprint, family, width, newest_only),
        stale_tolerant=found["stale_tolerant"],
        tree_in_one_pass=found["tree_in_one"],
        levels_per_pass=found["levels_per_pass"],
        vocabulary=Vocabulary(size, tuple(eos), max_context),
        breadth=found["breadth"],
        levels=found["levels"],
        choices=None if found["choices"] is None else tuple(tuple(path) for path in found["choices"]),
        endless=found["endless"],
        rows=tuple(tuple(row) for row in found["rows"]),
        recordings=tuple(_recording(each) for each in found["recordings"]),
    )


def _recording(found: dict[str, Any]) -> TapedAnswer:  # Any: as above
    return TapedAnswer(
        name=found["name"],
        prompt=tuple(found["prompt"]),
        answer=tuple(found["answer"]),
        positions=tuple(_place(each) for each in found["places"]),
        limit=found["limit"],
        late={lag: tuple(map(_place, positions)) for lag, positions in found.get("late", ())},
        category=found.get("category"),
    )


def _place(found: list[Any]) -> TapedPosition:  # Any: as above
    return TapedPosition(
        {tuple(path): Guess(tuple(tokens), tuple(v / _UNIT for v in values)) for path, tokens, values in found}
    )
