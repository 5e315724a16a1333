"""A link leaves nothing when its owner is killed; deliberate leftovers are found and removed."""

import os
import select
import shutil
import subprocess
import sys

import pytest

from outrider_netsim.namespaces import processes
from outrider_netsim.namespaces.leftovers import Leftover, find_leftovers, remove_leftovers

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
    assert str(aside.pid) not in {found.name for found in find_leftovers()}  # its owner lives
    kill_and_wait([processes.process(owner.pid)], [])
    left = Leftover("process", str(aside.pid), "sleep 1000")
    assert left in find_leftovers()
    assert f"removed {left}" in remove_leftovers()
    assert left not in find_leftovers()


def test_what_a_living_owner_has_is_left_alone():
    with subprocess.Popen(["sleep", "1000"], env=os.environ | {processes.MARK: processes.own_mark()}) as child:
        assert not any(found.name == str(child.pid) for found in find_leftovers())
        remove_leftovers()
        assert child.poll() is None
        child.kill()


MADE_BY_HAND = """
mount -t tmpfs none /run
ip netns add outrider-test
ip netns add another
ip link add outrider-x type veth peer another
"$0" -c "from outrider_netsim.namespaces.leftovers import *; print(*remove_leftovers(), *find_leftovers(), sep='; ')"
ip netns list
"""


@pytest.mark.root
def test_interfaces_and_namespaces_by_our_name_are_removed():
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2, to make some in a network and a mount namespace of their own")
    argv = ["unshare", "--net", "--mount", "sh", "-ec", MADE_BY_HAND, sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["removed interface outrider-x; removed namespace outrider-test", "another"]
