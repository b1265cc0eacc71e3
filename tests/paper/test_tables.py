import csv
import io
import math
import re

import pandas as pd
import pytest
from synthetic_summary import MUSE_ROLES, ROLES, edit, write_summary

from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.data import Printed
from lethe.paper.render import render, write_table
from lethe.paper.tables import Column, Table, beside_paper, cells, latex, markdown, save_table, tex

TOFU = "tofu-forget10"


@pytest.fixture(scope="module")
def tables(data):
    return {id: make(data) for id, make in masc.TABLES.items()}


def row(table, **keys):
    frame = table.frame
    for column, value in keys.items():
        frame = frame[frame[column] == value]
    (record,) = frame.to_dict("records")
    return record


# ------------------------------------------------------------------------------------------------ numbers


def test_a_cell_of_table_1_equals_its_source(tables, data):
    values = data.summary.select(recipe="simnpo", model="w128", attack="none", metric="forget.prob")["value"]
    found = row(tables["table1"], recipe="simnpo")
    assert found["1-forget.prob_mean"] == pytest.approx(1 - sum(values) / 3)
    assert found["1-forget.prob_std"] == pytest.approx(values.std(ddof=1))
    runs = data.summary.runs
    seconds = runs.loc[(runs["recipe"] == "masc") & (runs["model"] == "w128"), ["steps_cpu_s", "probes_cpu_s"]]
    assert row(tables["table1"], recipe="masc")["time_cpu_s_mean"] == pytest.approx(seconds.sum(axis=1).mean())
    assert found["n_seeds"] == 3


def test_distance_to_retrain_is_the_mean_absolute_distance_to_its_first_seed(tables, data):
    def values(recipe):
        rows = data.summary.select(recipe=recipe, model="w128", attack="none", metric="forget.truth_ratio.geo")
        return rows.sort_values("seed")["value"].tolist()

    reference, *others = values("retrain")
    column = "forget.truth_ratio.geo_distance_to_retrain"
    ga = sum(abs(v - reference) for v in values("ga")) / 3
    assert row(tables["table1"], recipe="ga")[column] == pytest.approx(ga)
    noise = sum(abs(v - reference) for v in others) / 2
    assert row(tables["table1"], recipe="retrain")[column] == pytest.approx(noise)


def test_every_score_that_rewards_overshooting_has_a_distance_beside_it(tables):
    columns = list(tables["table1"].frame)
    for score in ("1-forget.rouge_l_recall", "1-forget.prob", "forget.truth_ratio.geo", "1-forget.value_recall"):
        assert columns.index(f"{score}_distance_to_retrain") > columns.index(f"{score}_mean")
    assert "model_utility_distance_to_retrain" not in columns


@pytest.mark.parametrize(
    ("recipe", "column", "printed"),
    [
        ("target", "1-forget.rouge_l_recall_paper", 0.024),
        ("retrain", "forget.truth_ratio.geo_paper", 0.681),
        ("graddiff", "1-forget.prob_paper", 0.792),
        ("npo", "model_utility_paper", 0.533),
        ("npo-klr", "time_wall_s_paper", 983.3),
        ("masc", "1-forget.rouge_l_recall_paper_std", 0.142),
        ("simnpo", "model_utility_paper", 0.596),
    ],
)
def test_printed_numbers_stand_in_the_right_row_of_table_1(tables, recipe, column, printed):
    assert row(tables["table1"], recipe=recipe)[column] == printed


def test_a_recipe_the_paper_lacks_has_no_printed_number(tables):
    found = row(tables["table1"], recipe="idk-dpo")
    assert all(math.isnan(v) for name, v in found.items() if "_paper" in name)


def test_table_3_subtracts_the_same_seed_at_full_precision(tables, data):
    def values(attack):
        rows = data.summary.select(recipe="npo", model="w128", attack=attack, metric="forget.value_recall")
        return rows.sort_values("seed")["value"].to_numpy()

    change = values("rtn4") - values("none")
    found = row(tables["table3-tofu"], recipe="npo", attack="rtn4")
    assert found["forget.value_recall_delta_mean"] == pytest.approx(change.mean())
    assert found["forget.value_recall_delta_std"] == pytest.approx(change.std(ddof=1))
    assert math.isnan(row(tables["table3-tofu"], recipe="npo", attack="none")["forget.value_recall_delta_mean"])


def test_table_3_has_target_and_retrain_under_every_quantiser(tables):
    frame = tables["table3-tofu"].frame
    for recipe in ("target", "retrain", "masc"):
        assert frame.loc[frame["recipe"] == recipe, "attack"].tolist() == ["none", "bnb-fp4", "bnb-nf4", "rtn4"]


def test_the_sizes_of_table_9_that_are_not_ours_have_rows_of_their_own(tables):
    frame = tables["table9"].frame
    assert frame["model"].tolist()[:4] == ["w64", "w128", "w192", "w256"]
    assert frame["forget.rouge_l_recall_paper"].tolist()[:4] == pytest.approx([math.nan] * 4, nan_ok=True)
    theirs = row(tables["table9"], model="Qwen2.5-3B-Instruct")
    assert (theirs["forget.extraction_strength_paper"], theirs["forget.rouge_l_recall_paper"]) == (0.042, 0.384)
    assert math.isnan(theirs["forget.rouge_l_recall_mean"])


def test_table_9_puts_the_printed_number_beside_a_model_declared_the_same(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target"])
    roles = ROLES | {"models": ROLES["models"] | {"printed": {"w256": "Qwen2.5-7B-Instruct"}}}
    table = masc.TABLES["table9"](load(folder, roles))
    assert row(table, model="w256")["forget.para_rouge_l_recall_paper"] == 0.405
    assert "Qwen2.5-7B-Instruct" not in set(table.frame["model"])


def test_table_10_holds_the_fits_and_the_printed_ones_for_the_total_count_only(tables, data):
    fits = data.fits
    mine = fits[(fits["recipe"] == "masc") & (fits["metric"] == "model_utility") & (fits["n_kind"] == "total")]
    found = row(tables["table10"], recipe="masc", metric="model_utility", n_kind="total")
    assert found["alpha"] == mine["alpha"].item() and found["alpha_hi"] == mine["alpha_hi"].item()
    assert (found["C_paper"], found["alpha_paper"], found["r2_paper"]) == (0.4451, 0.1572, 0.964)
    other = row(tables["table10"], recipe="masc", metric="model_utility", n_kind="nonembed")
    assert math.isnan(other["alpha_paper"])
    simnpo = row(tables["table10"], recipe="simnpo", metric="forget.rouge_l_recall", n_kind="total")
    assert simnpo["alpha_paper"] == -0.0036
    assert set(tables["table10"].frame["recipe"]) == {"simnpo", "masc"}


# ------------------------------------------------------------------------------------------- incomplete summaries


def test_recipes_that_did_not_run_are_absent(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", recipes=["target", "ga"], ladder=[], attacks=["none"]))
    assert masc.TABLES["table1"](data).frame["recipe"].tolist() == ["target", "ga"]
    found = row(masc.TABLES["table1"](data), recipe="ga")
    assert math.isnan(found["1-forget.prob_distance_to_retrain"])  # no retrained model, no distance
    assert masc.TABLES["table3-tofu"](data).frame["attack"].unique().tolist() == ["none"]


def test_one_seed_gives_empty_deviations_and_no_nan_in_any_file(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", seeds=1, muse=True), MUSE_ROLES)
    for id in masc.TABLES:
        write_table("masc", id, data, tmp_path / id)
        for suffix in ("csv", "md", "tex"):
            assert not re.search(r"\b(nan|inf|NaN|None|NA)\b", (tmp_path / f"{id}.{suffix}").read_text())
    frame = pd.read_csv(tmp_path / "table1.csv")
    assert frame.loc[:, frame.columns.str.endswith("_std") & ~frame.columns.str.contains("paper")].isna().all(axis=None)


def test_a_probe_without_values_has_no_column_and_a_score_without_values_a_note(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])

    def lose(frame):
        frame["reason"] = frame["reason"].astype(object)
        frame.loc[frame["metric"] == "forget.mcq_acc", ["value", "reason"]] = [None, "no multiple-choice probes"]
        frame.loc[frame["metric"] == "forget.prob", ["value", "reason"]] = [None, "not asked"]
        return frame

    edit(folder, "metrics.csv", lose)
    table = masc.TABLES["table1"](load(folder))
    assert not table.frame.columns.str.contains("mcq").any()
    assert table.frame["1-forget.prob_mean"].isna().all()
    assert "MASC: no 1-Prob for seed 0, 1, 2 (not asked)" in table.notes


def test_a_table_without_rows_is_refused(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", recipes=["target"], ladder=[]))
    with pytest.raises(LetheError, match="masc-table10: the summary has no run"):
        write_table("masc", "table10", data, tmp_path / "table10")


def test_the_reference_itself_leaves_no_gap(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "retrain", "masc"], ladder=[])

    def lose(frame):
        frame["reason"] = frame["reason"].astype(object)
        rows = (frame["recipe"] == "retrain") & (frame["seed"] == 0) & (frame["metric"] == "forget_quality.p")
        frame.loc[rows, ["value", "reason"]] = [None, "no reference"]
        return frame

    edit(folder, "metrics.csv", lose)
    assert not any("no FQ" in note for note in masc.TABLES["table6"](load(folder)).notes)


@pytest.mark.parametrize(("largest", "direction"), [(0.9, "the same"), (0.01, "the opposite")])
def test_table_9_compares_the_ends_of_both_ladders(load, tmp_path, largest, direction):
    folder = write_summary(tmp_path / "summary", recipes=["target"])

    def change(frame):
        rows = (frame["recipe"] == "base") & (frame["model"] == "w256") & (frame["metric"] == "forget.rouge_l_recall")
        frame.loc[rows, "value"] = largest
        return frame

    edit(folder, "metrics.csv", change)
    notes = masc.TABLES["table9"](load(folder)).notes
    (text,) = [note for note in notes if note.startswith("E-ROUGE")]
    assert text.endswith(f"{largest:.3f} in the largest; the paper prints 0.198 and 0.425, {direction} direction.")
    assert notes[-1] == "One model a size, here as there: no trend can be told from chance."


def test_refused_fits_are_noted(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=["w64", "w128"]))
    table = masc.TABLES["table10"](data)
    assert table.frame[["C", "alpha", "r2"]].isna().all(axis=None)
    assert table.notes[-1].startswith("No fit for MASC (") and table.notes[-1].endswith("2 of at least 3 sizes.")


# ------------------------------------------------------------------------------------------------ files


def markdown_rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    parts = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines]
    return [[re.sub(r"\\([\\|<*_`])", r"\1", cell.strip()) for cell in row] for row in parts]


def latex_rows(text):
    body = text.split("\\toprule\n")[1].split("\\bottomrule")[0]
    lines = [line.removesuffix(" \\\\") for line in body.splitlines() if not line.startswith("\\midrule")]
    return [[cell.strip() for cell in line.split(" & ")] for line in lines]


@pytest.mark.parametrize("id", masc.TABLES)
def test_markdown_latex_and_csv_agree(tables, id):
    table = tables[id]
    headings, rows, _ = cells(table)
    assert markdown_rows(markdown(table)) == [headings, *rows]
    assert latex_rows(latex(table, id)) == [[tex(cell) for cell in line] for line in (headings, *rows)]
    ours = iter(line for line in rows if not line[0].endswith(", paper"))
    first = table.columns[0]
    at = headings.index(first.label)
    for record in table.frame.to_dict("records"):
        mean = record.get(f"{first.name}_mean", record.get(first.name))
        if isinstance(mean, str):
            assert next(ours)[at] == mean
        elif not math.isnan(mean):
            assert float(re.split(r" [±\[]", next(ours)[at])[0]) == pytest.approx(mean, abs=0.51 * 10**-first.digits)


def test_the_paper_stands_below_ours_and_a_minus_is_one_in_latex(tables):
    text = latex(tables["table10"], "x")
    assert "SimNPO, paper & E-ROUGE & total & 0.3797 & $-$0.0036 & 0.342" in text


def test_latex_columns_match_the_cells(tables):
    for id, table in tables.items():
        text = latex(table, id)
        spec = re.search(r"\\begin\{tabular\}\{(.+)\}\n", text).group(1)
        columns = spec.replace(r"p{0.3\linewidth}", "p")
        assert set(columns) <= set("lrp")
        for line in text.split("\\toprule")[1].split("\\bottomrule")[0].splitlines():
            assert line.startswith("\\midrule") or not line or line.count(" & ") == len(columns) - 1
        assert text.isascii()


def test_latex_specials_are_escaped():
    assert tex("50% of a_b & c #1 $2 {x} ~ ^ \\") == (
        r"50\% of a\_b \& c \#1 \$2 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert tex("0.1 ± 0.2, N^α, R², <5, -3, 1-Prob, GA-2") == (
        r"0.1 $\pm$ 0.2, N$^\alpha$, R$^2$, $<$5, $-$3, 1-Prob, GA-2"
    )


def test_a_second_hand_number_carries_a_mark_in_every_file(tmp_path):
    frame = pd.DataFrame({"recipe": ["masc", "ga"], "mu_mean": [0.5, 0.4], "mu_std": [0.01, None], "n_seeds": [3, 1]})
    frame = beside_paper(frame, "mu", [Printed(0.6, 0.02, second_hand=True), None])
    save_table(Table(frame, {"recipe": "Method"}, [Column("mu", "MU")], "A table."), tmp_path / "t", "t")
    assert "| MASC, paper | 0.600 ± 0.020† |  |" in (tmp_path / "t.md").read_text()
    assert r"MASC, paper & 0.600 $\pm$ 0.020$\dagger$ &" in (tmp_path / "t.tex").read_text()
    assert [r["mu_paper_mark"] for r in csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))] == ["†", ""]


def test_a_tiny_p_value_is_not_printed_as_zero():
    frame = pd.DataFrame({"recipe": ["masc", "ga", "npo"], "p": [1.72e-17, 0.0, 0.25]})
    assert [r[1] for r in cells(Table(frame, {"recipe": "Method"}, [Column("p", "p", tiny=True)], ""))[1]] == [
        "1.7e-17", "0.000", "0.250",
    ]  # fmt: skip


def test_what_a_model_generated_prints_as_it_is():
    frame = pd.DataFrame({"question": ["Who | what?"], "masc": ["<b> *a_b* `c` \\ \n 50%"]})
    table = Table(frame, {"question": "Question"}, [Column("masc", "MASC")], "")
    assert markdown(table).splitlines()[4] == r"| Who \| what? | \<b> \*a\_b\* \`c\` \\ 50% |"
    assert r"Who $|$ what? & $<$b$>$ *a\_b* `c` \textbackslash{} 50\% \\" in latex(table, "x")


def test_texts_are_set_left_and_broken_where_they_are_long():
    frame = pd.DataFrame({"question": ["Q"], "short": ["a"], "long": ["word " * 20], "x": [0.5]})
    table = Table(frame, {"question": "Question"}, [Column(c, c) for c in ("short", "long", "x")], "")
    assert markdown(table).splitlines()[3] == "|---|---|---|---:|"
    assert r"\begin{tabular}{llp{0.3\linewidth}r}" in latex(table, "x")


def test_notes_stand_below_the_table_in_latex():
    table = Table(
        pd.DataFrame({"recipe": ["masc"], "x": [1.0]}), {"recipe": "Method"}, [Column("x", "X")], "T.", ["A note."]
    )
    caption, body = latex(table, "x").split("\\label")
    assert "T." in caption and "A note." not in caption and "A note." in body.split("\\end{tabular}")[1]


def test_a_small_negative_number_is_not_printed_as_minus_zero():
    table = Table(pd.DataFrame({"recipe": ["masc"], "x": [-0.0001]}), {"recipe": "Method"}, [Column("x", "X")], "")
    assert cells(table)[1] == [["MASC", "0.000"]]


def test_an_infinite_number_is_refused(tmp_path):
    table = Table(pd.DataFrame({"recipe": ["masc"], "x": [math.inf]}), {"recipe": "Method"}, [Column("x", "X")], "")
    with pytest.raises(LetheError, match="t: x must be finite or empty"):
        save_table(table, tmp_path / "t", "t")


def test_blocks_of_benchmarks_are_ruled_off(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])
    for name in ("metrics.csv", "runs.csv"):
        edit(folder, name, lambda frame: pd.concat([frame, frame.assign(benchmark="tofu-forget10-b2")]))
    roles = ROLES | {"benchmarks": {"tofu": [TOFU, "tofu-forget10-b2"]}}
    table = masc.TABLES["table1"](load(folder, roles))
    assert table.frame["benchmark"].tolist() == [TOFU, TOFU, "tofu-forget10-b2", "tofu-forget10-b2"]
    assert latex(table, "x").count("\\midrule") == 2  # below the headings, and between the two
    assert cells(table)[0][:2] == ["Method", "Benchmark"]
    assert row(table, recipe="masc", benchmark=TOFU)["model_utility_paper"] == 0.666
    assert math.isnan(row(table, recipe="masc", benchmark="tofu-forget10-b2")["model_utility_paper"])


def test_the_same_summary_gives_the_same_bytes(data, tmp_path):
    for attempt in ("a", "b"):
        for id in masc.TABLES:
            write_table("masc", id, data, tmp_path / attempt / id)
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_rendering_from_files_equals_writing_from_data(data, repo, tmp_path):
    folder = data.summary.folder
    fits = folder.parent / "fits.csv"
    render("masc", "table", "table1", folder, ROLES, repo / "config/reported/masc.csv", fits, tmp_path / "a")
    write_table("masc", "table1", data, tmp_path / "b")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("study", "kind", "id", "message"),
    [
        ("nose", "table", "table1", "no study 'nose' \\(has: masc\\)"),
        ("masc", "poem", "table1", "a table or a figure, got 'poem'"),
        ("masc", "table", "table77", "study masc has no table 'table77' \\(has: table1, "),
    ],
)
def test_an_unknown_artefact_is_named(tmp_path, study, kind, id, message):
    with pytest.raises(LetheError, match=message):
        render(study, kind, id, tmp_path, ROLES, tmp_path, tmp_path, tmp_path / "x")
