"""Which rows an optimiser step sees. A pure function of seed, stream and step, so that a resumed run needs no state."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence

import torch

from lethe.data.text import Encoded

WINDOW = 16  # batches whose rows are sorted by length together, to pad less; batches stay in random order


def generator(*key: int | str) -> torch.Generator:
    """A generator that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Stream:
    """Endless batches of row numbers: every epoch a new order, its last batch possibly smaller.

    examples: what the row numbers refer to. The first `len(examples) - replay_pool` are all seen every epoch; of the
    `replay_pool` last, `replay` are drawn anew every epoch.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        size: int,
        *,
        seed: int,
        name: str,
        replay: int = 0,
        replay_pool: int = 0,
        by_length: bool = False,
    ) -> None:
        self.examples, self.size, self.seed, self.name = examples, size, seed, name
        self.replay, self.replay_pool, self.by_length = min(replay, replay_pool), replay_pool, by_length
        self.own = len(examples) - replay_pool
        self.per_epoch = math.ceil((self.own + self.replay) / size)
        self._epoch = functools.lru_cache(maxsize=2)(self._batches)

    def __getitem__(self, step: int) -> list[int]:
        epoch, i = divmod(step, self.per_epoch)
        return self._epoch(epoch)[i]

    def _batches(self, epoch: int) -> list[list[int]]:
        g = generator(self.seed, self.name, epoch)
        drawn = (self.own + torch.randperm(self.replay_pool, generator=g)[: self.replay]).tolist()
        rows = [*range(self.own), *drawn]
        rows = [rows[i] for i in torch.randperm(len(rows), generator=g).tolist()]
        if not self.by_length:
            return list(chunks(rows, self.size))
        windows = chunks(rows, self.size * WINDOW)
        batches = [b for w in windows for b in chunks(sorted(w, key=lambda r: len(self.examples[r].ids)), self.size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=g).tolist()]


def chunks(rows: Sequence[int], size: int) -> Iterable[list[int]]:
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
