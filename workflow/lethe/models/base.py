"""Where models come from: pretrained here from random weights, or fetched from the hub or a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from lethe.config import HubSource, LocalSource, TinySource
from lethe.data.text import Template
from lethe.files import lock, write_json
from lethe.machine import machine
from lethe.models import tiny
from lethe.models.load import load_model, load_tokenizer, parameter_counts, save_model, weights_sha256
from lethe.recipe import Recipe
from lethe.unlearn.run import promote, train_single, write_trace
from lethe.unlearn.training import Sources


def pretrain(
    source: TinySource, recipe: Recipe, data: Path, template: Template, out: Path, work: Path, seed: int
) -> None:
    """Train a small model from random weights on data/pretrain.jsonl, with the tokenizer that lies beside it."""
    tokenizer = load_tokenizer(data / "tokenizer")
    options = source.tiny
    model = tiny.build(
        options.architecture,
        tokenizer,
        hidden_size=options.hidden_size,
        layers=options.layers,
        heads=options.heads,
        intermediate_size=options.intermediate_size,
        seed=seed,
    )
    start = work / "start"
    save_model(model, tokenizer, start)
    sources = Sources(start=str(start), retain=data / "pretrain.jsonl", template=template)
    train_single(recipe, sources, seed, out, work / "train", flat=True)
    shutil.rmtree(work)


def fetch(
    source: HubSource | LocalSource, out: Path, work: Path, *, flat: bool = True, trust_remote_code: bool = False
) -> None:
    """Copy a model and its tokenizer into `out` as safetensors, in the dtype they come in; where not flat, as a run:
    out/weights, run.json and a trace without steps."""
    name, revision = (source.hub, source.revision) if isinstance(source, HubSource) else (source.local, None)
    with lock(work / "lock"):
        tokenizer = load_tokenizer(name, revision=revision, trust_remote_code=trust_remote_code)
        model = load_model(name, revision=revision, dtype="auto", trust_remote_code=trust_remote_code)
        done = work / "done"
        save_model(model, tokenizer, done if flat else done / "weights", dtype=str(model.dtype).removeprefix("torch."))
        total, nonembed = parameter_counts(model)
        write_json(
            done / "run.json",
            {
                "recipe": "fetched",
                "source": name,
                "revision": revision,
                "n_params": total,
                "n_params_nonembed": nonembed,
                "weights_sha256": weights_sha256(model),
                "dtype": str(model.dtype),
                **machine(),
            },
        )
        del model
        torch.cuda.empty_cache()
        if not flat:
            write_trace(done / "trace.csv", [])
            promote(work, out)
            return
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(done, out)
    shutil.rmtree(work)
