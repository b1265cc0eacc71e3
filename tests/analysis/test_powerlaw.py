import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synthetic_summary import ROLES, SIZES, edit, write_summary

from lethe.analysis.powerlaw import CONTRACT, fit, fit_all, load_fits, size_scores, write_fits
from lethe.analysis.summary import Roles, load_summary

QWEN = [0.5, 1.5, 3.0, 7.0]  # the paper's sizes, in billions


@given(C=st.floats(0.01, 5), alpha=st.floats(-1, 1), first=st.floats(1e-4, 1), n=st.integers(3, 6))
def test_an_exact_power_law_is_recovered(C, alpha, first, n):
    sizes = first * 2.0 ** np.arange(n)
    found = fit(sizes, C * sizes**alpha)
    assert math.isclose(found.C, C, rel_tol=1e-6)
    assert found.alpha == pytest.approx(alpha, abs=1e-9)
    assert found.alpha_lo == pytest.approx(alpha, abs=1e-5) and found.alpha_hi == pytest.approx(alpha, abs=1e-5)
    assert found.at(2 * first) == pytest.approx(C * (2 * first) ** alpha, rel=1e-6)


def test_the_printed_inset_of_figure_3_comes_back_from_its_own_curve():
    exact = fit(QWEN, [0.454, 0.610, 0.735, 0.924])  # the printed E-ROUGE law, evaluated and rounded to three decimals
    knowledge = fit(QWEN, [0.350, 0.396, 0.427, 0.470])  # and P-ROUGE
    assert (round(exact.alpha, 3), round(math.log(exact.C), 3)) == (0.269, -0.603)
    assert knowledge.alpha == pytest.approx(0.111, abs=1e-3)
    assert math.log(knowledge.C) == pytest.approx(-0.972, abs=1e-3)


@given(scores=st.lists(st.floats(0.05, 1), min_size=4, max_size=4, unique=True))
def test_numbers_and_t_interval_equal_scipy_linregress(scores):
    found, line = fit(QWEN, scores), stats.linregress(np.log(QWEN), np.log(scores))
    half = stats.t.ppf(0.975, 2) * line.stderr
    assert found.alpha == pytest.approx(line.slope, abs=1e-9)
    assert math.log(found.C) == pytest.approx(line.intercept, abs=1e-9)
    assert found.r2 == pytest.approx(line.rvalue**2, abs=1e-6)
    assert (found.alpha_lo, found.alpha_hi) == pytest.approx((line.slope - half, line.slope + half), abs=1e-9)


@pytest.mark.parametrize(
    ("sizes", "scores", "reason"),
    [
        ([0.5, 1.5], [0.3, 0.4], "2 of at least 3 sizes"),
        ([1.5, 1.5, 3.0], [0.3, 0.31, 0.4], "2 of at least 3 sizes"),
        (QWEN, [0.0, 0.3, 0.4, 0.5], "not positive"),
        (QWEN, [-0.1, 0.3, 0.4, 0.5], "not positive"),
        (QWEN, [math.nan, 0.3, 0.4, 0.5], "not positive"),
        ([0.0, 1.5, 3.0], [0.2, 0.3, 0.4], "a size that is not positive"),
    ],
)
def test_a_fit_without_grounds_is_refused(sizes, scores, reason):
    found = fit(sizes, scores)
    assert reason in found.reason
    assert all(math.isnan(v) for v in (found.C, found.alpha, found.r2, found.alpha_lo, found.alpha_hi))


def test_equal_scores_have_a_flat_law_and_no_r2():
    found = fit(QWEN, [0.5, 0.5, 0.5, 0.5])
    assert found.alpha == 0 and math.isclose(found.C, 0.5) and math.isnan(found.r2) and not found.reason


def test_seeds_are_averaged_at_each_size_before_the_fit(tmp_path):
    summary = load_summary(write_summary(tmp_path / "summary"))
    roles = Roles.from_json(ROLES)
    points = size_scores(summary, roles, "tofu-forget10", "learn", "forget.value_recall")
    rows = summary.select(recipe="learn", model="w64", metric="forget.value_recall")["value"]
    assert points["model"].tolist() == list(SIZES)
    assert points["mean"].iloc[0] == pytest.approx(rows.mean()) and points["n_seeds"].tolist() == [3, 3, 3, 3]
    fits = fit_all(summary, roles, "masc").set_index(["stage", "metric", "n_kind"])
    found = fits.loc[("learning", "forget.value_recall", "total")]
    assert found["alpha"] == pytest.approx(fit(points["size"] / 1e9, points["mean"]).alpha)
    assert found["alpha"] == pytest.approx(0.55, abs=0.06)  # what the synthetic summary grows with
    assert fits.loc[("learning", "forget.value_recall", "nonembed")]["alpha"] != found["alpha"]


def test_fits_csv_has_the_contracts_columns_first_and_no_number_where_a_fit_was_refused(tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=["w64", "w128"])
    write_fits(folder, ROLES, tmp_path / "fits.csv")
    raw = pd.read_csv(tmp_path / "fits.csv")
    assert raw.columns[:13].tolist() == CONTRACT
    assert raw[["C", "alpha", "r2", "alpha_lo", "alpha_hi"]].isna().all(axis=None)
    assert (load_fits(tmp_path / "fits.csv")["reason"] == "2 of at least 3 sizes").all()


def test_a_recipe_without_runs_on_the_ladder_has_no_fit(tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"])
    fits = fit_all(load_summary(folder), Roles.from_json(ROLES), "masc")
    assert set(fits["recipe"]) == {"learn", "masc"}


def test_one_vanished_score_refuses_its_fit_alone(tmp_path):
    folder = write_summary(tmp_path / "summary")

    def vanish(metrics):
        masc = (metrics["recipe"] == "masc") & (metrics["model"] == "w64")
        metrics.loc[masc & (metrics["metric"] == "forget.value_recall"), "value"] = 0.0
        return metrics

    edit(folder, "metrics.csv", vanish)
    fits = fit_all(load_summary(folder), Roles.from_json(ROLES), "masc")
    refused = fits[fits["reason"] != ""]
    assert set(zip(refused["recipe"], refused["metric"], strict=True)) == {("masc", "forget.value_recall")}
