"""The learning-rate trapezoid: up, flat, down to zero. Progress is of tokens or of time, whichever is further."""


def progress_of(tokens: int, total_tokens: int, elapsed_s: float, budget_s: float | None) -> float:
    """0 at the start, 1 at the end; a run with a time budget ends its decay in time."""
    of_time = elapsed_s / budget_s if budget_s else 0.0
    return min(1.0, max(tokens / total_tokens, of_time))


def rate_factor(progress: float, warmup: float, decay: float) -> float:
    """Share of the flat rate at `progress`."""
    rising = progress / warmup if warmup else 1.0
    falling = (1 - progress) / decay if decay else 1.0
    return max(0.0, min(1.0, rising + 1e-3, falling))
