"""Muon for hidden matrices, AdamW for embeddings, norms and biases: one object with both."""

from typing import Any

import torch
from torch import Tensor, nn

from outrider_models.training.core.muon import Muon


class Optimizer:
    """Two torch optimisers stepped together; rates are set as a share of the recipe's."""

    def __init__(self, model: nn.Module, muon_lr: float, adamw_lr: float, weight_decay: float) -> None:
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = [p for name, p in trained if p.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name]
        chosen = {id(p) for p in hidden}
        rest = [p for _, p in trained if id(p) not in chosen]
        self.parameters = [p for _, p in trained]
        self._rates = (muon_lr, adamw_lr)
        self._muon = Muon(hidden, weight_decay)
        self._adamw = torch.optim.AdamW(rest, lr=adamw_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, factor: float, clip_norm: float) -> Tensor:
        """One update at `factor` of the full rates; returns the gradient's norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        self._muon.step(self._rates[0] * factor)
        for group in self._adamw.param_groups:
            group["lr"] = self._rates[1] * factor
        self._adamw.step()
        self._muon.zero_grad()
        self._adamw.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:  # Any: torch's own state layout
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])
