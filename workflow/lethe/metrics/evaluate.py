"""The evaluation stage: saved weights in, metrics and per-item values out, as they are or attacked."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lethe import config, paths, recipe
from lethe.data.rows import default_template
from lethe.data.text import Template
from lethe.errors import LetheError
from lethe.files import atomic, lock, read_json, sha256_file, write_json
from lethe.machine import machine
from lethe.metrics.benchmark import score_benchmark
from lethe.metrics.muse import muse_metrics
from lethe.metrics.muse_score import score_muse
from lethe.metrics.scores import MarginSpec
from lethe.metrics.tofu import tofu_metrics
from lethe.models.load import DTYPES, load_model, load_tokenizer, parameter_counts, save_model, weights_sha256
from lethe.models.quantise import quantise_model
from lethe.progress import Progress

SAMPLES = 5  # questions a split whose answers are kept readable in the JSON

Metrics = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Suite:
    """How a family of benchmarks is evaluated.

    score(model, tokenizer, template, benchmark, options, *, margin, forget_only, encodings, progress): the items.
    measure(items, reference items, benchmark, options, *, forget_only, name, reference_name): the metrics.
    sampled: splits whose answers are kept readable. attacks_forget_only: attacked models are only scored on what was
    to be forgotten.
    """

    score: Callable[..., pd.DataFrame]
    measure: Callable[..., Metrics]
    sampled: tuple[str, ...]
    attacks_forget_only: bool = False


def evaluate_runs(
    weights: str,
    seeds: Sequence[int],
    attacks: Sequence[str],
    benchmark: Path,
    out: str,
    work: Path,
    *,
    reference: Path | None,
    options: config.Evaluation,
    margin: recipe.Margin | None,
    template: Template | None,
) -> None:
    """Evaluate one run's seeds under several attacks. weights, out: paths with {seed}, and {attack} in `out`.

    A finished evaluation waits under `work` until all are, so that an interrupted call loses none.
    """
    encodings: dict[str, dict] = {}
    with lock(work / "lock"):
        for seed in seeds:
            for attack in attacks:
                evaluate_model(
                    weights.format(seed=seed),
                    attack,
                    benchmark,
                    work / f"s{seed}" / f"{attack}.json",
                    reference=reference,
                    options=options,
                    margin=margin,
                    template=template,
                    encodings=encodings,
                )
        for seed in seeds:
            for attack in attacks:
                done, final = str(work / f"s{seed}" / f"{attack}.json"), out.format(seed=seed, attack=attack)
                Path(final).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(paths.items(done), paths.items(final))
                shutil.move(done, final)
        shutil.rmtree(work)


def evaluate_model(
    model: str,
    attack: str,
    benchmark: Path,
    out: Path,
    *,
    reference: Path | None,
    options: config.Evaluation,
    margin: recipe.Margin | None,
    template: Template | None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    encodings: dict[str, dict] | None = None,
) -> None:
    """Score one model on a benchmark and write `out` (JSON) and the per-item values beside it.

    What lies there already is kept if it is of the same weights, attack, data and settings. encodings: those of earlier
    calls, by tokenizer: the models of one run read the same texts.
    """
    if reference is not None and reference.resolve() == out.resolve():
        raise LetheError(f"--reference {reference}: a model cannot be its own reference")
    suite_name = read_suite(benchmark)
    suite = SUITES[suite_name]
    forget_only = suite.attacks_forget_only and attack != "none"
    tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
    lm = load_model(model, revision=revision, dtype="auto", trust_remote_code=trust_remote_code)
    spec = {
        "benchmark": benchmark.name,
        "suite": suite_name,
        "attack": attack,
        "weights_sha256": weights_sha256(lm),
        "data": _data_sha256(benchmark),
        "options": options.model_dump(),
        "margin": margin.model_dump() if margin else None,
        "reference": _reference_sha256(reference),
        "template": asdict(template or default_template(tokenizer)),
    }
    spec = json.loads(json.dumps(spec))  # as it will be read again: a tuple comes back as a list
    if out.exists() and read_json(out).get("spec") == spec and Path(paths.items(str(out))).exists():
        return
    total, nonembed = parameter_counts(lm)
    wall, cpu = time.perf_counter(), time.process_time()
    quantised = quantise_model(lm, attack)
    lm = lm.to(DTYPES[options.dtype])
    items = suite.score(
        lm,
        tokenizer,
        template or default_template(tokenizer),
        benchmark,
        options,
        margin=MarginSpec(margin.k, margin.beta, margin.rho) if margin else None,
        forget_only=forget_only,
        encodings=None if encodings is None else encodings.setdefault(_encoder(tokenizer, spec), {}),
        progress=StageProgress(f"evaluate {benchmark.name} {attack}"),
    )
    metrics = suite.measure(
        items,
        pd.read_parquet(paths.items(str(reference))) if reference else None,
        benchmark,
        options,
        forget_only=forget_only,
        name=str(out),
        reference_name=str(reference),
    )
    seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    with atomic(paths.items(str(out))) as tmp:
        items.to_parquet(tmp, index=False)
    write_json(
        out,
        {
            "spec": spec,
            "metrics": metrics,
            "samples": samples(items, suite.sampled),
            "n_params": total,
            "n_params_nonembed": nonembed,
            **seconds,
            "quantised": quantised.as_dict() if quantised else None,
            "dtype": options.dtype,
            "attention": getattr(lm.config, "_attn_implementation", None),
            **machine(),
        },
    )


def attack_model(
    model: str, attack: str, out: Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> None:
    """Write the attacked (quantised and dequantised) model in Hugging Face format, with attack.json beside it."""
    if out.exists():
        raise LetheError(f"--out {out}: exists already")
    tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
    lm = load_model(model, revision=revision, dtype="auto", trust_remote_code=trust_remote_code)
    report = quantise_model(lm, attack)
    tmp = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    save_model(lm, tokenizer, tmp, dtype=str(lm.dtype).removeprefix("torch."))
    write_json(tmp / "attack.json", report.as_dict() if report else {"attack": "none"})
    tmp.rename(out)


def samples(items: pd.DataFrame, splits: Sequence[str]) -> list[dict[str, Any]]:
    """The first answers of each of these splits."""
    first = pd.concat([items[items["split"] == split].head(SAMPLES) for split in splits])
    columns = ["split", "index", "question", "answer", "generation", "para_generation"]
    return json.loads(first[columns].to_json(orient="records"))


def read_suite(benchmark: Path) -> str:
    """The suite that a benchmark's manifest names; a folder of a person's own files has none and is `tofu`."""
    name = _manifest(benchmark).get("suite", "tofu")
    if name not in SUITES:
        raise LetheError(f"{benchmark / 'manifest.json'}: suite must be one of {', '.join(SUITES)}, got {name!r}")
    return name


def _manifest(benchmark: Path) -> dict[str, Any]:
    path = benchmark / "manifest.json"
    return read_json(path) if path.exists() else {}


def _score_tofu(
    model: Any, tokenizer: Any, template: Template, benchmark: Path, options: config.Evaluation, *, forget_only: bool,
    **rest: Any,
) -> pd.DataFrame:  # fmt: skip
    return score_benchmark(
        model,
        tokenizer,
        template,
        benchmark,
        max_tokens=options.max_tokens,
        max_new_tokens=options.max_new_tokens,
        max_length=options.max_length,
        limit=options.limit,
        **rest,
    )


def _measure_tofu(
    items: pd.DataFrame, reference: pd.DataFrame | None, benchmark: Path, options: config.Evaluation, *,
    forget_only: bool, **names: Any,
) -> Metrics:  # fmt: skip
    return tofu_metrics(items, reference, bootstrap=options.bootstrap, **names)


def _score_muse(
    model: Any, tokenizer: Any, template: Template, benchmark: Path, options: config.Evaluation, **rest: Any
) -> pd.DataFrame:
    return score_muse(model, tokenizer, benchmark, options, **rest)


def _measure_muse(
    items: pd.DataFrame, reference: pd.DataFrame | None, benchmark: Path, options: config.Evaluation, *,
    forget_only: bool, **names: Any,
) -> Metrics:  # fmt: skip
    return muse_metrics(
        items,
        reference,
        missing=_manifest(benchmark).get("missing"),
        published=options.published_auc.get(benchmark.name),
        forget_only=forget_only,
        bootstrap=options.bootstrap,
        **names,
    )


SUITES = {
    "tofu": Suite(_score_tofu, _measure_tofu, sampled=("forget",)),
    "muse": Suite(
        _score_muse,
        _measure_muse,
        sampled=("verbatim_forget", "knowledge_forget", "knowledge_retain"),
        attacks_forget_only=True,
    ),
}


class StageProgress:
    """One progress line for each part of an evaluation (scoring, then generation)."""

    def __init__(self, label: str) -> None:
        self.label, self.stage, self.progress = label, "", Progress(label, 1)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self.stage:
            self.progress.close()
            self.stage, self.progress = stage, Progress(f"{self.label}: {stage}", total, unit="text")
        self.progress(done)


def _encoder(tokenizer: Any, spec: dict[str, Any]) -> str:
    """All that the encoding of a text depends on."""
    model = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(tokenizer)
    return json.dumps([model, tokenizer.chat_template, spec["template"], spec["options"]["max_length"]])


def _data_sha256(benchmark: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(benchmark.glob("*.jsonl"))}


def _reference_sha256(reference: Path | None) -> str | None:
    return read_json(reference)["spec"]["weights_sha256"] if reference else None
