"""Sampling noise: pinned values, because both sides and every resumed session must draw the same."""

from outrider_proto.sampling_noise import uniform


def test_the_numbers_stay_what_they_are():
    assert [uniform(7, position) for position in (0, 255, 256, 10_000)] == [
        0.8720734548196941,
        0.6491573348503302,
        0.8824668302537386,
        0.2480535525760188,
    ]
