"""From runs and evaluations to the summary: a handful of tidy files that hold everything tables and figures read."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe import paths
from lethe.analysis.summary import CURVES, METRIC_KEY, RUN_KEY, RUNS
from lethe.config import Scale
from lethe.files import atomic, read_json, sha256_file, write_json, write_jsonl, write_text
from lethe.plan import Cell, Curve, run_folder

METRIC_COLUMNS = [*RUN_KEY[:2], "n_params", *RUN_KEY[2:], "attack", "metric", "value", "n", "lo", "hi", "reason"]
RUN_COLUMNS = [
    *RUNS, "n_params_nonembed", "alpha", "reference_cpu_s", "cores", "update_norm", "update_over_step",
    "update_over_step_touched", "codes_changed", "update_over_step_random", "codes_changed_random", "spec",
]  # fmt: skip


def write_summary(
    scale: Scale, cells: Sequence[Cell], curves: Sequence[Curve], out: Path, root: Path = Path(".")
) -> None:
    """Write metrics.csv, runs.csv, traces.csv.gz, curves.csv.gz, samples.jsonl and manifest.json of these evaluations
    and watched runs into `out`.

    LetheError: an evaluation or run that is missing.
    """
    metrics: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    runs: dict[Cell, dict[str, Any]] = {}
    traces: list[pd.DataFrame] = []
    for cell in cells:
        key = cell._asdict()
        evaluation = read_json(root / paths.evaluation(scale.name, cell.run, cell.seed, cell.attack))
        for name, metric in evaluation["metrics"].items():
            metrics.append({**key, "n_params": evaluation["n_params"], "metric": name, **metric})
        samples += [{**key, **sample} for sample in evaluation["samples"]]
        if (run := cell._replace(attack="none")) not in runs:
            folder = root / run_folder(scale, cell.run, cell.seed)
            record = read_json(folder / "run.json")
            runs[run] = {
                **record,
                "benchmark": cell.benchmark,
                "model": cell.model,
                "recipe": cell.recipe,
                "seed": cell.seed,
                "spec": json.dumps(record["spec"], sort_keys=True, separators=(",", ":")) if "spec" in record else None,
            }
            if (trace := folder / "trace.csv").exists():
                keys = {k: v for k, v in key.items() if k in RUN_KEY}
                traces.append(pd.read_csv(trace).assign(**keys))
    frame = pd.DataFrame(metrics, columns=METRIC_COLUMNS).sort_values(METRIC_KEY, ignore_index=True)
    write_csv(out / "metrics.csv", frame)
    write_csv(
        out / "runs.csv", pd.DataFrame(runs.values(), columns=RUN_COLUMNS).sort_values(RUN_KEY, ignore_index=True)
    )
    write_csv(out / "traces.csv.gz", trace_table(traces))
    write_csv(out / "curves.csv.gz", curve_table(scale, curves, root))
    write_jsonl(out / "samples.jsonl", samples)
    write_manifest(out)


def trace_table(traces: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """All traces below each other, keys first, a run's steps in order."""
    table = pd.concat(list(traces), ignore_index=True)
    columns = [*RUN_KEY, *(c for c in table.columns if c not in RUN_KEY)]
    return table[columns].sort_values([*RUN_KEY, "step"], ignore_index=True)


def curve_table(scale: Scale, curves: Sequence[Curve], root: Path) -> pd.DataFrame:
    """All watched steps below each other, keys first."""
    parts = []
    for curve in curves:
        keys = {k: v for k, v in curve._asdict().items() if k in RUN_KEY}
        parts.append(pd.read_csv(root / paths.curve(scale.name, curve.run, curve.seed)).assign(**keys))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=CURVES)
    return table[CURVES].sort_values([*RUN_KEY, "step"], ignore_index=True)


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """The same bytes for the same table, compressed or not. Six digits; of a bootstrap's
    interval three, which is what its resamples agree on."""
    ends = {c: pd.to_numeric(frame[c]).map("{:.3g}".format, na_action="ignore") for c in ("lo", "hi") if c in frame}
    text = io.StringIO()
    frame.assign(**ends).to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    if path.suffix != ".gz":
        write_text(path, text.getvalue())
        return
    with atomic(path) as tmp:
        tmp.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def write_manifest(folder: Path) -> None:
    """sha256 of every file of the folder, written last."""
    files = {
        p.name: {"sha256": sha256_file(p)}
        for p in sorted(folder.iterdir())
        if p.name != "manifest.json" and p.name[0] != "."
    }
    write_json(folder / "manifest.json", {"files": files})
