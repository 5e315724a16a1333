"""Our batched Muon is torch's Muon."""

import pytest
import torch
from torch import nn

from outrider_models.training.core import optimizer
from outrider_models.training.core.optimizer import Muon, orthogonalized

SHAPES = ((6, 6), (6, 12), (12, 6), (6, 12))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_torch(weight_decay, monkeypatch):
    monkeypatch.setattr(optimizer, "cpu_has_bf16", lambda: True)  # torch's products are in bfloat16 on all machines
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    batched = Muon(ours, weight_decay)
    single = torch.optim.Muon(theirs, lr=0.1, weight_decay=weight_decay, momentum=0.95)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        batched.step(0.1)
        single.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=0)  # products are in bfloat16


@pytest.mark.parametrize("has_bf16", [True, False])
def test_singular_values_become_about_one(has_bf16, monkeypatch):
    monkeypatch.setattr(optimizer, "cpu_has_bf16", lambda: has_bf16)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 8, 20)).float())
    assert ((values > 0.5) & (values < 1.4)).all()
