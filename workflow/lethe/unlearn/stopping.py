"""When a run ends. The loop asks `stop.check(step, measure, batch)` at step 0 and after every optimiser step, writes
the probes it gets back into the trace, and ends where there is a reason.

A rule holds settings only: what it does at a step depends on nothing but its arguments, so a resumed run needs no
state of it, and any method can be given any rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lethe.errors import LetheError

Measure = Callable[[Sequence[int]], float]  # forget rows -> mean over them of the per-sequence violation fraction

ROUNDING = 1e-6  # a mean of fractions that should equal alpha may come out a little above it


@dataclass(frozen=True)
class Probe:
    """One measured violation rate: at `step`, over `n` forget rows."""

    step: int
    stage: Literal["trigger", "confirm"]
    violation: float
    n: int


@dataclass(frozen=True)
class Verdict:
    """reason: why the run ends here, None to go on; `budget` is an end, not a success. probes: what was measured."""

    reason: Literal["already-satisfied", "satisfied", "budget"] | None = None
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True)
class Budget:
    """End after so many optimiser steps."""

    steps: int

    def check(self, step: int, measure: Measure | None = None, batch: Sequence[int] = ()) -> Verdict:
        return Verdict("budget" if step >= self.steps else None)


@dataclass(frozen=True)
class ViolationStop:
    """End at the first probed step s >= 0 whose violation rate is at most alpha (MASC, Algorithm 1), or at the budget.

    Every `every` steps a probe of `trigger` forget rows; only if it meets alpha, one of `confirm` rows, which decides
    (the released code's two stages). trigger = 0 leaves the first stage out: the paper's single probe.
    examples is the size of the forget set; a probe never has more rows than there are. rows says which are probed:
    `leading`, the first in the data's order (released code), or `random`, drawn without replacement from those that
    are not in the current batch (paper), by seed and step alone.
    """

    alpha: float
    every: int
    trigger: int
    confirm: int
    budget: int
    examples: int
    rows: Literal["leading", "random"] = "leading"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("trigger", 0), ("confirm", 1), ("budget", 0), ("examples", 1)):
            if getattr(self, name) < least:
                raise LetheError(f"stop.{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.alpha <= 1:
            raise LetheError(f"stop.alpha must lie in [0, 1], got {self.alpha}")
        if self.rows not in ("leading", "random"):
            raise LetheError(f"stop.rows must be leading or random, got {self.rows!r}")

    def check(self, step: int, measure: Measure, batch: Sequence[int] = ()) -> Verdict:
        """measure is called with the rows to probe, at most twice; batch holds the forget rows of the current step."""
        probes = self._probe(step, measure, batch) if step % self.every == 0 else ()
        if probes and self._met(probes[-1]):  # a trigger comes last only where it was not met
            return Verdict("satisfied" if step > 0 else "already-satisfied", probes)
        return Verdict("budget" if step >= self.budget else None, probes)

    def _probe(self, step: int, measure: Measure, batch: Sequence[int]) -> tuple[Probe, ...]:
        order = self._order(step, batch)
        trigger, confirm = order[: self.trigger], order[: self.confirm]
        if not trigger:
            return (Probe(step, "confirm", measure(confirm), len(confirm)),)
        first = Probe(step, "trigger", measure(trigger), len(trigger))
        if not self._met(first):
            return (first,)
        return first, Probe(step, "confirm", measure(confirm), len(confirm))

    def _order(self, step: int, batch: Sequence[int]) -> list[int]:
        """Forget rows in the order in which probes take them, so that the trigger's are also the first to confirm."""
        if self.rows == "leading":
            return list(range(self.examples))
        rest = sorted(set(range(self.examples)) - set(batch))
        if not rest:
            raise LetheError(f"stop.rows random needs forget rows outside the batch, got all {self.examples} in it")
        return random.Random(f"{self.seed} {step}").sample(rest, len(rest))

    def _met(self, probe: Probe) -> bool:
        return probe.violation <= self.alpha + ROUNDING
