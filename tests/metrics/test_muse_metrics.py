import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.errors import LetheError
from lethe.metrics.items import MUSE_UNATTACKED, make_items
from lethe.metrics.muse import muse_metrics

NAMES = {
    "verbmem.forget", "verbmem.forget.ou", "verbmem.forget.recall", "knowmem.forget", "knowmem.forget.ou",
    "knowmem.retain", "knowmem.retain.ou", "privleak", "privleak.published", "mia.loss_auc", "mia.zlib_auc",
    "mia.min_k_auc", "mia.min_k_pp_auc", "mia.retain_min_k_auc", "violation_rate", "prop1.slack", "prop1.violations",
    "forget.gold_logit", "forget.prob", "forget.exact_memorization", "forget.extraction_strength",
}  # fmt: skip


def rows(split, **columns):
    """Items of one split; every column has one value an item."""
    n = len(next(iter(columns.values())))
    answered = split.startswith(("verbatim", "knowledge"))
    return [
        {"split": split, "index": i, "question": f"{split} {i}?" if answered else "", "answer": f"{split} {i}"}
        | {"truncated": 0}
        | {name: values[i] for name, values in columns.items()}
        for i in range(n)
    ]


def members(split, min_k, **columns):
    return rows(split, min_k=min_k, nll=min_k, zlib=min_k, min_k_pp=min_k, **columns)


def table(forget=(1.0, 4.0), holdout=(2.0, 3.0), retain=(0.5, 2.5)):
    """Values for which every metric is worked by hand below."""
    return make_items(
        [
            *rows(
                "forget",
                nll=[0.0, math.log(2), math.log(4)],
                exact_memorization=[1.0, 0.5, 0.0],
                extraction_strength=[0.5, 0.25, 0.0],
                violation_rate=[1.0, 0.0, 0.2],
                gold_logit=[10.0, 20.0, 0.0],
                prop1_slack=[1.0, 2.0, 6.0],
                prop1_violation=[0, 1, 1],
            ),
            *rows(
                "verbatim_forget", rouge_l_f1=[0.2, 0.4], rouge_l_f1_ou=[0.3, 0.5], rouge_l_recall=[0.1, 0.8],
            ),
            *rows("knowledge_forget", rouge_l_f1=[0.0, 1.0, 0.5], rouge_l_f1_ou=[0.0, 1.0, 0.8]),
            *rows("knowledge_retain", rouge_l_f1=[1.0, 0.5], rouge_l_f1_ou=[1.0, 1.0]),
            *members("member_forget", list(forget)),
            *members("member_holdout", list(holdout)),
            *members("member_retain", list(retain)),
        ]
    )  # fmt: skip


def synthetic(seed=0, n=40):
    rng = np.random.default_rng(seed)
    made = []
    for split in ("verbatim_forget", "knowledge_forget", "knowledge_retain"):
        made += rows(split, **{name: rng.uniform(size=n) for name in ("rouge_l_f1", "rouge_l_f1_ou", "rouge_l_recall")})
    for split in ("member_forget", "member_holdout", "member_retain"):
        made += members(split, rng.uniform(1, 5, size=n))
    columns = ("nll", "exact_memorization", "extraction_strength", "violation_rate", "gold_logit", "prop1_slack")
    made += rows("forget", prop1_violation=[0] * n, **{name: rng.uniform(size=n) for name in columns})
    return make_items(made)


def values(found):
    return {name: metric["value"] for name, metric in found.items()}


# ---------------------------------------------------------------------------------------------- arithmetic


def test_every_metric_of_a_table_worked_by_hand():
    reference = table(forget=(2.5, 4.0))  # wins over (2, 3): one of two, two of two
    found = values(muse_metrics(table(), reference, published=0.4, bootstrap=0))
    assert set(found) == NAMES
    assert found == pytest.approx(
        {
            "verbmem.forget": 30.0,
            "verbmem.forget.ou": 40.0,
            "verbmem.forget.recall": 45.0,
            "knowmem.forget": 50.0,
            "knowmem.forget.ou": 60.0,
            "knowmem.retain": 75.0,
            "knowmem.retain.ou": 100.0,
            "mia.loss_auc": 0.5,
            "mia.zlib_auc": 0.5,
            "mia.min_k_auc": 0.5,
            "mia.min_k_pp_auc": 0.5,
            "mia.retain_min_k_auc": 0.25,
            "privleak": 100 * (0.5 - 0.75) / 0.75,
            "privleak.published": 100 * (0.5 - 0.4) / 0.4,
            "violation_rate": 0.4,
            "forget.gold_logit": 10.0,
            "prop1.slack": 3.0,
            "prop1.violations": 2,
            "forget.prob": (1 + 1 / 2 + 1 / 4) / 3,
            "forget.exact_memorization": 0.5,
            "forget.extraction_strength": 0.25,
        }
    )


def test_a_complete_table_has_intervals_around_every_metric():
    found = muse_metrics(synthetic(0), synthetic(1), published=0.4772, bootstrap=300)
    for name, metric in found.items():
        assert metric["lo"] <= metric["value"] <= metric["hi"], (name, metric)
    assert (found["verbmem.forget"]["n"], found["privleak"]["n"], found["prop1.slack"]["n"]) == (40, 80, 40)
    json.dumps(found, allow_nan=False)


def test_the_interval_of_a_published_reference_is_that_of_the_auc():
    found = muse_metrics(synthetic(0), published=0.4, bootstrap=200)
    auc, leak = found["mia.min_k_auc"], found["privleak.published"]
    for end in ("value", "lo", "hi"):
        assert leak[end] == pytest.approx(100 * (auc[end] - 0.4) / 0.4)


@pytest.mark.parametrize(
    ("forget", "sign"),
    [((0.1, 0.2), -1), ((4.0, 5.0), 1)],  # far more likely than unseen texts: still known; far less: pushed below them
)
def test_privleak_is_negative_for_a_model_that_knows_and_positive_for_one_pushed_below(forget, sign):
    reference = table(forget=(1.0, 5.0), holdout=(2.0, 3.0))  # its own AUC is .5
    found = muse_metrics(table(forget=forget), reference, bootstrap=0)["privleak"]
    assert found["value"] == 100 * sign
    assert "against the retrained model's own AUC 0.500" in found["reason"]
    assert ("over-unlearned" in found["reason"]) == (sign > 0)


def test_the_published_constant_is_named_and_is_not_assumed():
    found = muse_metrics(table(), table(forget=(2.5, 4.0)), published=0.4772, bootstrap=0)
    assert "against the AUC 0.4772" in found["privleak.published"]["reason"]
    assert "own AUC 0.750" in found["privleak"]["reason"]
    without = muse_metrics(table(), table(forget=(2.5, 4.0)), bootstrap=50)["privleak.published"]
    assert without == {
        "value": None, "n": 0, "lo": None, "hi": None, "reason": "no published reference AUC for this benchmark",
    }  # fmt: skip


@given(st.permutations(range(len(table()))))
@settings(max_examples=10, deadline=None)
def test_the_order_of_rows_changes_nothing(order):
    items, reference = table(), table(forget=(2.5, 4.0))
    shuffled = items.iloc[list(order)].reset_index(drop=True)
    assert muse_metrics(shuffled, reference, bootstrap=20) == muse_metrics(items, reference, bootstrap=20)


def test_a_splits_intervals_do_not_depend_on_other_splits():
    items = synthetic()
    alone = items[items["split"] == "verbatim_forget"]
    whole = muse_metrics(items, bootstrap=50)["verbmem.forget"]
    assert muse_metrics(alone, bootstrap=50)["verbmem.forget"] == whole
    assert whole["lo"] < whole["hi"]


# ---------------------------------------------------------------------------------------------- what is missing


def test_a_missing_file_has_the_manifests_reason_and_no_value():
    items = table()
    items = items[~items["split"].isin(["knowledge_forget", "member_holdout"])]
    missing = {"knowledge_forget": "plain text files have no questions", "member_holdout": "no holdout texts"}
    found = muse_metrics(items, table(forget=(2.5, 4.0)), missing=missing, published=0.4, bootstrap=20)
    for name in ("knowmem.forget", "knowmem.forget.ou"):
        assert (found[name]["value"], found[name]["reason"]) == (None, "plain text files have no questions")
    for name in ("privleak", "privleak.published", "mia.min_k_auc", "mia.retain_min_k_auc"):
        assert (found[name]["value"], found[name]["reason"]) == (None, "no holdout texts")
    assert found["knowmem.retain"]["value"] == 75.0


def test_a_missing_file_without_a_reason_is_named():
    items = table()
    found = muse_metrics(items[items["split"] != "verbatim_forget"], bootstrap=0)
    assert found["verbmem.forget"]["reason"] == "no items of split 'verbatim_forget' (verbatim_forget.jsonl)"
    assert set(found) == NAMES


def test_under_attack_the_forget_side_alone_is_scored():
    items = table()
    found = muse_metrics(
        items[~items["split"].isin(MUSE_UNATTACKED)], table(forget=(2.5, 4.0)), missing={"member_holdout": "none"},
        forget_only=True, bootstrap=20,
    )  # fmt: skip
    left_out = {name for name, metric in found.items() if metric["value"] is None}
    assert left_out == {name for name in NAMES if name.startswith(("mia", "privleak", "knowmem.retain"))}
    assert {found[name]["reason"] for name in left_out - {"privleak.published"}} == {
        "attacks are scored on the forget side only"
    }
    assert (found["verbmem.forget"]["value"], found["knowmem.forget"]["value"]) == (30.0, 50.0)


def test_without_a_reference_nothing_is_assumed():
    found = muse_metrics(table(), bootstrap=20)
    assert (found["privleak"]["value"], found["mia.min_k_auc"]["value"]) == (None, 0.5)
    assert "no reference" in found["privleak"]["reason"]


@pytest.mark.parametrize("split", ["member_forget", "member_holdout"])
def test_a_reference_on_other_texts_gives_no_privleak_and_says_so(split):
    reference = table(forget=(2.5, 4.0))
    reference.loc[(reference["split"] == split) & (reference["index"] == 1), "answer"] = "Another text."
    found = muse_metrics(table(), reference, bootstrap=20)["privleak"]
    assert found["value"] is None
    assert found["reason"] == (
        f"the reference's split '{split}' has different texts, the first at 1: '{split} 1' against 'Another text.'"
    )


def test_other_texts_in_splits_that_privleak_does_not_use_are_no_matter():
    reference = table(forget=(2.5, 4.0))
    reference.loc[reference["split"].isin(["forget", "verbatim_forget", "member_retain"]), "answer"] = "Another text."
    assert muse_metrics(table(), reference, bootstrap=0)["privleak"]["value"] == pytest.approx(-100 / 3)


def test_a_reference_without_membership_texts_is_noted():
    reference = table()
    reference = reference[reference["split"] != "member_forget"]
    found = muse_metrics(table(), reference, bootstrap=0)["privleak"]
    assert (found["value"], found["reason"]) == (None, "the reference has no items of split 'member_forget'")


def test_a_reference_whose_own_auc_is_zero_gives_no_privleak():
    found = muse_metrics(table(), table(forget=(0.1, 0.2)), bootstrap=20)["privleak"]
    assert (found["value"], found["reason"]) == (None, "the reference's own AUC is 0")


def test_a_table_is_not_its_own_reference():
    with pytest.raises(LetheError, match=r"x\.json and y\.json: the same values"):
        muse_metrics(table(), table().sample(frac=1), name="x.json", reference_name="y.json")


def test_without_margins_their_metrics_say_so():
    items = table()
    items[["violation_rate", "gold_logit", "prop1_slack", "prop1_violation"]] = np.nan
    found = muse_metrics(items, bootstrap=0)
    assert found["violation_rate"]["reason"] == "scored without a margin (k, beta, rho)"
    assert found["forget.prob"]["value"] is not None


# ---------------------------------------------------------------------------------------------- notes


def test_cut_texts_and_prompts_are_counted():
    items = table()
    items.loc[items["split"].eq("member_holdout") & items["index"].eq(0), "truncated"] = 1
    items.loc[items["split"].isin(["member_retain", "verbatim_forget"]), "truncated"] = 1
    found = muse_metrics(items, table(forget=(2.5, 4.0)), bootstrap=0)
    assert "1 of 4 texts cut at max_length" in found["mia.loss_auc"]["reason"]
    assert "1 of 4 texts cut at max_length" in found["privleak"]["reason"]
    assert "3 of 4 texts cut at max_length" in found["mia.retain_min_k_auc"]["reason"]
    assert found["verbmem.forget"]["reason"] == "2 of 2 prompts cut at max_length to their last tokens"
    assert found["knowmem.forget"]["reason"] is None


def test_gold_texts_that_rouge_cannot_see_are_noted():
    items = table()
    items.loc[items["split"].eq("knowledge_forget") & items["index"].eq(0), "answer"] = "宮部"
    assert "1 of 3 gold answers have no token" in muse_metrics(items, bootstrap=0)["knowmem.forget"]["reason"]


def test_the_table_survives_a_parquet_file(tmp_path):
    items, reference = table(), table(forget=(2.5, 4.0))
    items.to_parquet(tmp_path / "items.parquet")
    back = pd.read_parquet(tmp_path / "items.parquet")
    assert muse_metrics(back, reference, bootstrap=20) == muse_metrics(items, reference, bootstrap=20)
