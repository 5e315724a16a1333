"""Tapes made by hand: it is known which drafts are accepted and which outcomes come true."""

from outrider_lab.virtual.tape import MARGIN, Guess, Tape, TapedAnswer, TapedPosition, Vocabulary
from outrider_lab.virtual.texts import TapedTexts
from outrider_proto.frames import TapInfo

VOCAB = 40
EOS = 0
PROMPT = (1, 2, 3)
LEVELS = 4
CYCLE = LEVELS + 1  # tokens a verdict, where all that is drafted is right
BELIEVED, NEXT, OTHERS = -0.2, -1.71, -10.0  # log-probabilities by rank
RIGHT, SECOND, NEVER = 0, 1, 20  # ranks of the target's token among the guesses


def answer_of(length, salt=0):
    """No two neighbors alike."""
    return tuple(4 + (7 * i + i // 30 + salt) % 30 for i in range(length))


def guess(token, rank):
    """The target's token at its rank among others that it never writes there."""
    others = [other for other in range(4, VOCAB) if other != token][:23]
    tokens = [*others[:rank], token, *others[rank:]]
    return Guess(tuple(tokens), (BELIEVED, NEXT, *(OTHERS - 0.1 * position for position in range(len(tokens) - 2))))


def recording_of(limit, ranks=lambda number: RIGHT, name="hand-0", prompt=PROMPT, salt=0):
    """The answer's token number n is at rank ranks(n) in whatever is drafted."""
    answer = answer_of(limit + MARGIN, salt)
    positions = []
    for root in range(len(answer)):
        ahead = range(root + 1, min(root + LEVELS + 2, len(answer)))
        guesses = {answer[root + 1 : number]: guess(answer[number], ranks(number)) for number in ahead}
        positions.append(TapedPosition(guesses))
    return TapedAnswer(name, prompt, answer, tuple(positions), limit)


def tape_of(*recordings, breadth=4, levels_per_pass=1):
    tap = TapInfo("hand-tap", "hand", 4)
    rows = ((0.5, -1.0, 2.0, 0.25), (1.0, 1.0, -2.0, 0.125))
    vocabulary = Vocabulary(VOCAB, (EOS,), 512)
    return Tape("hand", tap, True, True, levels_per_pass, vocabulary, breadth, LEVELS, None, True, rows, recordings)


def texts_of(*recordings):
    return TapedTexts(tape_of(*recordings))
