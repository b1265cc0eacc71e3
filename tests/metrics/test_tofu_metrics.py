import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.errors import LetheError
from lethe.metrics import stats
from lethe.metrics.items import ITEM_COLUMNS, make_items, of_split
from lethe.metrics.tofu import split_log_ratio, tofu_metrics

ANSWERED = ("forget", "retain", "ra", "wf")


def synthetic(seed=0, n=12, holdout=14, shift=0.0):
    """A complete table of plausible values."""
    rng = np.random.default_rng(seed)
    rows = []
    for split, size in {"forget": n, "retain": n, "ra": n - 2, "wf": n - 1, "holdout": holdout}.items():
        for index in range(size):
            nll = rng.uniform(0.1, 3) + shift
            row = {
                "split": split,
                "index": index,
                "question": f"{split} {index}?",
                "answer": f"Answer {index}.",
                "n_tokens": 7,
                "truncated": 0,
                "nll": nll,
                "exact_memorization": rng.uniform(),
                "extraction_strength": 0.0,
                "extraction_strength_ou": 0.1,
            }
            if split in ("forget", "holdout"):
                row |= {"zlib": nll / 20, "min_k": nll * 2 + rng.uniform(), "min_k_pp": rng.normal()}
            if split == "forget":
                row |= {
                    "violation_rate": rng.uniform(),
                    "gold_logit": rng.normal(),
                    "prop1_slack": rng.uniform(0, 4),
                    "prop1_violation": 0,
                    "para_rouge_l_recall": rng.uniform(),
                    "para_value_recall": rng.uniform(),
                }
            if split != "holdout":
                row |= {
                    "nll_correct": nll + rng.normal(0, 0.2),
                    "nll_perturbed": rng.uniform(0.5, 4, size=5).tolist(),
                    "rouge_l_recall": rng.uniform(),
                    "value_recall": rng.uniform(),
                }
            rows.append(row)
    for split in ("mcq_forget", "mcq_retain"):
        rows += [
            {"split": split, "index": i, "question": f"{split} {i}?", "mcq_correct": i % 2, "mcq_options": 4}
            for i in range(6)
        ]
    return make_items(rows)


def without(items, *columns, split=None):
    items = items.copy()
    for column in columns:
        rows = items["split"].eq(split) if split else items["split"].notna()
        items[column] = [None if out else cell for out, cell in zip(rows, items[column], strict=True)]
    return items


# ---------------------------------------------------------------------------------------------- the set of metrics


def test_a_complete_table_has_every_metric_with_an_interval_around_it():
    found = tofu_metrics(synthetic(0), synthetic(1), bootstrap=300)
    expected = {
        f"{split}.{metric}"
        for split in ANSWERED
        for metric in (
            "prob",
            "rouge_l_recall",
            "value_recall",
            "truth_ratio.geo",
            "truth_ratio.arith",
            "truth_ratio.prob_mean",
            "extraction_strength",
            "extraction_strength.ou",
            "exact_memorization",
        )
    }
    expected |= {"forget.para_rouge_l_recall", "forget.para_value_recall", "forget.mcq_acc", "retain.mcq_acc"}
    expected |= {"model_utility", "model_utility.arith", "model_utility.retain", "privleak", "forget.gold_logit"}
    expected |= {"violation_rate", "prop1.slack", "prop1.violations"}
    expected |= {f"forget_quality.{x}" for x in ("p", "log10p", "D")}
    expected |= {f"mia.{x}_auc" for x in ("loss", "zlib", "min_k", "min_k_pp", "ref")}
    assert set(found) == expected
    for name, metric in found.items():
        assert metric["value"] is not None, (name, metric)
        # A KS test of resamples is not centred on that of the sample: D is a maximum.
        if not name.startswith("forget_quality"):
            assert metric["lo"] <= metric["value"] <= metric["hi"], (name, metric)
    json.dumps(found, allow_nan=False)


def test_model_utility_is_the_harmonic_mean_of_nine():
    items = synthetic()
    found = tofu_metrics(items, bootstrap=0)
    scores = ("prob", "rouge_l_recall", "truth_ratio.geo")
    nine = [found[f"{split}.{score}"]["value"] for split in ("retain", "ra", "wf") for score in scores]
    assert found["model_utility"]["value"] == pytest.approx(9 / sum(1 / x for x in nine))


def test_utility_on_retain_alone_is_the_harmonic_mean_of_three():
    found = tofu_metrics(synthetic(), bootstrap=0)
    members = [found[f"retain.{m}"]["value"] for m in ("prob", "rouge_l_recall", "truth_ratio.geo")]
    assert found["model_utility.retain"]["value"] == pytest.approx(3 / sum(1 / m for m in members))


def test_model_utility_is_zero_as_soon_as_one_member_is():
    items = synthetic()
    items.loc[items["split"] == "wf", "rouge_l_recall"] = 0.0
    assert tofu_metrics(items, bootstrap=50)["model_utility"] | {"n": 0} == {
        "value": 0.0,
        "n": 0,
        "lo": 0.0,
        "hi": 0.0,
        "reason": None,
    }


def test_model_utility_resamples_items_with_their_values_together():
    def width(nll_where_rouge_is_low, nll_where_it_is_high):
        items = synthetic(n=40)
        items[["nll", "nll_correct", "rouge_l_recall"]] = 0.5
        items["nll_perturbed"] = pd.Series([[2.0]] * len(items), dtype=object)
        retain, low = items["split"] == "retain", np.arange(40) % 2 == 0
        items.loc[retain, "rouge_l_recall"] = np.where(low, 0.2, 0.8)
        items.loc[retain, "nll"] = np.where(low, nll_where_rouge_is_low, nll_where_it_is_high)
        utility = tofu_metrics(items, bootstrap=400)["model_utility"]
        return utility["hi"] - utility["lo"]

    assert width(3.0, 0.1) > 3 * width(0.1, 3.0)  # values that rise together vary more than values that cancel


def test_the_order_of_rows_changes_nothing():
    items, reference = synthetic(0), synthetic(1)
    shuffled = items.sample(frac=1, random_state=3, ignore_index=True)
    assert tofu_metrics(shuffled, reference, bootstrap=50) == tofu_metrics(items, reference, bootstrap=50)


def test_intervals_are_reproducible_by_seed():
    items = synthetic()
    a, b, c = (tofu_metrics(items, bootstrap=50, seed=s)["forget.prob"] for s in (1, 1, 2))
    assert a == b
    assert (a["value"], a["lo"]) != (c["value"], c["lo"])
    assert a["value"] == c["value"]


def test_a_splits_intervals_do_not_depend_on_other_splits():
    items = synthetic()
    alone = items[items["split"] == "forget"]
    assert tofu_metrics(alone, bootstrap=50)["forget.prob"] == tofu_metrics(items, bootstrap=50)["forget.prob"]


def test_without_resamples_there_are_values_and_no_intervals():
    found = tofu_metrics(synthetic(0), synthetic(1), bootstrap=0)
    assert all(metric["lo"] is None and metric["hi"] is None for metric in found.values())
    assert all(metric["value"] is not None for metric in found.values())


@given(st.floats(0, 900))
@settings(max_examples=8, deadline=None)
def test_every_value_of_a_worse_and_worse_model_is_finite(shift):
    found = tofu_metrics(synthetic(0, shift=shift), synthetic(1), bootstrap=20)
    json.dumps(found, allow_nan=False)
    assert 0 <= found["retain.prob"]["value"] <= 1


def test_multiple_choice_shows_its_chance_level():
    found = tofu_metrics(synthetic(), bootstrap=0)["forget.mcq_acc"]
    assert (found["value"], found["n"], found["reason"]) == (0.5, 6, "chance level 0.250")


def test_gold_answers_that_rouge_cannot_see_are_noted():
    items = synthetic()
    items.loc[(items["split"] == "forget") & (items["index"] == 0), "answer"] = "宮部"
    found = tofu_metrics(items, bootstrap=0)
    assert "1 of 12 gold answers have no token left" in found["forget.rouge_l_recall"]["reason"]
    assert found["retain.rouge_l_recall"]["reason"] is None


def test_cut_answers_are_noted():
    items = synthetic()
    items.loc[:3, "truncated"] = 1
    assert tofu_metrics(items, bootstrap=0)["forget.prob"]["reason"] == "4 items cut at max_length"


def test_broken_bounds_are_counted():
    items = synthetic()
    items.loc[:1, "prop1_violation"] = 1.0
    assert tofu_metrics(items, bootstrap=0)["prop1.violations"]["value"] == 2


# ---------------------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    ("columns", "split", "metric", "reason"),
    [
        (["nll_perturbed"], None, "forget.truth_ratio.geo", "eval_forget.jsonl: no field 'perturbed_answer'"),
        (["nll_perturbed"], None, "ra.prob", "real_authors.jsonl: no field 'perturbed_answer'"),
        (["nll_perturbed"], None, "model_utility", "needs retain.truth_ratio.geo"),
        (["nll_correct"], "forget", "forget_quality.p", "eval_forget.jsonl: no field 'paraphrased_answer'"),
        (["nll_correct"], "retain", "retain.truth_ratio.arith", "eval_retain.jsonl: no field 'paraphrased_answer'"),
        (["para_rouge_l_recall"], None, "forget.para_rouge_l_recall", "no field 'paraphrased_question'"),
        (["value_recall"], None, "retain.value_recall", "eval_retain.jsonl: no field 'value'"),
        (["rouge_l_recall"], None, "wf.rouge_l_recall", "world_facts.jsonl: no field 'question'"),
        (["violation_rate"], None, "violation_rate", "scored without a margin (k, beta, rho)"),
    ],
)
def test_a_missing_field_is_named(columns, split, metric, reason):
    found = tofu_metrics(without(synthetic(0), *columns, split=split), synthetic(1), bootstrap=20)[metric]
    assert found["value"] is None and found["lo"] is None
    assert reason in found["reason"]


@pytest.mark.parametrize(
    ("split", "metric", "reason"),
    [
        ("ra", "ra.prob", "no items of split 'ra' (real_authors.jsonl)"),
        ("wf", "model_utility", "no items of split 'wf' (world_facts.jsonl)"),
        ("holdout", "mia.loss_auc", "no items of split 'holdout' (holdout.jsonl)"),
        ("holdout", "privleak", "no items of split 'holdout' (holdout.jsonl)"),
        ("mcq_forget", "forget.mcq_acc", "no items of split 'mcq_forget' (mcq_forget.jsonl)"),
        ("forget", "violation_rate", "no items of split 'forget' (eval_forget.jsonl)"),
    ],
)
def test_a_missing_file_is_named(split, metric, reason):
    a, b = (items[items["split"] != split] for items in (synthetic(0), synthetic(1)))
    found = tofu_metrics(a, b, bootstrap=20)[metric]
    assert found["value"] is None
    assert reason in found["reason"]


def test_without_a_reference_what_needs_one_is_null_and_nothing_is_assumed():
    found = tofu_metrics(synthetic(), bootstrap=20)
    for name in ("forget_quality.p", "forget_quality.log10p", "forget_quality.D", "privleak", "mia.ref_auc"):
        assert found[name]["value"] is None
        assert "no reference" in found[name]["reason"]
    assert found["mia.min_k_auc"]["value"] is not None


def test_raw_texts_have_probability_memorisation_and_membership():
    rows = []
    for split, n in (("forget", 5), ("holdout", 4)):
        for i in range(n):
            rows.append(
                {"split": split, "index": i, "answer": f"{split} text {i}", "n_tokens": 9, "nll": 1.0 + i}
                | {"exact_memorization": 0.5, "extraction_strength": 0.1, "extraction_strength_ou": 0.1}
                | {"zlib": 0.1, "min_k": 2.0 + i, "min_k_pp": 0.3}
            )
    found = tofu_metrics(make_items(rows), bootstrap=20)
    assert found["forget.prob"]["value"] == pytest.approx(np.exp(-np.arange(1, 6.0)).mean())
    assert found["forget.extraction_strength"]["value"] == pytest.approx(0.1)
    assert found["mia.loss_auc"]["value"] == pytest.approx(0.6)  # 10 wins + 4 ties of 20
    assert "no field 'question'" in found["forget.rouge_l_recall"]["reason"]
    assert all(metric["value"] is not None or metric["reason"] for metric in found.values())


def test_a_few_missing_values_are_left_out_and_counted():
    items = synthetic()
    items.loc[0, "value_recall"] = np.nan
    found = tofu_metrics(items, bootstrap=20)["forget.value_recall"]
    assert (found["n"], found["reason"]) == (11, "1 of 12 items have no value")
    assert found["value"] == pytest.approx(of_split(items, "forget")["value_recall"].iloc[1:].mean())


# ---------------------------------------------------------------------------------------------- references


def test_a_table_is_not_its_own_reference():
    with pytest.raises(LetheError, match=r"x\.parquet and y\.parquet: the same values"):
        tofu_metrics(synthetic(), synthetic().sample(frac=1), name="x.parquet", reference_name="y.parquet")


def test_the_first_differing_question_is_named():
    other = synthetic(1)
    other.loc[3, "question"] = "Who else?"
    with pytest.raises(LetheError, match=r"at 3: 'forget 3\?' against 'Who else\?'"):
        tofu_metrics(synthetic(), other)


def test_fewer_questions_are_other_questions():
    other = synthetic(1)
    with pytest.raises(LetheError, match="different numbers of questions, got 12 and 11"):
        tofu_metrics(synthetic(), other.drop(index=11))


def test_membership_has_the_orientation_of_the_reference_formula():
    items, reference = synthetic(0, holdout=200), synthetic(1, holdout=200)
    forget = items["split"] == "forget"
    items.loc[forget, "min_k"] = 0.001  # far more likely than anything held out
    found = tofu_metrics(items, reference, bootstrap=50)
    assert found["mia.min_k_auc"] == {"value": 0.0, "n": 212, "lo": 0.0, "hi": 0.0, "reason": None}
    assert found["privleak"]["value"] == -100
    items.loc[forget, "min_k"] = 99.0
    found = tofu_metrics(items, reference, bootstrap=50)
    a_ref = stats.auc(of_split(reference, "forget")["min_k"], of_split(reference, "holdout")["min_k"])
    assert found["mia.min_k_auc"]["value"] == 1.0
    assert found["privleak"]["value"] == pytest.approx(100 * (1 - a_ref) / a_ref)
    assert "over-unlearned" in found["privleak"]["reason"]


def test_a_reference_that_is_far_from_one_half_is_noted_and_zero_gives_no_privleak():
    items, reference = synthetic(0), synthetic(1)
    forget = reference["split"] == "forget"
    reference.loc[forget, "min_k"] = 99.0
    assert "the reference's own AUC is 1, far from .5" in tofu_metrics(items, reference)["privleak"]["reason"]
    reference.loc[forget, "min_k"] = -99.0
    found = tofu_metrics(items, reference)["privleak"]
    assert (found["value"], found["reason"]) == (None, "the reference's own AUC is 0")


def test_the_reference_attack_compares_losses_with_the_retrained_models():
    items, reference = synthetic(0), synthetic(0, shift=0.5)
    items.loc[items["split"] == "forget", "nll"] += 2.0  # worse than the retrained model on forget items only
    assert tofu_metrics(items, reference, bootstrap=0)["mia.ref_auc"]["value"] == 1.0


def test_few_holdout_items_are_noted():
    assert tofu_metrics(synthetic(), bootstrap=0)["mia.loss_auc"]["reason"] == "only 14 holdout items"


def test_forget_quality_equals_a_test_of_the_two_tables():
    a, b = synthetic(0), synthetic(1)
    test = stats.ks_two_sample(*(split_log_ratio(of_split(t, "forget")) for t in (a, b)))
    found = tofu_metrics(a, b, bootstrap=100)
    assert found["forget_quality.p"]["value"] == pytest.approx(test.p)
    assert 0 <= found["forget_quality.p"]["lo"] <= found["forget_quality.p"]["hi"] <= 1
    assert found["forget_quality.log10p"]["lo"] == pytest.approx(math.log10(found["forget_quality.p"]["lo"]), abs=0.3)


# ---------------------------------------------------------------------------------------------- the table


def test_the_table_survives_a_parquet_file(tmp_path):
    items, reference = synthetic(0), synthetic(1)
    items.to_parquet(tmp_path / "items.parquet")
    back = pd.read_parquet(tmp_path / "items.parquet")
    assert list(back.columns) == list(ITEM_COLUMNS)
    assert tofu_metrics(back, reference, bootstrap=20) == tofu_metrics(items, reference, bootstrap=20)


def test_a_table_without_any_list_survives_it_too(tmp_path):
    items = without(synthetic(0), "nll_perturbed")
    items.to_parquet(tmp_path / "items.parquet")
    assert tofu_metrics(pd.read_parquet(tmp_path / "items.parquet"), bootstrap=0) == tofu_metrics(items, bootstrap=0)


def test_an_index_that_occurs_twice_is_refused():
    items = synthetic()
    with pytest.raises(LetheError, match="split 'forget': index 0 occurs twice"):
        tofu_metrics(pd.concat([items, items.head(1)]))
