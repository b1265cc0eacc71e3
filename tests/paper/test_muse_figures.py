"""Figures 1 and 5 with MUSE's corpora, growing and repeated requests, and updates on the scale of a quantiser."""

import pytest
from synthetic_summary import MUSE_ROLES, edit, write_summary

from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.style import paper_style

NEWS, BOOKS, TOFU = "muse-news", "muse-books", "tofu-forget10"


@pytest.fixture(scope="module")
def figures(data):
    with paper_style():
        return {
            id: masc.FIGURES[id](data) for id in ("fig1", "fig5", "scalability", "sustainability", "quantisation-step")
        }


def draw(id, data):
    with paper_style():
        return masc.FIGURES[id](data)


def point(figure, **keys):
    frame = figure.numbers
    for column, value in keys.items():
        frame = frame[frame[column] == value]
    (record,) = frame.to_dict("records")
    return record


def test_figure_1_has_a_column_a_benchmark_and_muse_from_0_to_1(figures):
    axes = figures["fig1"].drawing.axes
    assert [ax.get_title() for ax in axes[::3]] == [f"{b}: time" for b in (TOFU, NEWS, BOOKS)]
    columns = [round(ax.get_subplotspec().get_position(ax.figure).x0, 3) for ax in axes]
    assert len(set(columns)) == 3 and columns[0] == columns[1] == columns[2]
    ours = point(figures["fig1"], recipe="masc", benchmark=NEWS, source="ours", axis="1-VerbMem(f)")
    assert (ours["mean"], ours["std"]) == (pytest.approx(0.98), pytest.approx(0.005))
    printed = point(figures["fig1"], recipe="masc", benchmark=BOOKS, source="paper", axis="KnowMem(r)")
    assert printed["mean"] == pytest.approx(0.653)
    assert point(figures["fig1"], recipe="npo-klr", benchmark=NEWS, axis="time")["printed"] == 4062.76


def test_figure_5_averages_what_was_forgotten_on_muse(figures):
    ours = point(figures["fig5"], recipe="masc", benchmark=NEWS, source="ours")
    assert (ours["efficacy_mean"], ours["utility_mean"]) == (
        pytest.approx(0.89),
        pytest.approx(0.30),
    )  # (.98 + .80) / 2
    printed = point(figures["fig5"], recipe="masc", benchmark=NEWS, source="paper")
    assert printed["efficacy_mean"] == pytest.approx((1 - 0.011 + 1 - 0.1937) / 2)
    assert (printed["utility_mean"], printed["time_mean"]) == (pytest.approx(0.2314), 138.68)
    assert "MASC is dominated beyond the spread over seeds by none (muse-news)." in figures["fig5"].findings


@pytest.mark.parametrize(
    ("id", "places", "ends"),
    [("scalability", [25, 50, 75, 100], "muse-news minus"), ("sustainability", [1, 2, 3, 4], "muse-news-sust-4 minus")],
)
def test_a_line_a_recipe_along_its_path(figures, id, places, ends):
    frame = figures[id].numbers
    masc_ = frame[(frame["recipe"] == "masc") & (frame["metric"] == "knowmem.retain")]
    assert masc_["x"].tolist() == places and masc_["mean"].tolist() == pytest.approx([45, 40, 35, 30])
    assert set(frame["recipe"]) == {"npo-klr", "simnpo", "masc"} and masc_["std"].tolist() == pytest.approx([0.5] * 4)
    utility, verbatim = figures[id].drawing.axes
    lines = {line.get_label(): line.get_ydata()[0] for ax in (utility,) for line in ax.get_lines()}
    assert (lines["Base, muse-news"], lines["Retrain, muse-news"]) == (55, 56)
    assert verbatim.get_ylim()[0] == utility.get_ylim()[0] == 0
    text = figures[id].findings[0]
    assert text.startswith(f"KnowMem(r) at {ends} at muse-news-scal-1: NPO+KLR -6.00") and "n 3 (falls)" in text
    assert "SimNPO +0.00 [+0.00, +0.00], n 3 (not told apart)" in text


def test_a_rise_along_a_path_and_an_end_above_retrain_are_told(load, tmp_path):
    folder = write_summary(tmp_path / "summary", muse=True, ladder=[])

    def rise(frame):
        here = (frame["recipe"] == "simnpo") & (frame["benchmark"] == "muse-news-sust-4") & (frame["attack"] == "none")
        frame.loc[here & (frame["metric"] == "verbmem.forget"), "value"] = [30.0, 31.0, 32.0]
        return frame

    edit(folder, "metrics.csv", rise)
    text = " ".join(draw("sustainability", load(folder, MUSE_ROLES)).findings)
    assert "SimNPO +22.00" in text and "n 3 (rises)" in text
    assert (
        "against Retrain's 20.00 (muse-news): above it beyond the spread over seeds SimNPO; below it NPO+KLR, MASC"
        in text
    )


@pytest.mark.parametrize("role", ["muse-scal", "muse-sust"])
def test_a_path_without_runs_is_refused(load, tmp_path, role):
    data = load(write_summary(tmp_path / "summary", ladder=[]), MUSE_ROLES)
    with pytest.raises(LetheError, match=f"no run on the benchmarks of role '{role}'"):
        draw({"muse-scal": "scalability", "muse-sust": "sustainability"}[role], data)


def test_updates_stand_beside_random_ones_of_their_norm(figures):
    figure = figures["quantisation-step"]
    where = {"recipe": "simnpo", "benchmark": NEWS}
    assert point(figure, **where, quantity="update_over_step", kind="update")["mean"] == pytest.approx(0.15)
    assert point(figure, **where, quantity="update_over_step", kind="random")["mean"] == pytest.approx(0.16)
    assert point(figure, **where, quantity="codes_changed", kind="update")["mean"] == pytest.approx(7.5)  # %
    assert point(figure, **where, quantity="codes_changed", kind="random")["mean"] == pytest.approx(10.5)
    text = " ".join(figure.findings)
    assert "Update / step (muse-news), from small to large: Task Vector 0.020, GA 0.050" in text
    assert "below half a step on average: 10 of 10." in text


@pytest.mark.parametrize(
    ("random", "words"),
    [
        ([0.2, 0.2, 0.2], "beyond the spread over seeds: MASC; more: none; not told apart: none."),
        ([0.001, 0.001, 0.001], "beyond the spread over seeds: none; more: MASC; not told apart: none."),
        ([0.0, 0.03, 0.06], "beyond the spread over seeds: none; more: none; not told apart: MASC."),
    ],
)
def test_codes_changed_are_compared_with_a_random_update(load, tmp_path, random, words):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], muse=True, ladder=[])

    def change(frame):
        here = (frame["recipe"] == "masc") & (frame["benchmark"] == NEWS)
        frame.loc[here, "codes_changed_random"] = random
        return frame

    edit(folder, "runs.csv", change)
    found = draw("quantisation-step", load(folder, MUSE_ROLES)).findings
    (text,) = (t for t in found if t.startswith("Share of 4-bit codes that change (muse-news)"))
    assert text.endswith(words)


@pytest.mark.parametrize(("sign", "ranks"), [(-1, "-1.00"), (1, "+1.00")])
def test_ranks_of_size_and_of_what_comes_back(load, tmp_path, sign, ranks):
    """Codes changed: GA 2.5 %, MASC 3 %, SimNPO 7.5 %."""
    folder = write_summary(tmp_path / "summary", recipes=["target", "ga", "simnpo", "masc"], muse=True, ladder=[])

    def change(frame):
        for place, recipe in enumerate(("ga", "masc", "simnpo")):
            here = (frame["recipe"] == recipe) & (frame["benchmark"] == NEWS) & (frame["metric"] == "verbmem.forget")
            before = frame.loc[here & (frame["attack"] == "none"), "value"].to_numpy()
            frame.loc[here & (frame["attack"] == "rtn4"), "value"] = before + 10 + sign * place
        return frame

    edit(folder, "metrics.csv", change)
    found = draw("quantisation-step", load(folder, MUSE_ROLES)).findings
    (text,) = (t for t in found if t.startswith("What rtn4 brings back (muse-news)"))
    assert f"against codes changed, over 3 methods: rank correlation {ranks}" in text
    changes = "whose forget VerbMem changes by"
    assert f"Smallest: GA, {changes} +10.00; largest: SimNPO, {changes} +{10 + 2 * sign}.00." in text
    assert text.endswith("Restored beyond the spread over seeds: GA, MASC, SimNPO.")


def test_summaries_without_codes_show_the_update_alone_and_older_ones_say_that_nothing_was_measured(load, tmp_path):
    data = load(write_summary(tmp_path / "old", ladder=[]))
    figure = draw("quantisation-step", data)
    assert set(figure.numbers["quantity"]) == {"update_over_step"} and len(figure.drawing.axes) == 1
    assert "against update / step" in " ".join(figure.findings) and "codes" not in " ".join(figure.findings)
    older = write_summary(tmp_path / "older", ladder=[])
    edit(older, "runs.csv", lambda frame: frame.drop(columns=["update_over_step", "update_over_step_touched"]))
    figure = draw("quantisation-step", load(older))
    assert figure.numbers.empty
    assert figure.findings == ["No run of this summary measured its update on the scale of a quantiser."]
