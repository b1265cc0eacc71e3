"""Tables: one tidy frame each, and the one place where they become CSV, Markdown and LaTeX."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.errors import LetheError
from lethe.files import write_text
from lethe.paper.data import Printed, recipe_name

SECOND_HAND = "†"
SIGNIFICANT = "%.10g"  # in CSVs: more than any spread, fewer than differ between machines


@dataclass(frozen=True)
class Column:
    """A quantity of a table, read from the frame's columns that begin with `name`.

    It prints `{name}_mean ± {name}_std`, or `{name}` with `[{name}_lo, {name}_hi]` where there are such columns, in
    `digits` decimals, a text as it is; `also` adds columns beside it, each (suffix, heading), printed likewise. The
    paper's `{name}_paper` and `{name}_paper_std` make a row of their own below, in `paper_digits` decimals, and so does
    what it prints of `also`. Where
    `tiny`, numbers that these decimals would round to zero, such as p-values, print as powers of ten.
    """

    name: str
    label: str
    digits: int = 3
    paper_digits: int = 3
    also: tuple[tuple[str, str], ...] = ()
    tiny: bool = False


@dataclass(frozen=True)
class Table:
    """`frame` is what the CSV holds: key columns first, then numbers, NaN where there is none.

    `keys` maps its key columns to their headings; a constant key (other than the first) is left out of print, being in
    the caption. `labels` maps values of keys to how they print. `blocks` names the key at whose changes a rule is
    drawn. `notes` stand below.
    """

    frame: pd.DataFrame
    keys: Mapping[str, str]
    columns: Sequence[Column]
    caption: str
    notes: Sequence[str] = ()
    blocks: str = "benchmark"
    labels: Mapping[str, str] = field(default_factory=dict)


def beside_paper(
    frame: pd.DataFrame, name: str, printed: Sequence[Printed | None], spread: bool = True
) -> pd.DataFrame:
    """Add {name}_paper, {name}_paper_std (unless spread is False) and, where one is second-hand, {name}_paper_mark."""
    frame[f"{name}_paper"] = [p.value if p else math.nan for p in printed]
    if spread:
        frame[f"{name}_paper_std"] = [math.nan if p is None or p.std is None else p.std for p in printed]
    if any(p and p.second_hand for p in printed):
        frame[f"{name}_paper_mark"] = [SECOND_HAND if p and p.second_hand else "" for p in printed]
    return frame


def save_table(table: Table, out_stem: str | Path, label: str) -> None:
    """Write {out_stem}.csv, .md and .tex; `label` is the LaTeX label and the name used in errors."""
    if table.frame.empty:
        raise LetheError(f"{label}: the summary has no run that belongs in it")
    numbers = table.frame.select_dtypes("number")
    if bad := [c for c in numbers if not numbers[c].dropna().map(math.isfinite).all()]:
        raise LetheError(f"{label}: {bad[0]} must be finite or empty, got infinity")
    csv = table.frame.to_csv(index=False, float_format=SIGNIFICANT, lineterminator="\n")
    write_text(f"{out_stem}.csv", csv)
    write_text(f"{out_stem}.md", markdown(table))
    write_text(f"{out_stem}.tex", latex(table, label))


def cells(table: Table) -> tuple[list[str], list[list[str]], list[int]]:
    """Headings, rows of printed text, and the rows (by index) before which a new block begins."""
    first, *rest = table.keys
    keys = [first, *(k for k in rest if table.frame[k].nunique(dropna=False) > 1)]
    headings = [table.keys[k] for k in keys]
    for column in table.columns:
        headings += [column.label, *(heading for _, heading in column.also)]
    counted = "n_seeds" in table.frame
    headings += ["seeds"] if counted else []
    rows: list[list[str]] = []
    breaks: list[int] = []
    block: Any = None
    for record in table.frame.to_dict("records"):
        names = [recipe_name(record[k]) if k == "recipe" else _key(record[k], table.labels) for k in keys]
        ours = [text for column in table.columns for text in _ours(record, column)]
        paper = [text for column in table.columns for text in _paper(record, column)]
        if block is not None and record.get(table.blocks) != block:
            breaks.append(len(rows))
        block = record.get(table.blocks)
        if any(ours):
            rows.append([*names, *ours, *([_number(record["n_seeds"], 0)] if counted else [])])
        if any(paper):
            rows.append([f"{names[0]}, paper", *names[1:], *paper, *([""] if counted else [])])
    return headings, rows, breaks


def _ours(record: Mapping[str, Any], column: Column) -> list[str]:
    suffixes = ("", *(suffix for suffix, _ in column.also))
    return [_quantity(record, column.name + suffix, column.digits, column.tiny) for suffix in suffixes]


def _paper(record: Mapping[str, Any], column: Column) -> list[str]:
    texts = []
    for name in (column.name, *(column.name + suffix for suffix, _ in column.also)):
        value, std = record.get(f"{name}_paper"), record.get(f"{name}_paper_std")
        text = _spread(value, std, column.paper_digits, column.tiny)
        texts.append(text + (record.get(f"{name}_paper_mark") or "") if text else "")
    return texts


def _quantity(record: Mapping[str, Any], name: str, digits: int, tiny: bool) -> str:
    if f"{name}_lo" in record:
        interval = [_number(record[f"{name}_{end}"], digits, tiny) for end in ("lo", "hi")]
        value = _number(record[name], digits, tiny)
        return f"{value} [{', '.join(interval)}]" if value and all(interval) else value
    return _spread(record.get(f"{name}_mean", record.get(name)), record.get(f"{name}_std"), digits, tiny)


def _spread(value: Any, std: Any, digits: int, tiny: bool) -> str:
    value, std = _number(value, digits, tiny), _number(std, digits, tiny)
    return f"{value} ± {std}" if value and std else value


def _number(value: Any, digits: int, tiny: bool = False) -> str:
    if value is None or pd.isna(value):
        return ""
    if isinstance(value, str):
        return " ".join(value.split())
    text = f"{value:.{digits}f}"
    if float(text) != 0:
        return text
    return f"{value:.1e}" if tiny and value != 0 else text.removeprefix("-")


def _key(value: Any, labels: Mapping[str, str]) -> str:
    return "" if pd.isna(value) else labels.get(value, value) if isinstance(value, str) else f"{value:,.0f}"


LONG = 40  # characters of a text beyond which LaTeX breaks it into lines


def _alignment(table: Table, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A letter a printed column: l for keys and texts, p for texts with a long one among them, r for numbers."""
    n_keys = len(headings) - sum(1 + len(c.also) for c in table.columns) - ("n_seeds" in table.frame)
    letters = ["l"] * n_keys
    for column in table.columns:
        texts = column.name in table.frame and table.frame[column.name].map(lambda v: isinstance(v, str)).any()
        letters += ["l" if texts else "r", *("r" for _ in column.also)]
    letters += ["r"] * (len(headings) - len(letters))
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(headings))]
    return ["p" if a == "l" and n > LONG else a for a, n in zip(letters, longest, strict=True)]


def markdown(table: Table) -> str:
    headings, rows, _ = cells(table)
    rules = ["---:" if letter == "r" else "---" for letter in _alignment(table, headings, rows)]
    lines = [table.caption, ""]
    lines += ["| " + " | ".join(_md(text) for text in headings) + " |", "|" + "|".join(rules) + "|"]
    lines += ["| " + " | ".join(_md(text) for text in row) + " |" for row in rows]
    lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Text that Markdown prints as it is, whatever a model generated."""
    return re.sub(r"([\\|<*_`])", r"\\\1", text)


def latex(table: Table, label: str) -> str:
    """A booktabs table, shrunk to the line if it is wider, its notes below. Needs booktabs and graphicx."""
    headings, rows, breaks = cells(table)
    letters = {"p": r"p{0.3\linewidth}", "l": "l", "r": "r"}
    body = []
    for i, row in enumerate(rows):
        body += ["\\midrule"] if i in breaks else []
        body.append(" & ".join(tex(text) for text in row) + " \\\\")
    return "\n".join([
        "% needs \\usepackage{booktabs,graphicx}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{tex(table.caption)}}}",
        f"\\label{{tab:{label}}}",
        "\\small",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{''.join(letters[letter] for letter in _alignment(table, headings, rows))}}}",
        "\\toprule",
        " & ".join(tex(text) for text in headings) + " \\\\",
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}}",
        *(f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {tex(note)}}}" for note in table.notes),
        "\\end{table}",
    ]) + "\n"  # fmt: skip


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "±": r"$\pm$",
    "×": r"$\times$", "†": r"$\dagger$", "Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$", "η": r"$\eta$",
    "…": r"\ldots{}", "λ": r"$\lambda$", "ρ": r"$\rho$", "τ": r"$\tau$", "²": "$^2$", "–": "--",
})  # fmt: skip


def tex(text: str) -> str:
    """Text safe in LaTeX; a minus sign before a number is set as one."""
    escaped = text.translate(_TEX).replace(r"\textasciicircum{}$\alpha$", r"$^\alpha$")
    return re.sub(r"(?<![\w)-])-(?=\d)", "$-$", escaped)
