"""`lethe` with the same options, whose stages only make the files that they promise."""

from argparse import Namespace
from pathlib import Path

from lethe import cli


def write(*parts: object) -> None:
    path = Path(*map(str, parts))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")


def prepare(args: Namespace) -> None:
    for name in ("full", "replay", "forget", "retain", "idk"):
        write(args.out, f"{name}.jsonl")


def pretrain(args: Namespace) -> None:
    write(args.out, "model.safetensors")
    write(args.out, "run.json")


def train(args: Namespace) -> None:
    for seed in args.seeds:
        folder = args.out / f"s{seed}"
        write(folder if getattr(args, "flat", False) else folder / "weights", "model.safetensors")
        write(folder, "trace.csv")
        write(folder, "run.json")


def watch(args: Namespace) -> None:
    for seed in args.seeds:
        write(args.out, f"s{seed}.csv")


def evaluate(args: Namespace) -> None:
    for seed in args.seeds:
        for attack in args.attack:
            write(args.runs, f"s{seed}", "eval", f"{attack}.json")
            write(args.runs, f"s{seed}", "eval", f"{attack}.items.parquet")


def summarise(args: Namespace) -> None:
    for name in ("metrics.csv", "runs.csv", "traces.csv.gz", "curves.csv.gz", "samples.jsonl", "manifest.json"):
        write(args.out, name)


def fit(args: Namespace) -> None:
    write(args.out)


def draw(args: Namespace) -> None:
    for suffix in {"table": ("csv", "md", "tex"), "figure": ("png", "pdf", "csv", "md")}[args.kind]:
        write(f"{args.out}.{suffix}")


STAGES = {"finetune": train, "unlearn": train} | {
    stage.__name__: stage for stage in (prepare, pretrain, watch, evaluate, summarise, fit, draw)
}

if __name__ == "__main__":
    args = cli.parser().parse_args()
    STAGES[args.stage.__name__](args)
