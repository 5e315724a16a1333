"""Bootstrap intervals of figures over runs and prompts. Pure.

R runs ask the same P prompts, so a measure is an array [R, P]. One draw takes runs and, independently, prompts, and
takes the same prompts in every drawn run: what an easy prompt adds to one run it adds to all, and does not average out
over them (Owen, "The pigeonhole bootstrap", 2007). Drawing one less than there are makes the variance unbiased
(Rao and Wu, 1988); of few runs or prompts, as many draws as there are would give intervals that are too narrow.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]
RESAMPLES = 4000
SEED = 15
_ENDS = (2.5, 97.5)  # percent


class Resamples:
    """Draws of runs and prompts. Figures from the same draws are paired, so their ratios may be taken."""

    def __init__(self, num_runs: int, num_prompts: int, *, count: int = RESAMPLES, seed: int = SEED) -> None:
        generator = np.random.default_rng(seed)
        self._generator = generator
        self._runs = generator.integers(num_runs, size=(count, max(num_runs - 1, 1)))
        self._prompts = generator.integers(num_prompts, size=(count, max(num_prompts - 1, 1)))
        self._weights = np.stack([np.bincount(drawn, minlength=num_prompts) for drawn in self._prompts]).astype(float)
        self._can_vary = num_runs > 1 or num_prompts > 1

    def sums(self, measure: ArrayLike) -> Floats:
        """Sum [runs, prompts] over the drawn prompts: [draws, drawn runs]."""
        values = np.asarray(measure, dtype=float)
        return np.take_along_axis(self._weights @ values.T, self._runs, axis=1)

    def medians(self, measure: ArrayLike) -> Floats:
        """Take medians of [runs, prompts] over the drawn prompts: [draws, drawn runs]. NaN values are left out."""
        values = np.asarray(measure, dtype=float)
        return _nanmedian(values[self._runs[:, :, None], self._prompts[:, None, :]], axis=2)

    def pooled_medians(self, measure: ArrayLike) -> Floats:
        """Take medians of [runs, prompts] over all that is drawn: [draws, 1]. NaN values are left out."""
        values = np.asarray(measure, dtype=float)
        drawn = values[self._runs[:, :, None], self._prompts[:, None, :]]
        return _nanmedian(drawn.reshape(len(drawn), -1), axis=1)[:, None]

    def estimates(self, means: Sequence[float], errors: Sequence[float]) -> Floats:
        """Draw an estimate per run from its mean and standard error: [draws, drawn runs]."""
        noise = self._generator.standard_normal(self._runs.shape)
        return np.asarray(means, dtype=float)[self._runs] + np.asarray(errors, dtype=float)[self._runs] * noise

    def interval(self, figures: Floats) -> Interval | None:
        """Return the 95 % interval of the median over runs; None where nothing varies or the figure does not apply.

        `figures`: [draws, drawn runs].
        """
        medians = _nanmedian(figures, axis=1)
        finite = medians[np.isfinite(medians)]
        if not self._can_vary or not len(finite):
            return None
        low, high = np.percentile(finite, _ENDS)
        return float(low), float(high)


def ratio_interval(above: ArrayLike, below: ArrayLike) -> Interval | None:
    """Return the 95 % interval of sum(above) / sum(below), of several runs the median.

    Both are [prompts] or [runs, prompts], and their entries belong together.
    """
    numerators, denominators = np.atleast_2d(above), np.atleast_2d(below)
    draws = Resamples(*numerators.shape)
    return draws.interval(quotient(draws.sums(numerators), draws.sums(denominators)))


def median_interval(values: ArrayLike) -> Interval | None:
    """Return the 95 % interval of the median over runs of the medians over prompts. NaN values are left out.

    `values`: [runs, prompts].
    """
    measured = np.asarray(values, dtype=float)
    draws = Resamples(*measured.shape)
    return draws.interval(draws.medians(measured))


def quotient(above: ArrayLike, below: ArrayLike) -> Floats:
    """Divide; NaN where `below` is 0."""
    numerator, denominator = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator == 0, np.nan, numerator / denominator)


def _nanmedian(values: Floats, axis: int) -> Floats:
    """Take medians without NaN values, and NaN where there are no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for slices that are all NaN, which are meant here
        return np.asarray(np.nanmedian(values, axis=axis))
