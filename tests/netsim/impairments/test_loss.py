"""Loss: shares and bursts against their exact distributions."""

import random
from itertools import groupby

from driving import pushed_at
from scipy import stats

from outrider_netsim.impairments.loss import Loss
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.profiles.profile import Bursts

FALSE_ALARM = 1e-3  # of each statistical test, were its seed not fixed


def fates(loss, bursts, n, seed=1):
    """For each of n packets, whether it came out."""
    link = Loss(Sink(), loss, bursts, random.Random(seed))
    came = {number for _, number in pushed_at(link, range(n))}
    assert link.dropped == n - len(came)
    return [i in came for i in range(n)]


def runs(came, what):
    return [len(list(group)) for value, group in groupby(came) if value is what]


def geometric_pvalue(lengths, p, most):
    """Chi-square of run lengths against P(length = k) = p (1-p)^(k-1), all above `most` in one bin."""
    expected = [p * (1 - p) ** (k - 1) for k in range(1, most + 1)] + [(1 - p) ** most]
    observed = [sum(length == k for length in lengths) for k in range(1, most + 1)]
    observed.append(len(lengths) - sum(observed))
    return stats.chisquare(observed, [share * len(lengths) for share in expected]).pvalue


def test_independent_losses_are_binomial_and_have_no_memory():
    came = fates(0.1, None, 20_000)
    assert stats.binomtest(came.count(False), 20_000, 0.1).pvalue > FALSE_ALARM
    assert geometric_pvalue(runs(came, False), 0.9, 3) > FALSE_ALARM


def test_bursts_have_the_lengths_of_the_chain():
    came = fates(0.0, Bursts(p=0.05, r=0.25), 40_000)
    assert geometric_pvalue(runs(came, False), 0.25, 12) > FALSE_ALARM
    assert geometric_pvalue(runs(came, True)[1:-1], 0.05, 40) > FALSE_ALARM


def test_shares_of_both_states_make_the_mean_loss():
    bursts = Bursts(p=0.02, r=0.1, bad=0.6, good=0.01)
    n = 40_000
    lost = fates(0.0, bursts, n).count(False)
    bad = bursts.p / (bursts.p + bursts.r)
    memory = 1 - bursts.p - bursts.r  # correlation of the states of neighbors
    mean = bursts.mean_loss
    variance = mean * (1 - mean) + 2 * (bursts.bad - bursts.good) ** 2 * bad * (1 - bad) * memory / (1 - memory)
    z = (lost - n * mean) / (n * variance) ** 0.5
    assert 2 * stats.norm.sf(abs(z)) > FALSE_ALARM


def test_a_change_keeps_the_draws():
    link = Loss(Sink(), 1.0, None, random.Random(3))
    rng = random.Random(3)
    pushed_at(link, range(10))
    link.set(0.5, None)
    expected = [rng.random() >= 0.5 for _ in range(60)][10:]
    came = {n for _, n in pushed_at(link, range(10, 60))}
    assert [n in came for n in range(50)] == expected
