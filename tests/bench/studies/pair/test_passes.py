"""What a pass asks of its host, with the bounds that hold today. Python's time is not tested."""

import json

import numpy as np
import pytest
import torch
from golden_pairs import GOLDEN
from transformers import LlamaConfig
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.pair.pass_counts import DispatchCounter, PassCounts, TransferCounter
from outrider_bench.studies.pair.passes import (
    DRAFTS,
    LAYOUTS,
    SESSIONS,
    HollowTarget,
    PassCost,
    pass_costs,
)
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.memory import KVMemory
from outrider_server.scheduling.request import Request


@pytest.fixture(scope="module")
def costs() -> dict[tuple[str, str, int], PassCost]:
    config = LlamaConfig(num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2, head_dim=16)
    found = pass_costs(HollowTarget(config, "tiny"), 24, 1)
    return {(cost.kv, cost.draft, cost.sessions): cost for cost in found}


def test_operations_reads_and_uploads_are_counted():
    counts = PassCounts(0)
    with torch.inference_mode(), TransferCounter(counts), DispatchCounter(counts):
        product = torch.nn.functional.linear(torch.tensor([[1.0, 2.0]]), torch.ones(3, 2))
        host = product.view(3).transpose(0, 0).float().cpu()
        assert host.tolist() == [3.0, 3.0, 3.0]
        assert bool((product > 2).all())
    assert counts.kernels == {"aten::ones": 1, "aten::mm": 1, "aten::gt": 1, "aten::all": 1}
    assert counts.reads == {"cpu": 1, "aten::_local_scalar_dense": 1}
    assert counts.uploads == 1


def test_memory_that_is_used_again_is_read_again():
    counts = PassCounts(0)
    with torch.inference_mode(), TransferCounter(counts):
        for _ in range(5):
            assert torch.ones(64).mul(2).tolist() == [2.0] * 64
        assert torch.from_numpy(np.ones(2)).numpy().sum() == 2
    assert (counts.reads["tolist"], counts.uploads) == (5, 1)
    assert torch.from_numpy(np.zeros(1)).shape == (1,)
    assert counts.uploads == 1


def test_all_kinds_of_passes_are_measured(costs):
    assert list(costs) == [(kv, draft, count) for kv in LAYOUTS for count in SESSIONS for draft in DRAFTS]


@pytest.mark.parametrize("draft", ["chain of 4", "tree of 16"])
def test_sessions_that_are_alike_share_the_operations_of_a_layer(costs, draft):
    alone, crowd = costs["contiguous", draft, 1], costs["contiguous", draft, 32]
    assert alone.layer_kernels <= 30
    assert crowd.layer_kernels <= alone.layer_kernels + 16  # the K/V of 32 lie in several slabs
    assert crowd.kernels <= alone.kernels + 8  # with the masks of several groups


@pytest.mark.parametrize("draft", DRAFTS)
def test_in_pages_a_layer_asks_the_same_of_any_number_of_sessions(costs, draft):
    alone, *crowds = (costs["paged", draft, count] for count in SESSIONS)
    assert alone.layer_kernels <= 30
    for crowd in crowds:
        assert crowd.layer_kernels == alone.layer_kernels
        assert crowd.kernels <= alone.kernels + 8
        assert crowd.uploads <= alone.uploads + 1  # of what the paths move, where the one alone moved nothing


@pytest.mark.parametrize("kv", LAYOUTS)
@pytest.mark.parametrize("sessions", SESSIONS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_host_waits_twice_a_pass(costs, draft, sessions, kv):
    """For the target's tokens with all that is said of them, and for the features; whatever is drafted and chosen."""
    assert costs[kv, draft, sessions].reads == 2


@pytest.mark.parametrize("kv", LAYOUTS)
def test_to_begin_requests_waits_for_no_device(kv):
    """They begin while a pass runs: of new sessions, behind a shared prefix, and of one that needs more room."""
    hollow = HollowTarget(LlamaConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1), "tiny")
    memory = KVMemory(hollow.target.kv, layout=kv, small_bytes=0)
    engine, prompt = Engine(hollow.target), [(7 * n) % 60 for n in range(70)]
    told: list[object] = []

    def request(sequence: Sequence, base_len: int, context: list[int]) -> Request:
        return Request(
            sequence, Draft(1, base_len, tuple(context), 5, DraftTree()), Sampler(Sampling()), told.append, 0.0
        )

    first, *others = (Sequence(memory, None) for _ in range(3))
    request(first, 0, prompt).begin()
    engine.commit(engine.verify([StepInput(first, prompt)])[0])
    counts = PassCounts(0)
    with torch.inference_mode(), TransferCounter(counts), DispatchCounter(counts):
        request(others[0], 0, [*prompt, 1, 2]).begin()
        request(others[1], 0, prompt[::-1]).begin()
        request(first, 70, [3] * 150).begin()
    assert memory.prefix_hits_tokens == 64
    assert (counts.reads.total(), counts.uploads, told) == (0, 0, [])


def test_nothing_is_uploaded_behind_the_layers(costs):
    """On a GPU an upload waits for all that was launched before it: the host would not be free while a pass runs."""
    assert [cost for cost in costs.values() if cost.late_uploads] == []


def test_uploads_behind_the_layers_are_counted_until_something_is_read():
    counts = PassCounts(0, num_layers=1)
    with torch.inference_mode(), TransferCounter(counts):
        torch.tensor([1.0])
        counts.layers, counts.in_layer = 1, True
        torch.tensor([1.0])
        counts.in_layer = False
        torch.from_numpy(np.ones(2))
        torch.ones(2).mul(2).tolist()
        torch.tensor([1.0])
    assert (counts.uploads, counts.late_uploads) == (4, 1)


@pytest.mark.parametrize("draft", ["tree of 16, sampled", "tree of 16, logprobs"])
def test_rows_are_drawn_in_one_chain_for_all_sessions(costs, draft):
    greedy, alone, crowd = (
        costs["paged", name, count] for name, count in (("tree of 16", 32), (draft, 1), (draft, 32))
    )
    assert crowd.kernels <= alone.kernels + 4
    assert crowd.uploads <= greedy.uploads + 2


def test_the_server_reads_a_level_of_all_sessions_drafts_at_once(costs):
    """Of four levels."""
    assert [costs["contiguous", "server-draft", sessions].draft_reads for sessions in SESSIONS] == [4, 4, 4]
    assert not any(cost.draft_reads for cost in costs.values() if cost.draft != "server-draft")


def test_the_command_takes_the_shape_of_a_target(tmp_path):
    report = tmp_path / "passes.json"
    options = ["--target", GOLDEN / "target_tiny", "--context", 9, "--repeats", 1, "--json", report]
    result = CliRunner().invoke(app, ["passes", *map(str, options)])
    assert result.exit_code == 0, result.output
    told = json.loads(report.read_text())
    assert (told["target"], told["context"]) == ("target_tiny", 9)
    assert len(told["costs"]) == len(LAYOUTS) * len(SESSIONS) * len(DRAFTS)


def test_a_context_that_leaves_no_room_is_refused():
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64)
    with pytest.raises(UsageError, match="context=60: need 1 to 46"):
        pass_costs(HollowTarget(config, "tiny"), 60, 1)
