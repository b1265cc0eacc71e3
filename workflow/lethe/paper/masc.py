"""The artefacts of MASC (arXiv 2606.02920) by id.

To add one, write a function from PaperData to a Table (masc_tables.py, muse_tables.py) or a Figure (masc_overview.py,
masc_figures.py, muse_figures.py), name it here and in config/studies/masc.yaml, and say in
workflow/report/masc/{id}.rst what it shows.
"""

from collections.abc import Callable

from lethe.paper import (
    masc_checks,
    masc_curves,
    masc_dose,
    masc_figures,
    masc_overview,
    masc_quantised,
    masc_race,
    masc_scaling,
    masc_settings,
    masc_step,
    masc_tables,
    muse_figures,
    muse_tables,
)
from lethe.paper.data import PaperData
from lethe.paper.figures import Figure
from lethe.paper.tables import Table

TABLES: dict[str, Callable[[PaperData], Table]] = {
    "table1": masc_tables.table1,
    "table2": muse_tables.table2,
    "table3": muse_tables.table3,
    "table7": muse_tables.table7,
    "muse-criteria": muse_tables.muse_criteria,
    "paired": masc_checks.paired,
    "table3-tofu": masc_quantised.table3_tofu,
    "table3-grid": masc_quantised.table3_grid,
    "table4": masc_settings.table4,
    "table5": masc_settings.table5,
    "table6": masc_tables.table6,
    "table8": masc_settings.table8,
    "table9": masc_scaling.table9,
    "table10": masc_scaling.table10,
    "table11": masc_tables.table11,
    "controls": masc_checks.controls,
    "discrepancies": masc_checks.discrepancies,
}
FIGURES: dict[str, Callable[[PaperData], Figure]] = {
    "fig1": masc_overview.fig1,
    "fig2": masc_curves.fig2,
    "fig3": masc_figures.fig3,
    "fig4": masc_figures.fig4,
    "fig5": masc_overview.fig5,
    "fig6": masc_curves.fig6,
    "fig7": masc_figures.fig7,
    "time-to-forget": masc_race.time_to_forget,
    "alpha": masc_race.alpha,
    "quantisation-dose": masc_dose.quantisation_dose,
    "quantisation-step": masc_step.quantisation_step,
    "scalability": muse_figures.scalability,
    "sustainability": muse_figures.sustainability,
}
