"""The command line: one command a stage, the same code that the workflow's rules call.

Bad input ends with one line on stderr and exit code 2. What a command does is in stages.py.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lethe import stages, warm
from lethe.errors import LetheError


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if os.environ.get("LETHE_WARM") and os.environ.get("HF_HUB_OFFLINE"):
        return warm.call(argv)
    args = parser().parse_args(argv)
    # Noise of importing PEFT and bitsandbytes that a person can do nothing about.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
    try:
        args.stage(args)
    except LetheError as e:
        print(f"lethe: {e}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lethe", description="LLM unlearning: train, unlearn, attack, evaluate, report.")
    commands = top.add_subparsers(metavar="stage", required=True)

    def command(stage: Any, help: str) -> argparse.ArgumentParser:
        name = stage.__name__.replace("_", "-")
        sub = commands.add_parser(name, help=help, description=(stage.__doc__ or help).split("\n\n")[0])
        sub.set_defaults(stage=stage)
        return sub

    p = command(stages.prepare, "write the data of a benchmark, a corpus or the embedded world as JSON Lines")
    p.add_argument("--kind", choices=["world", "library", "corpus", "benchmark"], required=True)
    p.add_argument("--spec", required=True, metavar="JSON", help="the entry of the scale file")
    p.add_argument("--out", type=Path, required=True)

    p = command(stages.pretrain, "make a base model: train a small one from nothing, or fetch one")
    p.add_argument(
        "--source",
        required=True,
        metavar="JSON",
        help='{"tiny": {...}}, {"hub": ..., "revision": ...} or {"local": DIR}',
    )
    p.add_argument("--data", type=Path, help="folder with pretrain.jsonl and tokenizer/ (tiny models)")
    p.add_argument("--as-run", action="store_true", help="of a fetched model: weights/, run.json, trace.csv in --out")
    _recipe_options(p, "pretrain")
    p.add_argument("--seed", type=int, default=0)
    _model_options(p)
    _output_options(p)

    p = command(stages.finetune, "fine-tune a model on rows")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB")
    p.add_argument("--train", type=Path, required=True, metavar="JSONL", help="rows {question, answer} or {text}")
    p.add_argument("--replay", type=Path, metavar="JSONL", help="rows of which some are mixed into every epoch")
    p.add_argument("--flat", action="store_true", help="put the weights into the run's folder itself")
    _recipe_options(p, "target")
    _seed_options(p)
    _model_options(p)
    _output_options(p)

    p = command(stages.unlearn, "unlearn the rows of a file")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB", help="the model to start from")
    p.add_argument("--forget", type=Path, required=True, metavar="JSONL", help="rows {question, answer} or {text}")
    p.add_argument("--retain", type=Path, metavar="JSONL", help="rows whose answers should not change")
    _unlearning_options(p)
    _recipe_options(p, None)
    _seed_options(p)
    _model_options(p)
    _output_options(p)

    p = command(stages.watch, "unlearn, only to measure on the way: one curve a seed, no weights")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB", help="the model to start from")
    p.add_argument("--forget", type=Path, required=True, metavar="JSONL", help="rows {question, answer}")
    p.add_argument("--retain", type=Path, required=True, metavar="JSONL", help="rows {question, answer}")
    _unlearning_options(p)
    p.add_argument("--every", type=int, default=2, help="steps between measurements")
    p.add_argument("--rows", type=int, default=50, help="how many rows of each file to measure on")
    p.add_argument("--past", type=int, required=True, help="where recipes with a stop rule end, in steps")
    p.add_argument("--max-new-tokens", type=int, default=200)
    p.add_argument("--margin", metavar="JSON", help="k, beta, rho: what counts as a violation; default: the recipe's")
    _recipe_options(p, None)
    p.add_argument("--seeds", type=int, nargs="+", default=[0], help="one curve each, s{seed}.csv below --out")
    _model_options(p)
    _output_options(p)

    p = command(stages.evaluate, "score a model, or the runs of a recipe, on a benchmark, as they are or attacked")
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="DIR_OR_HUB")
    which.add_argument("--runs", type=Path, metavar="DIR", help="a folder of s{seed} runs")
    p.add_argument("--seeds", type=int, nargs="+", help="with --runs")
    p.add_argument(
        "--weights", metavar="PATTERN", help="with --runs: where the weights lie; default: RUNS/s{seed}/weights"
    )
    p.add_argument(
        "--benchmark", type=Path, required=True, metavar="DIR", help="prepared data, or a folder with forget.jsonl"
    )
    p.add_argument("--reference", type=Path, metavar="EVAL_JSON", help="evaluation of the retrained model")
    p.add_argument("--attack", nargs="+", default=["none"], metavar="ATTACK", help="none, bnb-nf4, rtn4, ...")
    p.add_argument("--options", default="{}", metavar="JSON", help="evaluation settings (see the scale files)")
    p.add_argument("--margin", metavar="JSON", help="k, beta, rho: report MASC's violation rate")
    _model_options(p)
    p.add_argument("--out", type=Path, help="with --model: the JSON file to write")
    p.add_argument("--work", type=Path, help="with --runs: where finished parts wait")

    p = command(stages.attack, "write a model whose weights were quantised and dequantised")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB")
    p.add_argument("--attack", required=True)
    _model_options(p)
    p.add_argument("--out", type=Path, required=True)

    p = command(stages.summarise, "gather runs and evaluations into a handful of tidy files")
    p.add_argument("--scale", required=True)
    p.add_argument("--study", nargs="+", required=True, help="the studies whose evaluations to gather")
    p.add_argument("--tier", choices=["core", "full"], default="core")
    p.add_argument("--out", type=Path, required=True)

    p = command(stages.fit, "power laws of scores in model size")
    p.add_argument("--summary", type=Path, required=True)
    p.add_argument("--roles", required=True, metavar="JSON")
    p.add_argument("--out", type=Path, required=True)

    p = command(stages.draw, "one table or figure of a study")
    p.add_argument("--study", required=True)
    p.add_argument("--kind", choices=["table", "figure"], required=True)
    p.add_argument("--id", required=True)
    p.add_argument("--summary", type=Path, required=True)
    p.add_argument("--fits", type=Path, required=True)
    p.add_argument("--reported", type=Path, required=True)
    p.add_argument("--roles", required=True, metavar="JSON")
    p.add_argument("--out", required=True, metavar="STEM")

    p = command(stages.compare, "compare the tables of a reproduction with the accepted ones; informs, never fails")
    p.add_argument("ours", type=Path)
    p.add_argument("expected", type=Path)

    p = command(stages.accept, "copy a scale's results to expected/, to be committed")
    p.add_argument("--scale", required=True)

    p = command(stages.bench, "time what makes the stages fast, with and without")
    p.add_argument("--scale", required=True)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--out", type=Path, required=True)

    p = command(stages.tune, "run the trials of the tuning protocol and write their log")
    p.add_argument("--benchmark", required=True, help="of scale tuning")
    p.add_argument("--trials", type=Path, default=Path("config/tuning.yaml"))
    p.add_argument("--recipes", nargs="+", metavar="NAME", help="only these now; the log has whatever was run")
    p.add_argument("--out", type=Path, help="default: config/tuning/BENCHMARK.csv")
    p.add_argument("--work", type=Path, help="default: work/tuning/trials/BENCHMARK")

    p = command(stages.score_log, "recompute the aggregates of a published evaluation log (TOFU's or OpenUnlearning's)")
    p.add_argument("log", type=Path)
    p.add_argument("--retain", type=Path, metavar="LOG", help="the retrained model's log, for forget quality")
    p.add_argument("--truth-ratio", choices=["geo", "arith", "prob_mean"], default="geo")
    return top


def _recipe_options(p: argparse.ArgumentParser, default: str | None) -> None:
    p.add_argument(
        "--recipe",
        required=default is None,
        default=default,
        metavar="NAME_OR_JSON",
        help="an entry of config/recipes.yaml, or a whole recipe as JSON",
    )
    p.add_argument("--at", nargs="*", default=[], metavar="SETTING", help="`at:` entries of the recipe to apply")
    p.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="e.g. stop.alpha=0.4 optimizer.lr=1e-4")


def _unlearning_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--retrain", metavar="DIR", help="the retrained model, for recipes with stop.alpha: retrain")
    p.add_argument("--refusals", type=Path, metavar="JSONL", help="rows {text}, for recipes that teach refusals")
    p.add_argument("--like", type=Path, metavar="RUN", help="a run's folder, may hold {seed}: for recipes with `like`")


def _seed_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--seeds", type=int, nargs="+", help="one run each, into s{seed} below --out")


def _model_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--template", metavar="NAME_OR_JSON", help="chat, llama2 or plain; default: chat where the tokenizer has one"
    )
    p.add_argument("--revision", help="of a hub model")
    p.add_argument("--trust-remote-code", action="store_true")


def _output_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--work", type=Path, help="resume state; default: a hidden folder beside --out")


if __name__ == "__main__":
    sys.exit(main())
