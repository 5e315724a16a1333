"""How far a run is: by tokens or by time, whichever is further."""


def progress_of(tokens: int, total_tokens: int, elapsed_s: float, budget_s: float | None) -> float:
    """0 at the start, 1 at the end; a run with a time budget ends its decay in time."""
    of_time = elapsed_s / budget_s if budget_s else 0.0
    return min(1.0, max(tokens / total_tokens, of_time))
