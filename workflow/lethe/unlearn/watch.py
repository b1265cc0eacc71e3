"""How a run forgets, step by step: scores of a few forget and retain rows while it trains.

A watched run is trained for its curve alone: it is not timed, saved or evaluated, so looking at it costs no method
anything. The seconds in its rows are those of the optimiser steps, without the watching.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lethe.data.rows import encode_rows
from lethe.data.text import encode_prompt, end_token_id
from lethe.errors import LetheError
from lethe.files import lock, read_jsonl, write_text
from lethe.metrics.generation import greedy
from lethe.metrics.rouge import rouge_l
from lethe.metrics.scores import MarginSpec, nll, score_pairs, violation_rate
from lethe.recipe import Recipe
from lethe.unlearn.costs import Costs
from lethe.unlearn.loop import State
from lethe.unlearn.reference import NO_GRAD_TOKENS
from lethe.unlearn.run import CHECKPOINT, check_recipe, identity_of, run_identity, write_trace
from lethe.unlearn.training import Run, Sources, train_by_gradients

COLUMNS = [
    "step", "forget_tokens", "retain_tokens", "steps_cpu_s", "steps_wall_s", "violation_rate", "forget_prob",
    "forget_rouge", "forget_value_recall", "retain_rouge", "retain_prob", "rows",
]  # fmt: skip


@dataclass(frozen=True)
class WatchOptions:
    """Every so many steps, on the first `rows` forget and retain rows; `past`: where recipes with a stop rule end."""

    every: int
    rows: int
    past: int
    max_new_tokens: int
    margin: MarginSpec


def watch_seeds(
    recipe: Recipe, sources: Sources, seeds: Sequence[int], options: WatchOptions, out: Path, work: Path
) -> None:
    """Train one watched run a seed and write its curve, {out}/s{seed}.csv, in COLUMNS."""
    check_recipe(recipe, sources)
    if recipe.method != "gradient" or sources.retain is None:
        raise LetheError(f"recipe {recipe.name}: only a gradient method with retain rows can be watched")
    for seed in seeds:
        own, folder = sources.of_seed(seed), work / f"s{seed}"
        with lock(work / f"s{seed}.lock"):
            identity = f"{run_identity(recipe, own, seed)} {options}"
            if folder.exists() and identity_of(folder) != identity:
                shutil.rmtree(folder)
            write_text(folder / "identity", identity)
            trained = train_by_gradients(
                Run.load(recipe, own, seed),
                folder / CHECKPOINT,
                watch=lambda run, before: Watch(run, before, options),
                past=options.past,
            )
            watched = [row for row in trained.state.trace if "rows" in row]
            write_trace(out / f"s{seed}.csv", [{column: row.get(column) for column in COLUMNS} for row in watched])
            shutil.rmtree(folder)


class Watch:
    """Called by the loop before the first step and after every one; measures every `every` steps.

    Probability and violation rate are teacher-forced on the rows' answers; ROUGE-L recall (stemmed) and the recall of a
    row's `value` words, where it has one, are of greedy answers. Rows must be {question, answer}.
    """

    def __init__(self, run: Run, before: Costs, options: WatchOptions) -> None:
        """before: what the run cost before its first step (reference quantities)."""
        assert run.sources.forget is not None and run.sources.retain is not None
        self.model, self.tokenizer, self.template = run.model, run.tokenizer, run.template
        self.options, self.before = options, before.report(0)
        self.sets = {"forget": self._read(run.sources.forget), "retain": self._read(run.sources.retain)}

    def __call__(self, state: State) -> dict[str, Any]:
        if state.step % self.options.every:
            return {}
        seconds = state.costs.report(state.step)
        row: dict[str, Any] = {
            "steps_cpu_s": seconds["cpu_s"] + self.before["cpu_s"],
            "steps_wall_s": seconds["wall_s"] + self.before["wall_s"],
        }
        for name, (rows, encoded, prompts) in self.sets.items():
            scores = score_pairs(
                self.model, encoded, max_tokens=NO_GRAD_TOKENS, margin=self.options.margin, moments=False
            )
            answers = self._answers(prompts)
            row[f"{name}_prob"] = float(np.mean([np.exp(-nll(score)) for score in scores]))
            row[f"{name}_rouge"] = _mean_rouge([r["answer"] for r in rows], answers)
            if name == "forget":
                margins = [score.margin for score in scores if score.margin is not None]
                row["violation_rate"] = float(np.mean([violation_rate(m, self.options.margin.rho) for m in margins]))
                valued = [(r["value"], answer) for r, answer in zip(rows, answers, strict=True) if r.get("value")]
                row["forget_value_recall"] = _mean_rouge(*zip(*valued, strict=True)) if valued else None
                row["rows"] = len(rows)
        return row

    def _read(self, path: Path) -> tuple[list[dict], list, list]:
        rows = read_jsonl(path)[: self.options.rows]
        if not all("question" in row for row in rows):
            raise LetheError(f"{path}: watching needs rows with a 'question' and an 'answer'")
        encoded = encode_rows(self.tokenizer, self.template, path, 1 << 20)[: self.options.rows]
        return rows, encoded, [encode_prompt(self.tokenizer, self.template, row["question"]) for row in rows]

    def _answers(self, prompts: list) -> list[str]:
        continuations = greedy(
            self.model,
            prompts,
            max_new_tokens=self.options.max_new_tokens,
            stop_ids={end_token_id(self.tokenizer, self.template), self.tokenizer.eos_token_id},
            max_tokens=NO_GRAD_TOKENS,
        )
        return [self.template.cut(self.tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in continuations]


def _mean_rouge(gold: Sequence[str], answers: Sequence[str]) -> float:
    return float(np.mean([rouge_l(g, answer, stemmer=True).recall for g, answer in zip(gold, answers, strict=True)]))
