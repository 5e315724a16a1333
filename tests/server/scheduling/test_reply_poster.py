"""Replies run on the event loop in order, and one wake-up serves all that were posted."""

import pytest

from outrider_server.scheduling.reply_poster import ReplyPoster


class CountingLoop:
    """Counts wake-ups and runs their callbacks when told to."""

    def __init__(self) -> None:
        self.waking: list = []

    def call_soon_threadsafe(self, callback) -> None:
        self.waking.append(callback)

    call_soon = call_soon_threadsafe

    def run(self) -> None:
        waking, self.waking = self.waking, []
        for callback in waking:
            callback()


def test_one_wake_up_serves_all_that_were_posted():
    loop, seen, replies = CountingLoop(), [], ReplyPoster()
    replies.attach(loop)
    replies.wake()
    assert not loop.waking
    for number in range(3):
        replies.post(lambda number=number: seen.append(number))
    assert not loop.waking
    for _ in range(2):
        with replies.waking_alongside():
            replies.wake()
    replies.post(lambda: replies.post(lambda: seen.append(4)))
    assert len(loop.waking) == 1
    loop.run()
    assert seen == [0, 1, 2, 4]
    replies.stop()
    assert not loop.waking


def test_an_error_keeps_no_reply_back():
    loop, seen, replies = CountingLoop(), [], ReplyPoster()
    replies.attach(loop)
    replies.post(lambda: 1 / 0)
    replies.post(lambda: seen.append(1))
    replies.stop()
    with pytest.raises(ZeroDivisionError):
        loop.run()
    loop.run()
    assert seen == [1]
