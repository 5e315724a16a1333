"""Plots of compared drafters."""

from __future__ import annotations

from pathlib import Path

from outrider_bench.core.plots import saved_figure
from outrider_bench.studies.drafters.comparison import PLAIN, Comparison


def plot_comparison(result: Comparison, path: Path) -> None:
    """Plot mean acceptance length by family, acceptance by position, and speeds."""
    from matplotlib.ticker import MaxNLocator

    with saved_figure(path, 1, 3, figsize=(16.5, 4.5)) as (_, (left, middle, right)):
        width = 0.8 / len(result.drafters)
        for number, (name, drafted) in enumerate(result.drafters.items()):
            places = [place + number * width - 0.4 for place in range(len(drafted.tau))]
            left.bar(places, [tau - 1 for tau in drafted.tau.values()], width * 0.9, bottom=1, label=name)
            left.set_xticks(range(len(drafted.tau)), list(drafted.tau), rotation=30)
            middle.plot(range(1, len(drafted.positions.kept) + 1), drafted.positions.kept, "o-", label=name)
        left.set_title("mean acceptance length")
        left.set_ylabel("tokens per verdict, bonus included")
        left.set_ylim(top=left.get_ylim()[1] * 1.25)  # room for the legend
        left.legend(frameon=False, fontsize="small", ncols=3)
        middle.set_title("acceptance by position")
        middle.set_xlabel("drafted token")
        middle.xaxis.set_major_locator(MaxNLocator(integer=True))
        middle.set_ylabel("accepted, of those accepted before it")
        middle.set_ylim(0, 1.02)
        names = list(result.speeds)[::-1]
        right.barh(names, [result.speeds[name].speedup for name in names], color="#4C78A8")
        right.axvline(1, color="black", linewidth=1)
        right.set_title(f"speed against the {PLAIN}, in process")


def plot_depth_sweep(name: str, result: Comparison, path: Path) -> None:
    """Plot acceptance and speed against the number of levels, beside 1/n."""
    levels = [int(label) for label in result.drafters]
    with saved_figure(path, 1, 2, figsize=(11, 4.5)) as (_, (left, right)):
        left.plot(levels, [drafted.positions.rate for drafted in result.drafters.values()], "o-", label=name)
        left.plot(levels, [1 / n for n in levels], "x--", color="grey", label="1/n: only the first is accepted")
        left.set_xlabel("levels")
        left.set_ylabel("accepted / drafted")
        left.set_ylim(0, 1.02)
        left.legend(frameon=False)
        right.plot(levels, [drafted.overall for drafted in result.drafters.values()], "o-", label="tokens per verdict")
        right.plot(levels, [result.speeds[str(n)].speedup for n in levels], "s-", label=f"speed / {PLAIN}")
        right.set_xlabel("levels")
        right.legend(frameon=False)
