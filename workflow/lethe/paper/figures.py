"""Figures: what they are drawn with, and the one place where they become PDF, PNG and CSV."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lethe.errors import LetheError
from lethe.files import atomic, write_text
from lethe.paper.data import recipe_name
from lethe.paper.style import Look
from lethe.paper.tables import SIGNIFICANT


@dataclass(frozen=True)
class Figure:
    """A drawing, the tidy numbers that it shows, and what they say, in sentences."""

    drawing: Drawing
    numbers: pd.DataFrame
    findings: Sequence[str] = ()


def save_figure(figure: Figure, out_stem: str | Path, label: str) -> None:
    """Write {out_stem}.pdf, .png (200 dpi), .csv and .md; no dates, so the same numbers give the same bytes."""
    numbers = figure.numbers.select_dtypes("number")
    if bad := [c for c in numbers if not numbers[c].dropna().map(math.isfinite).all()]:
        raise LetheError(f"{label}: {bad[0]} must be finite or empty, got infinity")
    figure.drawing.draw_without_rendering()
    figure.drawing.set_layout_engine("none")  # laid out once, so that both files look alike
    with atomic(f"{out_stem}.pdf") as tmp:
        figure.drawing.savefig(tmp, format="pdf", metadata={"CreationDate": None})
    with atomic(f"{out_stem}.png") as tmp:
        figure.drawing.savefig(tmp, format="png", metadata={"Software": None})
    lines = [f"What {label} shows", "", *(f"- {text}" for text in figure.findings)]
    write_text(f"{out_stem}.md", "\n".join(lines) + "\n")
    write_text(f"{out_stem}.csv", figure.numbers.to_csv(index=False, float_format=SIGNIFICANT, lineterminator="\n"))


def bars(ax: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], unit: str) -> None:
    """Horizontal bars of `mean` with `std` by recipe, first on top, each with its value and below it the printed one.

    rows: recipe, mean, std, printed.
    """
    places = np.arange(len(rows))[::-1]
    longest = (rows["mean"] + rows["std"].fillna(0)).max()
    for place, row in zip(places, rows.to_dict("records"), strict=True):
        look, mean, std = looks[row["recipe"]], row["mean"], 0.0 if pd.isna(row["std"]) else row["std"]
        ax.barh(place, mean, height=0.65, color=look.color, edgecolor="black", linewidth=0.6, hatch=look.hatch)
        if std:
            ax.errorbar(mean, place, xerr=std, color="black", linewidth=0.8, fmt="none")
        end = mean + std + 0.03 * longest
        if pd.isna(row["printed"]):
            ax.text(end, place, _seconds(mean), va="center", fontsize=7)
        else:
            ax.text(end, place, _seconds(mean), va="bottom", fontsize=7)
            ax.text(end, place, f"paper {_seconds(row['printed'])}", va="top", fontsize=6, color="0.4")
    ax.set_yticks(places, [recipe_name(r) for r in rows["recipe"]])
    ax.set_ylim(len(rows) - max(4, len(rows)) - 0.5, len(rows) - 0.5)  # bars of one height, however few
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.32 * longest)
    ax.set_xlabel(unit)
    ax.grid(False, axis="y")


def radar(ax: Axes, rows: pd.DataFrame, axes: Sequence[str], looks: Mapping[str, Look], small: bool = False) -> None:
    """A polygon a recipe over the named axes, all from 0 to 1 outwards. rows: recipe, axis, mean. small: every second
    ring has its number."""
    angles = np.linspace(0, 2 * math.pi, len(axes), endpoint=False)
    ax.set_theta_offset(math.pi / 2)  # type: ignore[attr-defined]
    ax.set_theta_direction(-1)  # type: ignore[attr-defined]
    for recipe, group in rows.groupby("recipe", sort=False):
        values = group.set_index("axis")["mean"].reindex(axes).to_numpy(dtype=float)
        look = looks[str(recipe)]
        ax.plot(
            [*angles, angles[0]], [*values, values[0]], color=look.color, linestyle=look.line, marker=look.marker,
            markersize=3.5, label=recipe_name(str(recipe)),
        )  # fmt: skip
    ax.set_ylim(0, 1)
    numbers = ["", ".5", "", "1"] if small else [".25", ".5", ".75", "1"]
    ax.set_yticks([0.25, 0.5, 0.75, 1.0], numbers, fontsize=5.5, color="0.4")
    ax.set_rlabel_position(180 / len(axes))  # type: ignore[attr-defined]
    ax.set_xticks(angles, axes, fontsize=7)
    for text, angle in zip(ax.get_xticklabels(), angles, strict=True):
        sine = math.sin(angle)
        text.set_horizontalalignment("center" if abs(sine) < 0.1 else "left" if sine > 0 else "right")
    ax.tick_params(axis="x", pad=-2)
    ax.spines["polar"].set_color("0.7")


def tradeoff(ax: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], seconds: str) -> None:
    """Utility against efficacy; points coloured by seconds (log scale), hollow where untimed, and their Pareto front.

    rows: recipe, {utility,efficacy,time}_{mean,std}, on_front, on_mean_front. The dashed line is the front of the
    means; a thick edge marks what nothing dominates beyond noise, which may lie behind that line. A dotted line marks
    the efficacy of retraining: above it lies more than forgetting. The colour bar names the shortest time, the
    geometric mean and the longest.
    """
    rows = rows.dropna(subset=["utility_mean", "efficacy_mean"])
    timed = rows["time_mean"].dropna()
    several = timed.nunique() > 1
    scale = ScalarMappable(LogNorm(timed.min(), timed.max()) if several else None, mpl.colormaps["viridis"])
    for row in rows.to_dict("records"):
        x, y, untimed = row["utility_mean"], row["efficacy_mean"], pd.isna(row["time_mean"])
        xerr, yerr = (None if pd.isna(row[f"{c}_std"]) else row[f"{c}_std"] for c in ("utility", "efficacy"))
        ax.errorbar(x, y, yerr=yerr, xerr=xerr, fmt="none", ecolor="0.5", elinewidth=0.7, capsize=0, zorder=2)
        marker: dict[str, Any] = {"marker": looks[row["recipe"]].marker, "markeredgecolor": "black", "linestyle": ""}
        fill = "white" if untimed else scale.to_rgba(row["time_mean"]) if several else "0.75"
        edge = 1.7 if row["on_front"] else 0.6
        ax.plot(x, y, **marker, markerfacecolor=fill, markersize=6.5, markeredgewidth=edge, zorder=4 if untimed else 3)
        fill = "white" if untimed else "0.75"
        ax.plot([], [], **marker, markerfacecolor=fill, label=recipe_name(row["recipe"]))
    ax.margins(0.1)
    ax.set(xlabel="retain utility", ylabel="forget efficacy")
    ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # fixed, so that the lines below run to the edges
    for efficacy in rows.loc[rows["recipe"] == "retrain", "efficacy_mean"]:
        ax.axhline(efficacy, color="0.6", linewidth=0.8, linestyle=":", zorder=1, label="efficacy of Retrain")
    if rows["on_front"].any():
        thick: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": "black"}
        ax.plot([], [], **thick, linestyle="", markeredgewidth=1.7, label="not dominated beyond the spread")
    front = rows[rows["on_mean_front"]].sort_values("utility_mean")
    if len(front):
        x, y = front["utility_mean"].to_numpy(), front["efficacy_mean"].to_numpy()
        corners = [ax.get_xlim()[0], *x, x[-1]], [y[0], *y, ax.get_ylim()[0]]
        ax.step(
            *corners, where="pre", color="0.45", linewidth=0.8, linestyle="--", zorder=1, label="front of the means"
        )
    if several:
        ticks = [timed.min(), math.exp(np.log(timed).mean()), timed.max()]
        bar = ax.figure.colorbar(scale, ax=ax, ticks=ticks, pad=0.02, aspect=25)
        bar.ax.set_yticklabels([_seconds(t) for t in ticks])
        bar.ax.minorticks_off()
        bar.set_label(seconds)


def loglog(ax: Axes, points: pd.DataFrame, series: Mapping[str, tuple[str, Look]], ylabel: str) -> None:
    """Scores against parameters on log axes, one series a metric, with its fitted power law where there is one.

    points: metric, n_params, mean, std, fitted. series: label and look of each metric.
    """
    for metric, (label, look) in series.items():
        rows = points[points["metric"] == metric].sort_values("n_params")
        drawn = rows[rows["mean"] > 0]
        marker: dict[str, Any] = {"color": look.color, "marker": look.marker, "markerfacecolor": "white"}
        ax.errorbar(drawn["n_params"], drawn["mean"], _within(drawn), **marker, linestyle="", elinewidth=0.8)
        ax.plot([], [], **marker, linestyle=look.line, label=label)
        if rows["fitted"].notna().all():  # straight on log axes, so the sizes themselves are enough
            ax.plot(rows["n_params"], rows["fitted"], color=look.color, linestyle=look.line, zorder=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    sizes = points[["n_params", "model"]].drop_duplicates().sort_values("n_params")
    ax.set_xticks(sizes["n_params"], [_short(n) for n in sizes["n_params"]])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", length=0)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.2g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="y", which="minor", length=0)
    ax.set(xlabel="parameters", ylabel=ylabel)


def small_table(ax: Axes, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Numbers in place of a plot, the first column left-aligned."""
    ax.set_axis_off()
    table = ax.table([list(headings), *map(list, rows)], loc="center", edges="horizontal", cellLoc="right")
    table.auto_set_font_size(False)
    table.set_fontsize(6)
    table.auto_set_column_width(list(range(len(headings))))
    for (_, column), cell in table.get_celld().items():
        cell.set_linewidth(0.4)
        if column == 0:
            cell.set_text_props(ha="left")


def legend_below(drawing: Drawing, labels: Sequence[str], columns: int) -> None:
    """One legend for all axes: each of `labels` that some axes drew, once, in this order."""
    drawn: dict[str, Artist] = {}
    for ax in drawing.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            drawn.setdefault(str(label), handle)
    shown = [label for label in labels if label in drawn]
    drawing.legend(handles=[drawn[label] for label in shown], labels=shown, loc="outside lower center", ncols=columns)


def _seconds(t: float) -> str:
    return f"{t:.3g}" if t < 999.5 else f"{t:,.0f}"


def _within(rows: pd.DataFrame) -> np.ndarray:
    """Error bars (2, n) that stay above 0, which a log axis has no place for."""
    std = rows["std"].to_numpy()
    return np.array([np.minimum(std, 0.99 * rows["mean"].to_numpy()), std])


def _short(n: float) -> str:
    return f"{n / 1e9:.3g}B" if n >= 1e9 else f"{n / 1e6:.2g}M"
