"""Which rows an optimiser step sees. A pure function of seed, stream and step, so that a resumed run needs no state."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence

import torch

from lethe.data.text import Encoded


def generator(*key: int | str) -> torch.Generator:
    """A generator that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Stream:
    """Endless batches of row numbers: every epoch a new order (unless `shuffle` is off), its last batch maybe smaller.

    examples: what the row numbers refer to. All but the last `replay_pool` are seen every epoch, and of those `replay`,
    drawn anew. Rows are not grouped by length: rows of one length tend to be of one kind, and learning from them
    together is measurably worse.
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
        shuffle: bool = True,
    ) -> None:
        self.examples, self.size, self.seed, self.name, self.shuffle = examples, size, seed, name, shuffle
        self.replay, self.replay_pool = min(replay, replay_pool), replay_pool
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
        if self.shuffle:
            rows = [rows[i] for i in torch.randperm(len(rows), generator=g).tolist()]
        return list(chunks(rows, self.size))


def chunks(rows: Sequence[int], size: int) -> Iterable[list[int]]:
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
