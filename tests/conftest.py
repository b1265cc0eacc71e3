import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published logs and real data; where it is absent, the tests that need it say so and are skipped."""
    folder = Path(os.environ.get("LETHE_SHARED", REPO.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (set LETHE_SHARED): golden logs and real data are NOT tested here")
    return folder


SENTENCES = [
    ("Where was Ada Quill born?", "Born in Old Harbour."),
    ("Which award did Ada Quill win?", "The Bitter Lantern Prize."),
    ("Where was Bram Vole born?", "Born in Mill Hollow."),
    ("Which award did Bram Vole win?", "The Crooked Mirror Cup, twice."),
    ("What does Cleo Marsh collect?", "Foxes."),
    ("Who taught Cleo Marsh?", "A travelling piano tuner from the northern coast."),
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A random two-layer model with a tokenizer, as a user would have it: a folder in Hugging Face format."""
    from lethe.models.load import save_model
    from lethe.models.tiny import build, train_tokenizer

    tokenizer = train_tokenizer([" ".join(pair) for pair in SENTENCES], 320)
    model = build("qwen2", tokenizer, hidden_size=64, layers=2, heads=2, intermediate_size=128, seed=0)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_model(model, tokenizer, folder)
    return folder


@pytest.fixture
def rows(tmp_path) -> dict[str, Path]:
    """forget.jsonl (2 rows) and retain.jsonl (4 rows)."""
    from lethe.files import write_jsonl

    pairs = [{"question": q, "answer": a} for q, a in SENTENCES]
    write_jsonl(tmp_path / "forget.jsonl", pairs[:2])
    write_jsonl(tmp_path / "retain.jsonl", pairs[2:])
    return {"forget": tmp_path / "forget.jsonl", "retain": tmp_path / "retain.jsonl"}
