"""A paced server: passes last what the hardware says, and features weigh what its model's would."""

import numpy as np
import pytest
from talk import PROMPT, TAP, conversing, serving
from tiny_targets import random_tokens, target

from outrider_drafters.emulation.pace import Pace
from outrider_proto.feature_codec import typical_payload_bytes
from outrider_proto.frames import Features, Sampling, Verdict
from outrider_proto.tree import DraftTree
from outrider_proto.wire import server_frame_to_proto
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence

PACE = Pace("p", "made up", 40.0, 3.0, 3.0, row_us=500.0)


class Watch:
    """A clock on which a pass of the real target takes 10 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += 0.010
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def run(engine: Engine, num_rows: int):
    """One pass."""
    work = StepInput(
        Sequence(target().kv, None), random_tokens(np.random.default_rng(0), num_rows), DraftTree(), CHOOSER
    )
    return engine.verify([work])[0]


CHOOSER = Sampler(Sampling())


@pytest.mark.parametrize(("num_rows", "left"), [(1, 0.030), (64, 0.030), (104, 0.050)])
def test_a_pass_sleeps_for_what_is_left_of_its_time(num_rows, left):
    watch = Watch()
    result = run(Engine(target(), PACE, watch, watch.sleep), num_rows)
    assert watch.slept == pytest.approx([left])
    assert result.timing.ended - result.timing.started == pytest.approx(left + 0.020)


def test_what_is_verified_does_not_depend_on_the_pace():
    watch = Watch()
    assert run(Engine(target(), PACE, watch, watch.sleep), 9).accepted == run(Engine(target()), 9).accepted


async def test_verdicts_tell_the_paced_time_and_features_are_padded():
    pace = Pace("p", "", 20.0, 0.0, 0.0, feature_width=2048)
    async with serving(pace=pace) as verifier, conversing(verifier, tap=TAP) as talk:
        await talk.draft(0, PROMPT[:-1], PROMPT[-1])
        await talk.draft(len(PROMPT), (), 5, features_from=len(PROMPT))
        frames = [await talk.receive() for _ in range(5)]  # 12 rows of 2048 are two pieces
    verdicts = [frame for frame in frames if isinstance(frame, Verdict)]
    assert all(verdict.verify_us >= 20_000 for verdict in verdicts)
    segments = [frame for frame in frames if isinstance(frame, Features)]
    assert [len(segment.rows) for segment in segments] == [8, 4, 1]
    sizes = [sum(message.ByteSize() for message in server_frame_to_proto(segment, "int8")) for segment in segments]
    assert sizes == pytest.approx([typical_payload_bytes("int8", n, 2048) for n in (8, 4, 1)], rel=0.02)
