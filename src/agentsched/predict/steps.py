"""What the calls of each step were like: prompts, answers and times as distributions, for a profile."""

from agentsched.dist import EDGES, Dist
from agentsched.model.value import value
from agentsched.predict.lengths import MOST_TOKENS, Key

MOST_STEPS = 1_000
"""Most steps kept; those that were met least recently go first."""

SECONDS = tuple(float(f"{0.001 * 1.06**number:.3g}") for number in range(330))
"""Bucket edges for times, about 6 % apart, from a millisecond to some days."""


@value
class StepRow:
    """The calls of one step that were answered.

    Attributes:
        calls: how many; each distribution is of as many samples.
        service_s: seconds from when a backend was given the call until it had ended.
    """

    model: str | None
    workflow: str | None
    step: str | None
    calls: int
    input_tokens: Dist
    output_tokens: Dist
    service_s: Dist

    @property
    def key(self) -> Key:
        """What calls are told apart by."""
        return self.model, self.workflow, self.step


class Steps:
    """Takes answered calls."""

    def __init__(self) -> None:
        self._tallies: dict[Key, tuple[_Tally, _Tally, _Tally]] = {}

    def observe(self, key: Key, *, read: int, written: int, service_s: float) -> None:
        """Count a call: the tokens of its prompt and its answer, and the seconds it took."""
        tallies = self._tallies.pop(key, None) or ({}, {}, {})
        self._tallies[key] = tallies  # at the end, whoever was there before
        samples = min(read, MOST_TOKENS), min(written, MOST_TOKENS), min(service_s, SECONDS[-1])
        for tally, sample in zip(tallies, samples, strict=True):
            edges = SECONDS if tally is tallies[-1] else EDGES
            bucket = Dist.of((sample,), edges).values[0]
            tally[bucket] = tally.get(bucket, 0) + 1
        if len(self._tallies) > MOST_STEPS:
            del self._tallies[next(iter(self._tallies))]

    def rows(self) -> tuple[StepRow, ...]:
        """Return what was counted, the latest step last."""
        return tuple(
            StepRow(
                model=key[0],
                workflow=key[1],
                step=key[2],
                calls=sum(read.values()),
                input_tokens=_dist(read),
                output_tokens=_dist(written),
                service_s=_dist(seconds),
            )
            for key, (read, written, seconds) in self._tallies.items()
        )


_Tally = dict[float, int]
"""How often each bucket was met."""


def _dist(tally: _Tally) -> Dist:
    values = sorted(tally)
    return Dist(values, [tally[value] for value in values])
