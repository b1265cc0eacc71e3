"""What a method itself takes: no loading, saving or evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Costs:
    """Wall and CPU seconds by part (`first` step, later `steps`, `probes`, `reference`), and tokens run."""

    seconds: dict[str, list[float]] = field(default_factory=dict)  # part: [wall, cpu]
    trained_tokens: int = 0  # run forward and backward, padding not counted
    forward_tokens: int = 0  # run forward only

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        total = self.seconds.setdefault(part, [0.0, 0.0])
        total[0] += time.perf_counter() - wall
        total[1] += time.process_time() - cpu

    def report(self, steps: int) -> dict[str, float]:
        """Totals in seconds. The first step pays for one-time initialisation, so it is counted as an average one."""
        first, later, probes, reference = (
            self.seconds.get(part, [0.0, 0.0]) for part in ("first", "steps", "probes", "reference")
        )
        wall, cpu = (l * steps / (steps - 1) if steps > 1 else f for f, l in zip(first, later, strict=True))
        return {
            "wall_s": wall + probes[0] + reference[0],
            "cpu_s": cpu + probes[1] + reference[1],
            "steps_cpu_s": cpu,
            "probes_cpu_s": probes[1],
            "reference_cpu_s": reference[1],
        }

    def flops(self, parameters: int) -> float:
        """2 N a token forward, 4 N backward (Kaplan et al. 2020), N the parameters outside the embeddings' lookup."""
        return 6.0 * parameters * self.trained_tokens + 2.0 * parameters * self.forward_tokens
