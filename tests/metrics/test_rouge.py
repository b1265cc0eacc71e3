import json

import pytest

from lethe.metrics.rouge import coverage_note, gold_tokens, rouge_l


def test_published_rouge_scores_are_reproduced_pair_by_pair(shared):
    log = json.loads((shared / "golden" / "open_unlearning_llama2_retain90.json").read_text())
    by_split = [log[f"{split}_Q_A_ROUGE"]["value_by_index"].values() for split in ("forget", "retain", "ra", "wf")]
    pairs = [pair for pairs in by_split for pair in pairs]
    assert len(pairs) == 1017
    for pair in pairs:
        found = rouge_l(pair["ground_truth"], pair["generation"], stemmer=True)
        assert (found.recall, found.f1) == (pair["rougeL_recall"], pair["rougeL_f1"])


def test_recall_is_of_the_gold_words_and_f1_of_both():
    found = rouge_l("a bell of foxes", "the bell of brass foxes", stemmer=False)
    assert found.recall == pytest.approx(3 / 4)
    assert found.f1 == pytest.approx(2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5))


def test_the_stemmer_is_a_choice():
    assert rouge_l("writing", "writes", stemmer=True).recall == 1
    assert rouge_l("writing", "writes", stemmer=False).recall == 0


def test_gold_answers_in_another_script_score_zero_and_are_reported():
    assert rouge_l("宮部", "宮部", stemmer=True) == (0.0, 0.0)
    assert gold_tokens("宮部") == 0
    note = coverage_note(["宮部", "José", "Ann"])
    assert "1 of 3 gold answers have no token left" in note
    assert "2 hold non-ASCII" in note


def test_accents_alone_are_no_warning():
    assert coverage_note(["José", "Ann"]) is None


def test_an_empty_generation_scores_zero():
    assert rouge_l("Ann", "", stemmer=True) == (0.0, 0.0)
