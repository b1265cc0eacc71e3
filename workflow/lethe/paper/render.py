"""From a summary to the files of one table or figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.data import PaperData
from lethe.paper.figures import save_figure
from lethe.paper.style import paper_style
from lethe.paper.tables import save_table

STUDIES = {"masc": masc}


def write_table(study: str, id: str, data: PaperData, out_stem: str | Path) -> None:
    """Write {out_stem}.csv, .md and .tex of a table of the study."""
    make = _artefact(study, "table", id)
    save_table(make(data), out_stem, f"{study}-{id}")


def write_figure(study: str, id: str, data: PaperData, out_stem: str | Path) -> None:
    """Write {out_stem}.pdf, .png and .csv (the plotted numbers) of a figure of the study."""
    make = _artefact(study, "figure", id)
    with paper_style():
        save_figure(make(data), out_stem, f"{study}-{id}")


def render(
    study: str,
    kind: str,
    id: str,
    summary_dir: str | Path,
    roles: Mapping[str, Any],
    reported_csv: str | Path,
    fits_csv: str | Path,
    out_stem: str | Path,
) -> None:
    """Write one artefact, `kind` table or figure, from the files it is made of. Needs neither torch nor a GPU."""
    _artefact(study, kind, id)
    data = PaperData.load(summary_dir, roles, reported_csv, fits_csv)
    (write_table if kind == "table" else write_figure)(study, id, data, out_stem)


def _artefact(study: str, kind: str, id: str) -> Any:
    if study not in STUDIES:
        raise LetheError(f"no study '{study}' (has: {', '.join(STUDIES)})")
    kinds = {"table": STUDIES[study].TABLES, "figure": STUDIES[study].FIGURES}
    if kind not in kinds:
        raise LetheError(f"an artefact is a table or a figure, got '{kind}'")
    if id not in kinds[kind]:
        raise LetheError(f"study {study} has no {kind} '{id}' (has: {', '.join(kinds[kind])})")
    return kinds[kind][id]
