"""The artefacts of MASC (arXiv 2606.02920) by id.

To add one, write a function from PaperData to a Table (masc_tables.py) or a Figure (masc_figures.py), name it here and
in config/studies/masc.yaml, and say in workflow/report/masc/{id}.rst what it shows.
"""

from collections.abc import Callable

from lethe.paper import masc_figures, masc_tables
from lethe.paper.data import PaperData
from lethe.paper.figures import Figure
from lethe.paper.tables import Table

TABLES: dict[str, Callable[[PaperData], Table]] = {
    "table1": masc_tables.table1,
    "table3-tofu": masc_tables.table3_tofu,
    "table9": masc_tables.table9,
    "table10": masc_tables.table10,
}
FIGURES: dict[str, Callable[[PaperData], Figure]] = {
    "fig1": masc_figures.fig1,
    "fig3": masc_figures.fig3,
    "fig5": masc_figures.fig5,
    "fig7": masc_figures.fig7,
}
