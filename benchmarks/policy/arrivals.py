"""When queries arrive: endless streams of times in seconds, `rate` a second on average.

All start in the middle of things, not with an arrival: bursty gaps would otherwise crowd the beginning.
"""

from collections.abc import Iterator
from functools import partial
from heapq import heapify, heapreplace
from itertools import cycle, pairwise
from math import gamma
from random import Random

from benchmarks.policy.data import Window, times, windows

AZURE_ARRIVALS = 600
"""Length of a window of the Azure traces: the warm-up and the queries that count of a row."""


def poisson(dice: Random, rate: float) -> Iterator[float]:
    """Let queries arrive independently of each other."""
    now = 0.0
    while True:
        now += dice.expovariate(rate)
        yield now


def bursts(dice: Random, rate: float, cv: float) -> Iterator[float]:
    """Let queries arrive with Gamma gaps whose coefficient of variation is `cv`; 1 is Poisson, 3 is bursty.

    Clients of production services have 1.2 in the median and 3.6 weighted by rate (ServeGen, windows of ten
    minutes).
    """
    return _renewals(dice, "Gamma", cv**-2, 1.0 / rate)


def azure(dice: Random, rate: float, which: str) -> Iterator[float]:
    """Repeat 600 successive arrivals of the `conv` or `code` trace of 2023, from a random one on.

    Time is stretched so that these have the rate asked for: what is left is the burstiness within them, not
    that some parts of the trace are busier than others.
    """
    trace = times(which)
    start = dice.randrange(len(trace) - AZURE_ARRIVALS)
    window = trace[start : start + AZURE_ARRIVALS + 1]
    stretch = AZURE_ARRIVALS / (rate * (window[-1] - window[0]))
    gaps = [stretch * (later - earlier) for earlier, later in pairwise(window)]
    now = 0.0
    for gap in cycle(gaps):
        now += gap
        yield now


def servegen(dice: Random, rate: float) -> Iterator[float]:
    """Let the clients of a large model's service send as they did in ten minutes drawn from eight days.

    Each keeps its share of the rate and the form of its gaps, Gamma or Weibull; the whole is stretched to the
    rate asked for, and goes on for as long as wanted.
    """
    clients = dice.choice(windows())
    stretch = sum(client.rate for client in clients) / rate
    streams = [_client(dice, client, stretch) for client in clients]
    queue = [(next(stream), number) for number, stream in enumerate(streams)]
    heapify(queue)
    while True:
        now, number = queue[0]
        yield now
        heapreplace(queue, (next(streams[number]), number))


def _client(dice: Random, client: Window, stretch: float) -> Iterator[float]:
    return _renewals(dice, client.family, client.shape, stretch / client.rate)


def _renewals(dice: Random, family: str, shape: float, mean: float) -> Iterator[float]:
    """Add up gaps of the family with that mean.

    The first is a random part of a gap drawn with its length as weight: what is left of the gap under way at
    a random moment.
    """
    if family == "Gamma":
        scale = mean / shape
        whole, gap = dice.gammavariate(shape + 1.0, scale), partial(dice.gammavariate, shape, scale)
    else:
        scale = mean / gamma(1.0 + 1.0 / shape)
        whole = scale * dice.gammavariate(1.0 + 1.0 / shape, 1.0) ** (1.0 / shape)
        gap = partial(dice.weibullvariate, scale, shape)
    now = dice.random() * whole
    while True:
        yield now
        now += gap()
