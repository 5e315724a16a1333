"""Muon for hidden matrices, AdamW for embeddings, norms and biases: one object with both.

Muon (Jordan et al., 2024) orthogonalizes all matrices of one shape as one batched product. The arithmetic is that of
torch.optim.Muon, which takes them one by one: at our sizes that would be a third of a step's time.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from outrider_drafters.processor import cpu_has_bf16

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_EPS = 1e-7
_NOT_HIDDEN = ("embed_tokens", "lm_head", "markov_w", "confidence_head")


class Optimizer:
    """Two optimizers that step together, at a share of their peaks; without `muon` AdamW takes and decays all."""

    def __init__(
        self,
        model: nn.Module,
        muon_lr: float,
        adamw_lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.95),
        *,
        muon: bool = True,
    ) -> None:
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        # Muon is made for matrices between hidden states; embeddings and heads stay with AdamW.
        hidden = [p for name, p in trained if muon and p.ndim == 2 and not any(part in name for part in _NOT_HIDDEN)]
        chosen = {id(p) for p in hidden}
        rest = [p for _, p in trained if id(p) not in chosen]
        self.parameters = [p for _, p in trained]
        self._rates = (muon_lr, adamw_lr)
        self._muon = Muon(hidden, weight_decay)
        self._adamw = torch.optim.AdamW(
            rest, lr=adamw_lr, betas=betas, weight_decay=0.0 if muon else weight_decay, fused=True
        )

    def step(self, factor: float, clip_norm: float) -> Tensor:
        """Update at `factor` of the full rates; return the gradient's norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        self._muon.step(self._rates[0] * factor)
        for group in self._adamw.param_groups:
            group["lr"] = self._rates[1] * factor
        self._adamw.step()
        for parameter in self.parameters:
            parameter.grad = None
        return norm

    def state_dict(self) -> dict[str, Any]:  # Any: torch's own state layout
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])


class Muon:
    """Muon with Nesterov momentum and decoupled weight decay. Every parameter must have a gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float, momentum: float = 0.95) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        self._groups = list(by_shape.values())
        self._momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups]
        self._weight_decay, self._momentum = weight_decay, momentum

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradients = torch.stack([parameter.grad for parameter in group])  # type: ignore[misc]  # all have one
            momentum.lerp_(gradients, 1 - self._momentum)
            update = orthogonalized(gradients.lerp(momentum, self._momentum))
            rows, columns = update.shape[1:]
            matrices: list[Tensor] = [*group]
            if self._weight_decay:
                torch._foreach_mul_(matrices, 1 - lr * self._weight_decay)
            torch._foreach_add_(matrices, list(update.to(group[0].dtype)), alpha=-lr * max(1, rows / columns) ** 0.5)

    def state_dict(self) -> dict[str, Any]:  # Any: a layout of our own, tensors inside
        return {"momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: as above
        for momentum, saved in zip(self._momenta, state["momenta"], strict=True):
            momentum.copy_(saved)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return roughly the nearest orthogonal matrices [n, rows, columns] (Newton-Schulz); bfloat16 where fast."""
    # Transposed where tall, so that the Gram matrix is the smaller of the two.
    tall = matrices.shape[1] > matrices.shape[2]
    narrow = matrices.device.type != "cpu" or cpu_has_bf16()
    x = (matrices.mT if tall else matrices).to(torch.bfloat16 if narrow else torch.float32)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
