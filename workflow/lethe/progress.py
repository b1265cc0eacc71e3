"""How far a long stage is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time

LINE_SECONDS = 15.0


class Progress:
    """total: what 100 % is (a stage that stops early simply ends before)."""

    def __init__(self, label: str, total: int, unit: str = "step") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.started = self.printed = time.monotonic()
        self.first: int | None = None
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc=label, unit=unit, leave=False)

    def __call__(self, done: int, loss: float | None = None) -> None:
        """done: units finished so far, those of an earlier, interrupted attempt included."""
        if self.bar is not None:
            if loss is not None:
                self.bar.set_postfix(loss=f"{loss:.3g}", refresh=False)
            self.bar.update(done - self.bar.n)
            return
        if self.first is None:
            self.first = done - 1
        now = time.monotonic()
        if now - self.printed < LINE_SECONDS and done < self.total:
            return
        self.printed = now
        left = (now - self.started) / (done - self.first) * (self.total - done)
        value = "" if loss is None else f", loss {loss:.4g}"
        print(f"{self.label}: {self.unit} {done}/{self.total}{value}, {left:.0f} s left", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
