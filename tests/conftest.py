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
