import sys
from pathlib import Path

import pytest

from lethe.analysis.powerlaw import write_fits
from lethe.paper.data import PaperData

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_summary import MUSE_ROLES, ROLES, write_summary


@pytest.fixture(scope="session")
def load(repo):
    """Load a summary folder, with fits made for it and the paper's numbers, as PaperData."""

    def load(folder, roles=ROLES):
        write_fits(folder, roles, folder.parent / "fits.csv")
        return PaperData.load(folder, roles, repo / "config/reported/masc.csv", folder.parent / "fits.csv")

    return load


@pytest.fixture(scope="session")
def data(load, tmp_path_factory):
    """Three seeds of every recipe and the whole ladder, on TOFU and on MUSE."""
    return load(write_summary(tmp_path_factory.mktemp("paper") / "summary", muse=True), MUSE_ROLES)
