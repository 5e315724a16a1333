"""What a server may take for K/V: limits of containers and units, without the page cache, and at least a session."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_targets import target

from outrider_proto.errors import UsageError
from outrider_server.config.config import LimitsConfig
from outrider_server.kv.budget import cgroup_bytes, free_bytes, swap_bytes
from outrider_server.sessions.verifier import Verifier

G = 2**30
ENDLESS = 2**62


def machine(root: Path, groups: str, files: dict[str, str | int]) -> Path:
    """A tree with /proc/self/cgroup and files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return root


def test_in_a_container_the_cache_of_the_checkpoint_is_free(tmp_path):
    """15 GiB of its own, the rest pages of the files that it has read."""
    files = {
        "memory.max": 24 * G,
        "memory.current": 24 * G,
        "memory.stat": f"anon {15 * G}\nfile {9 * G}\ninactive_file {9 * G}\nfile_mapped {2 * G}",
    }
    assert cgroup_bytes(machine(tmp_path, "0::/\n", files)) == 7 * G


def test_the_limits_of_a_unit_and_of_the_slices_above_it(tmp_path):
    unit = "system.slice/outrider.service"
    files = {
        f"{unit}/memory.max": "max",
        f"{unit}/memory.high": 6 * G,
        f"{unit}/memory.current": 1 * G,
        "system.slice/memory.max": 20 * G,
        "system.slice/memory.current": 17 * G,
    }
    assert cgroup_bytes(machine(tmp_path, f"0::/{unit}\n", files)) == 3 * G


@pytest.mark.parametrize("seen", ["docker/abc/", ""])
def test_version_1_also_where_the_container_does_not_see_its_path(tmp_path, seen):
    files = {
        f"memory/{seen}memory.limit_in_bytes": 8 * G,
        f"memory/{seen}memory.usage_in_bytes": 5 * G,
        f"memory/{seen}memory.stat": f"total_inactive_file {G}\ntotal_mapped_file 0",
    }
    assert cgroup_bytes(machine(tmp_path, "4:memory:/docker/abc\n1:cpu:/\n0::/\n", files)) == 4 * G


@pytest.mark.parametrize("files", [{}, {"memory.max": "max", "memory.current": 5}])
def test_no_limit(tmp_path, files):
    assert cgroup_bytes(machine(tmp_path, "0::/\n", files)) == ENDLESS


def test_of_the_host_a_gpus_sessions_get_a_quarter_and_its_own_none():
    own = replace(target().kv, device=torch.device("cpu"))
    gpu = replace(own, device=torch.device("cuda"))
    assert swap_bytes(None, own) == swap_bytes("0", gpu) == 0
    assert swap_bytes("3MiB", own) == 3 * 2**20
    assert swap_bytes(None, gpu) == pytest.approx(free_bytes(torch.device("cpu")) / 4, rel=0.2)
    with pytest.raises(UsageError, match=r"kv_swap=900TiB: need at most .*, all the memory of this machine"):
        swap_bytes("900TiB", own)
    with pytest.raises(UsageError, match="kv_swap=much: need a size such as 2GiB"):
        LimitsConfig(kv_swap="much")
    assert LimitsConfig(kv_swap="0").kv_swap == "0"


def test_no_server_starts_without_room_for_a_session():
    told = r"kv_memory=1KiB: 1 KiB hold 2 tokens of K/V, and a session needs at least 64 \(32 KiB\)"
    with pytest.raises(UsageError, match=told):
        Verifier(target(), limits=LimitsConfig(kv_memory="1KiB"))
