"""MASC's tables on MUSE, against a summary whose numbers are round (synthetic_summary.MUSE)."""

import math
from dataclasses import replace

import pytest
from synthetic_summary import MUSE_ROLES, ROLES, edit, write_summary

from lethe.analysis.summary import Roles
from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.data import KNOWMEM, KNOWMEM_RETAIN, SUITES, VERBMEM
from lethe.paper.render import write_figure, write_table
from lethe.paper.tables import markdown

NEWS, BOOKS = "muse-news", "muse-books"
MIXED = ("fig1", "fig5", "table1", "table3-tofu", "table8", "table11")


@pytest.fixture(scope="module")
def tables(data):
    return {id: masc.TABLES[id](data) for id in ("table2", "table3", "table7", "muse-criteria", "table8", "table11")}


def row(table, **keys):
    frame = table.frame
    for column, value in keys.items():
        frame = frame[frame[column] == value]
    (record,) = frame.to_dict("records")
    return record


def notes(table):
    return " ".join(table.notes)


def changed(load, folder, change, **options):
    """The MUSE summary after `change` of its metrics."""
    write_summary(folder, muse=True, ladder=[], **options)
    edit(folder, "metrics.csv", change)
    return load(folder, MUSE_ROLES)


def put(frame, benchmark, recipe, metric, values, attack="none"):
    here = (frame["benchmark"] == benchmark) & (frame["recipe"] == recipe) & (frame["metric"] == metric)
    frame.loc[here & (frame["attack"] == attack), "value"] = values
    return frame


# ------------------------------------------------------------------------------------------------ roles and scores


def test_a_benchmark_shows_its_own_main_model_and_others_the_common_one():
    roles = Roles.from_json(ROLES | {"models": ROLES["models"] | {"of": {NEWS: "t128"}}})
    assert [roles.main_of(b) for b in (NEWS, "tofu-forget10", "tofu-forget05")] == ["t128", "w128", "w128"]
    assert Roles.from_json(ROLES).main_of(NEWS) == "w128"


def test_our_numbers_are_labelled_with_the_models_of_their_benchmarks(data):
    assert data.place([NEWS, BOOKS]) == "mini, t128 (0.66M parameters)"
    assert data.place(["tofu-forget10", NEWS]) == "mini, w128 (0.66M parameters) and t128 (0.66M parameters)"


def test_a_printed_score_becomes_what_we_show_of_it(data):
    where = {"benchmark": "MUSE News", "method": "MASC"}
    forgotten, kept = (SUITES["muse"].forget[0], SUITES["muse"].utility[0])
    found = data.reported.score("Table 2", forgotten, **where)
    assert (found.value, found.std) == (pytest.approx(1 - 0.011), pytest.approx(0.0025))
    assert data.reported.score("Table 2", kept, **where).value == pytest.approx(0.2314)
    assert data.reported.score("Table 2", KNOWMEM, **where).value == 19.37
    assert data.reported.score("Table 2", KNOWMEM_RETAIN, **where).value == 23.14
    assert data.reported.score("Table 2", KNOWMEM, benchmark="MUSE News", method="Task Vector") is None


def test_scores_of_figures_lie_between_0_and_1(data):
    suite = SUITES["muse"]
    shown = data.per_seed(NEWS, (*suite.forget, *suite.utility), recipes=["masc"])
    assert shown[[s.name for s in (*suite.forget, *suite.utility)]].mean().tolist() == pytest.approx([0.98, 0.8, 0.3])


# ------------------------------------------------------------------------------------------------ table 2


def test_table_2_has_our_scores_beside_the_papers(tables):
    ours = row(tables["table2"], recipe="masc", benchmark=NEWS)
    assert (ours["verbmem.forget_mean"], ours["verbmem.forget_std"]) == (pytest.approx(2), pytest.approx(0.5))
    assert (ours["verbmem.forget_paper"], ours["verbmem.forget_paper_std"]) == (1.10, 0.25)
    assert (ours["knowmem.forget_paper"], ours["knowmem.retain_paper"]) == (19.37, 23.14)
    assert (ours["time_cpu_s_mean"], ours["steps_mean"], ours["time_wall_s_paper"]) == (0.5, 20, 138.68)
    books = row(tables["table2"], recipe="masc", benchmark=BOOKS)
    assert (books["verbmem.forget_mean"], books["knowmem.retain_paper"]) == (pytest.approx(1), 65.30)
    assert math.isnan(row(tables["table2"], recipe="task-vector", benchmark=NEWS)["verbmem.forget_paper"])


def test_memorisation_has_its_distance_to_retrain_and_utility_none(tables):
    ours = row(tables["table2"], recipe="masc", benchmark=NEWS)
    assert ours["verbmem.forget_distance_to_retrain"] == pytest.approx(18)  # 20 - 2
    assert ours["knowmem.forget_distance_to_retrain"] == pytest.approx(12)
    assert "knowmem.retain_distance_to_retrain" not in ours
    retrain = row(tables["table2"], recipe="retrain", benchmark=NEWS)
    assert retrain["verbmem.forget_mean"] == pytest.approx(20.75)  # seeds 1 and 2: 20.5 and 21
    assert retrain["verbmem.forget_distance_to_retrain"] == pytest.approx(0.75)


def test_table_2_says_in_points_who_is_close_and_what_is_kept(tables):
    text = notes(tables["table2"])
    assert "Closeness to Retrain (muse-news), mean distance over VerbMem(f), KnowMem(f): RMU (down) has the" in text
    assert "MASC, number 7 of 10 with 15.00 ± 0.50 (n 3), is closer than GA, Task Vector;" in text
    assert "KnowMem(r) (muse-news): MASC has 30.00 ± 0.50 (n 3), the model it starts from 55.00" in text
    assert "The paper prints 23.14 for MASC, 0.00 to 44.36 for the others, 54.90 before unlearning." in text
    assert "forget VerbMem is then 2.00 ± 0.50 (n 3), Retrain's 20.00" in text
    assert "These scores fall with forgetting without end" in text


# ------------------------------------------------------------------------------------------------ table 3


def test_table_3_subtracts_full_precision_and_shares_in_the_quantised_base(tables):
    found = row(tables["table3"], recipe="simnpo", benchmark=NEWS, attack="bnb-fp4")
    assert (found["verbmem.forget_mean"], found["verbmem.forget_delta_mean"]) == (pytest.approx(37), pytest.approx(28))
    assert found["verbmem.forget_kept_mean"] == pytest.approx(37 / 50)  # Base falls from 60 to 50
    assert (found["verbmem.forget_paper"], found["verbmem.forget_delta_paper"]) == (37.58, 29.55)
    assert (found["knowmem.forget_paper"], found["knowmem.forget_delta_paper"]) == (48.82, 3.01)
    full = row(tables["table3"], recipe="simnpo", benchmark=NEWS, attack="none")
    assert full["verbmem.forget_kept_mean"] == pytest.approx(9 / 60)
    assert (full["verbmem.forget_paper"], math.isnan(full["verbmem.forget_delta_paper"])) == (8.03, True)
    other = row(tables["table3"], recipe="simnpo", benchmark=NEWS, attack="rtn4")
    assert other["verbmem.forget_delta_mean"] == pytest.approx(14) and math.isnan(other["verbmem.forget_paper"])


def test_table_3_has_base_and_retrain_under_both_quantisers(tables):
    frame = tables["table3"].frame
    for recipe in ("target", "retrain", "masc"):
        here = frame[(frame["recipe"] == recipe) & (frame["benchmark"] == BOOKS)]
        assert here["attack"].tolist() == ["none", "bnb-fp4", "rtn4"]


def test_table_3_prints_the_papers_change_below_ours(tables):
    assert "| SimNPO, paper | muse-news | bnb-fp4 | 37.58 | 29.55 |  | 48.82 | 3.01 |  |" in markdown(tables["table3"])


def test_table_3_names_what_4_bits_restore_and_what_not(tables):
    text = notes(tables["table3"])
    start = "bnb-fp4 (muse-news): forget VerbMem rises beyond the spread over seeds for GradDiff (+7.00, 13% of"
    assert start in text and "NPO+KLR (+30.00, 58% of what was forgotten)" in text  # 30 / (60 - 8)
    assert "falls for Task Vector (-5.00), RMU (-5.00); no change beyond the spread for GA (+0.00)" in text
    assert (
        "MASC keeps 12% (at full precision 3%), the other methods 2% (GA) to 100% (Task Vector), Retrain 41%." in text
    )


def test_table_3_compares_with_the_papers_own_score_and_corpus(tables):
    text = notes(tables["table3"])
    assert "In the paper KnowMem rises more than MASC's for GradDiff, NPO; here MASC's changes by 2.00" in text  # News
    assert "In the paper VerbMem rises more than MASC's for NPO, NPO+KLR, SimNPO; here" in text  # Books


# ------------------------------------------------------------------------------------------------ table 7


def test_table_7_has_leakage_and_the_auc_it_comes_from(tables):
    found = row(tables["table7"], recipe="masc", benchmark=NEWS)
    assert (found["privleak_mean"], found["privleak_paper"]) == (pytest.approx(50), 41.99)
    assert (found["mia.min_k_auc_mean"], found["mia.min_k_auc_distance_to_retrain"]) == (0.75, 0.25)
    text = notes(tables["table7"])
    assert (
        "AUC of Retrain (muse-news): 0.5000, measured on its first seed; the released code divides by 0.4772." in text
    )
    assert "AUC of Retrain (muse-books): 0.5000, measured on its first seed." in text


def test_table_7_tells_both_sides_of_leakage_and_the_papers_side(tables):
    (news, books) = (n for n in tables["table7"].notes if n.startswith("PrivLeak beyond"))
    assert "below 0, still learned: Task Vector -80.00" in news
    assert "not told apart from 0: RMU 0.00" in news and "above 0, unlearned past Retrain: GA 20.00" in news
    assert news.endswith("prints: GA, GradDiff, NPO, NPO+KLR, SimNPO, MASC; on the other: none.")
    assert books.endswith("prints: none; on the other: GA, GradDiff, NPO, NPO+KLR, SimNPO, MASC.")


# ------------------------------------------------------------------------------------------------ six criteria


def test_the_last_two_criteria_are_changes_of_utility_by_seed(tables):
    found = row(tables["muse-criteria"], recipe="masc", benchmark=NEWS)
    assert (found["scalability_mean"], found["scalability_std"]) == (pytest.approx(-15), pytest.approx(0, abs=1e-9))
    assert found["sustainability_mean"] == pytest.approx(-15)
    assert row(tables["muse-criteria"], recipe="simnpo", benchmark=NEWS)["scalability_mean"] == pytest.approx(0)
    for keys in ({"recipe": "ga", "benchmark": NEWS}, {"recipe": "masc", "benchmark": BOOKS}):
        assert math.isnan(row(tables["muse-criteria"], **keys)["scalability_mean"])
    text = notes(tables["muse-criteria"])
    assert "they were run on muse-news alone, for NPO+KLR, SimNPO, MASC alone." in text
    assert "Scalability (muse-news): KnowMem(r) falls beyond the spread over seeds for NPO+KLR -6.00" in text
    assert "not told apart from no change: SimNPO" in text


def test_who_fails_which_criterion_and_who_none(load, tmp_path):
    def change(frame):
        put(frame, NEWS, "rmu", "knowmem.retain", [55.0, 55.1, 55.2])
        return put(frame, NEWS, "masc", "verbmem.forget", [25.0, 25.1, 25.2])

    data = changed(load, tmp_path / "summary", change)
    (text,) = (
        n for n in masc.TABLES["muse-criteria"](data).notes if n.startswith("Beyond the spread over seeds (muse-n")
    )
    assert "verbatim memory is left with Task Vector, MASC; more than" in text
    assert "knowledge is left with NPO+KLR, Task Vector, SimNPO; membership leaks with GA" in text
    assert text.endswith("; none of the four: RMU.")


def test_one_seed_fails_no_criterion_and_none_is_said_to_hold(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", muse=True, seeds=1, ladder=[]), MUSE_ROLES)
    text = notes(masc.TABLES["muse-criteria"](data))
    assert "none of the four" not in text and "One seed: no difference can be told from chance." in text


def test_a_scale_without_paths_of_requests_says_so(load, tmp_path):
    folder = write_summary(tmp_path / "summary", muse=True, ladder=[])
    roles = MUSE_ROLES | {"benchmarks": {"tofu": ["tofu-forget10"], "muse": [NEWS, BOOKS], "muse-scal": []}}
    table = masc.TABLES["muse-criteria"](load(folder, roles))
    assert [c.name for c in table.columns][-1] == "knowmem.retain"
    assert "no path of growing or repeated requests was run." in notes(table)


# ------------------------------------------------------------------------------------------------ tables of both suites


def test_table_8_has_a_row_for_each_corpus_and_windows_for_texts_alone(tables):
    found = row(tables["table8"], benchmark=NEWS)
    assert (found["top-k"], found["top-k_paper"], found["beta_paper"], found["alpha_used"]) == (10, 2, 5, 0.55)
    assert row(tables["table8"], benchmark=BOOKS)["stop_alpha_paper"] == 0.10
    assert not {"MUSE News", "MUSE Books"} & set(tables["table8"].frame["benchmark"])
    texts = {n.partition(":")[0]: n for n in tables["table8"].notes if "retain loss" in n}
    assert texts[NEWS].endswith("texts in windows of 128 tokens.") and "windows" not in texts["tofu-forget10"]


def test_table_11_shows_the_end_of_long_prompts_and_as_many_of_each_task(tables):
    frame = tables["table11"].frame.query("benchmark == @NEWS")
    assert frame["task"].tolist() == ["go on"] * 2 + ["answer, after examples"] * 2
    assert frame["question"].tolist()[2:] == ["Who? 0", "Who? 1"]
    first = frame["question"].iloc[0]
    assert first.startswith("… word word") and first.endswith("word last 0") and 230 < len(first) <= 242


def test_roles_of_muse_without_runs_change_no_byte_of_tofus_artefacts(load, tmp_path):
    folder = write_summary(tmp_path / "summary")
    for name, roles in (("without", ROLES), ("with", MUSE_ROLES)):
        data = load(folder, roles)
        for id in MIXED:
            write = write_table if id in masc.TABLES else write_figure
            write("masc", id, data, tmp_path / name / id)
        for id in ("table2", "table3", "table7", "muse-criteria"):
            with pytest.raises(LetheError, match=f"masc-{id}: the summary has no run"):
                write_table("masc", id, data, tmp_path / id)
    for file in (tmp_path / "without").iterdir():
        assert file.read_bytes() == (tmp_path / "with" / file.name).read_bytes(), file.name


def test_tofus_tables_are_the_same_with_muse_beside_them(data, load, tmp_path):
    alone = load(write_summary(tmp_path / "summary"))
    for id in ("table1", "table3-tofu", "table6", "table9"):
        assert markdown(masc.TABLES[id](data)) == markdown(masc.TABLES[id](alone))


def test_a_score_that_was_not_measured_leaves_its_cell_empty_and_a_note(load, tmp_path):
    def lose(frame):
        frame["reason"] = frame["reason"].astype(object)
        lost = (frame["benchmark"] == BOOKS) & (frame["metric"] == "knowmem.forget")
        frame.loc[lost, ["value", "reason"]] = [None, "no knowledge_forget.jsonl"]
        return frame

    data = changed(load, tmp_path / "summary", lose, recipes=["target", "retrain", "masc"], seeds=2)
    for id in ("table2", "table3", "muse-criteria"):
        table = masc.TABLES[id](data)
        assert "MASC: no KnowMem(f) for seed 0, 1 (no knowledge_forget.jsonl)" in notes(table), id
        books = table.frame[table.frame["benchmark"] == BOOKS]
        assert books["knowmem.forget_mean"].isna().all() and books["verbmem.forget_mean"].notna().all()


def test_scores_are_hashable_and_a_label_makes_another_one():
    assert len({VERBMEM, replace(VERBMEM, label="x")}) == 2
