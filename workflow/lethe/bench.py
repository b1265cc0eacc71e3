"""What the stages' speed comes from: each idea timed with and without it, on the spot, and written as ratios.

Machines are noisy, so with and without take turns and the medians are compared; nothing here decides a test.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lethe import paths
from lethe.config import Scale
from lethe.data.rows import default_template, encode_rows
from lethe.data.text import Batch, Encoded, collate, collate_prompts, encode_prompt, end_token_id, pad_token_id
from lethe.errors import LetheError
from lethe.files import read_jsonl, write_text
from lethe.metrics.generation import greedy
from lethe.metrics.scores import MarginSpec, score_pairs
from lethe.models.load import load_model, load_tokenizer, logits_at
from lethe.plan import REFERENCE_SEED, weights
from lethe.recipe import load_recipes, resolve
from lethe.unlearn import losses
from lethe.unlearn.loop import train
from lethe.unlearn.reference import Reference
from lethe.unlearn.stopping import Budget
from lethe.unlearn.streams import Stream, chunks

COLUMNS = ["name", "with_s", "without_s", "ratio", "ratio_lo", "ratio_hi", "repeats", "what"]
PASSES = 6  # probability, memorisation, extraction, loss and min-k membership, violation rate: the answers' forwards
STEPS = 30


def write_bench(scale: Scale, out: Path, repeats: int) -> None:
    """Time on the scale's main model and first benchmark. LetheError: the scale has not been run."""
    benchmark, model_name = next(iter(scale.roles.benchmarks.values()))[0], scale.roles.models["main"][0]
    folder, data = (
        Path(weights(scale, f"{benchmark}/{model_name}/target", REFERENCE_SEED)),
        Path(paths.data(scale.name, benchmark)),
    )
    if not folder.is_dir() or not data.is_dir():
        raise LetheError(f"{folder}: no such folder (run the scale first)")
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    template, pad = default_template(tokenizer), pad_token_id(tokenizer)
    pairs = encode_rows(tokenizer, template, data / "eval_forget.jsonl", 512) + encode_rows(
        tokenizer, template, data / "eval_retain.jsonl", 512
    )
    prompts = [encode_prompt(tokenizer, template, row["question"]) for row in read_jsonl(data / "eval_forget.jsonl")]
    end, budget, margin = end_token_id(tokenizer, template), scale.evaluation.max_tokens, MarginSpec()
    new_tokens = scale.evaluation.max_new_tokens

    cases: list[tuple[str, str, Callable[[], Any], Callable[[], Any]]] = [
        (
            "one pass a pair",
            f"every score from one forward pass, against {PASSES} passes (one a metric)",
            lambda: score_pairs(model, pairs, max_tokens=budget, margin=margin),
            lambda: [
                score_pairs(model, pairs, max_tokens=budget, margin=margin if i == 0 else None, moments=i == 1)
                for i in range(PASSES)
            ],
        ),
        (
            "logits at answers only",
            "the output layer at supervised positions, against all positions",
            lambda: forward(model, pairs, pad, logits_at),
            lambda: forward(model, pairs, pad, all_logits),
        ),
        (
            "batches by length",
            "batches of similar length under a token budget, against file order in 32s",
            lambda: score_pairs(model, pairs, max_tokens=budget),
            lambda: forward(model, pairs, pad, scored),
        ),
        (
            "decoding drops finished rows",
            "greedy decoding, against transformers' generate on the same prompts",
            lambda: greedy(model, prompts, max_new_tokens=new_tokens, stop_ids={end}, max_tokens=budget),
            lambda: generate(model, prompts, new_tokens, end, pad),
        ),
        (
            "cached NPO reference",
            f"{STEPS} NPO steps with log-probabilities of the start kept, against a frozen copy run every step",
            lambda: npo_steps(model, data, tokenizer, True),
            lambda: npo_steps(model, data, tokenizer, False),
        ),
        (
            "fused AdamW",
            "20 optimiser steps, against the foreach form",
            lambda: optimiser_steps(model, fused=True),
            lambda: optimiser_steps(model, foreach=True),
        ),
    ]
    rows = [measure(name, what, ours, theirs, repeats) for name, what, ours, theirs in cases]
    write_text(out, pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, lineterminator="\n"))
    for row in rows:
        print(f"{row['name']}: {row['ratio']:.2f} x ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f}); {row['what']}")


def measure(name: str, what: str, ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Median seconds of both, taking turns after one warm-up, and the ratio's spread over the turns."""
    seconds: list[tuple[float, float]] = []
    for turn in range(repeats + 1):
        pair = []
        for work in (ours, theirs):
            start = time.perf_counter()
            work()
            pair.append(time.perf_counter() - start)
        if turn:
            seconds.append((pair[0], pair[1]))
    ratios = [b / a for a, b in seconds]
    return {
        "name": name,
        "with_s": statistics.median(a for a, _ in seconds),
        "without_s": statistics.median(b for _, b in seconds),
        "ratio": statistics.median(ratios),
        "ratio_lo": min(ratios),
        "ratio_hi": max(ratios),
        "repeats": repeats,
        "what": what,
    }


@torch.no_grad()
def forward(model: Any, pairs: Sequence[Encoded], pad: int, logits: Callable[[Any, Batch], torch.Tensor]) -> None:
    for part in chunks(range(len(pairs)), 32):
        batch = collate([pairs[i] for i in part], pad)
        losses.token_nll(logits(model, batch), batch.labels)


def all_logits(model: Any, batch: Batch) -> torch.Tensor:
    return model(input_ids=batch.ids, attention_mask=batch.attention_mask, use_cache=False).logits[
        batch.rows, batch.cols
    ]


def scored(model: Any, batch: Batch) -> torch.Tensor:
    """What score_pairs computes of a batch, for batches that somebody else made."""
    logits = logits_at(model, batch)
    logp = torch.log_softmax(logits.float(), dim=-1)
    mean = (logp.exp() * logp).sum(-1)
    _ = (logp.exp() * (logp - mean[:, None]).square()).sum(-1)
    return logits


def generate(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int, end: int, pad: int) -> None:
    for part in chunks(range(len(prompts)), 32):
        batch = collate_prompts([prompts[i] for i in part], pad)
        model.generate(
            input_ids=batch.ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=pad,
        )


def npo_steps(model: Any, data: Path, tokenizer: Any, cached: bool) -> None:
    """STEPS steps of NPO from a copy of the model; without the cache, the copy's log-probabilities every step."""
    recipe = resolve(load_recipes(), "npo", ["mini"])
    template, pad = default_template(tokenizer), pad_token_id(tokenizer)
    student = copy.deepcopy(model)
    streams = {
        name: Stream(encode_rows(tokenizer, template, data / f"{name}.jsonl", 512), 8, seed=0, name=name)
        for name in ("forget", "retain")
    }
    forget = streams["forget"].examples
    needed = sorted({row for step in range(STEPS) for row in streams["forget"][step]})
    reference = Reference(student, None, recipe, forget if cached else [forget[i] for i in needed[:1]], pad)
    if not cached:
        reference.logp = torch.zeros(len(forget))

    def recompute(step: int, loss: float) -> None:
        if not cached and step < STEPS:
            with torch.no_grad():
                batch = collate([forget[row] for row in streams["forget"][step]], pad)
                losses.sequence_nll(logits_at(model, batch), batch.labels, batch.rows, len(batch.ids))

    train(student, recipe, streams, Budget(STEPS), seed=0, pad_id=pad, reference=reference, report=recompute)


def optimiser_steps(model: Any, **kind: Any) -> None:
    parameters = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **kind)
    for _ in range(20):
        optimizer.step()
