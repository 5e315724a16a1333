"""A link leaves nothing when its owner is killed; deliberate leftovers are found and removed."""

import os
import select
import subprocess
import sys

import pytest

from outrider_netsim.namespaces import processes
from outrider_netsim.namespaces.processes import find_leftovers, remove_leftovers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leftovers are Linux's")

OWNER = """
import asyncio, sys
from outrider_netsim.core.addresses import Address
from outrider_netsim.core.errors import EngineError
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.tun import TunLink

async def main():
    async with TunLink(LinkPlan(Profile.symmetric("any", Direction(delay_ms=1)), Address("127.0.0.1", 1))) as link:
        await link.run(["sh", "-c", "sleep 1001 & setsid sh -c 'echo ready; exec sleep 1000' & wait"])
try:
    asyncio.run(main())
except EngineError as error:
    print(error)
"""


@pytest.fixture
def owner():
    """Start a process with a link, and a command behind it that starts more processes."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        try:
            said = owner.stdout.readline().strip()
            if said != "ready":
                pytest.skip(said)
            yield owner
        finally:
            owner.kill()


def belonging_to(owner):
    mark = processes.process(owner.pid).mark
    return [row for row in processes.processes() if processes.mark_of(row.pid) == mark]


def kill_and_wait(victims, others):
    handles = [os.pidfd_open(row.pid) for row in [*victims, *others]]
    for row in victims:
        processes.kill(row)
    for handle in handles:
        assert select.select([handle], [], [], 30)[0], "still there after 30 s"
        os.close(handle)


def test_what_outlives_a_killed_holder_is_found_and_removed(owner):
    theirs = belonging_to(owner)
    holder = next(row for row in theirs if row.parent == owner.pid and processes.descendants(row.pid))
    aside = next(row for row in theirs if os.getsid(row.pid) == row.pid)  # setsid sleep
    kill_and_wait([holder], [row for row in theirs if row.parent == holder.pid])
    assert aside.pid not in {found.pid for found in find_leftovers()}  # its owner lives
    kill_and_wait([processes.process(owner.pid)], [])
    assert f"removed process {aside.pid} (sleep 1000)" in remove_leftovers()
    assert aside.pid not in {found.pid for found in find_leftovers()}


def test_what_a_living_owner_has_is_left_alone():
    with subprocess.Popen(["sleep", "1000"], env=os.environ | {processes.MARK: processes.own_mark()}) as child:
        assert not any(found.pid == child.pid for found in find_leftovers())
        remove_leftovers()
        assert child.poll() is None
        child.kill()
