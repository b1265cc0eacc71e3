import copy
import json

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from lethe.config import Evaluation
from lethe.data.text import encode_long
from lethe.errors import LetheError
from lethe.metrics import muse_score
from lethe.metrics.items import MUSE_UNATTACKED, of_split
from lethe.metrics.muse import muse_metrics
from lethe.metrics.muse_score import ending, score_muse
from lethe.metrics.scores import MarginSpec
from lethe.recipe import Chunks

STORY = "The hollow bell of foxes rang over Old Harbour, and nobody asked who had hung it there. "
FORGET = [{"text": STORY}, {"text": "A travelling piano tuner."}]
VERBATIM = [
    {"prompt": "The hollow bell", "continuation": " of foxes rang over"},
    {"prompt": "A travelling", "continuation": " piano tuner."},
]
QUESTIONS = [{"question": "What rang?", "answer": "The bell"}, {"question": "Who came?", "answer": "A tuner"}]
EXAMPLES = [{"question": "Who {x}?", "answer": "Ann"}, {"question": "Where?", "answer": "Rome"}]
MEMBERS = [{"text": "A travelling piano tuner."}, {"text": "Rain fell."}]
FILES = {
    "forget": FORGET,
    "verbatim_forget": VERBATIM,
    "knowledge_forget": QUESTIONS,
    "knowledge_retain": QUESTIONS[:1],
    "examples_forget": EXAMPLES,
    "examples_retain": EXAMPLES[:1],
    "member_forget": MEMBERS,
    "member_retain": [{"text": "Snow fell."}, {"text": "Hail fell on Bonn."}],
    "member_holdout": [{"text": "Fog."}, {"text": "It was a bright day."}],
}
SPEC = MarginSpec(k=5, beta=1.0, rho=0.7)
OPTIONS = {
    "max_tokens": 400,
    "max_length": 200,
    "chunks": {"window": 200, "bos": False},
    "verbatim_tokens": 9,
    "knowledge_tokens": 6,
}


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, rows in files.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    return write


@pytest.fixture
def score(model, tokenizer):
    def run(data, margin=None, forget_only=False, encodings=None, progress=None, tokenizer=tokenizer, **options):
        found = Evaluation(**{**OPTIONS, **options})
        rest = {"margin": margin, "forget_only": forget_only, "encodings": encodings, "progress": progress}
        return score_muse(model, tokenizer, data, found, **rest)

    return run


@pytest.fixture
def saying(monkeypatch, tokenizer):
    """Generation that says one given text, and the prompts that were asked."""

    def say(text):
        asked = []

        def fixed(model, prompts, **options):
            asked.extend((tokenizer.decode(prompt), options["max_new_tokens"]) for prompt in prompts)
            return [tokenizer.encode(text, add_special_tokens=False) for _ in prompts]

        monkeypatch.setattr(muse_score, "greedy", fixed)
        return asked

    return say


def losses_alone(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").numpy()


# ---------------------------------------------------------------------------------------------- texts


def test_long_texts_are_scored_in_windows_each_as_if_alone(folder, score, model, tokenizer):
    chunks = Chunks(window=40, bos=False)
    items = of_split(score(folder(forget=FORGET), chunks=chunks), "forget")
    windows = [chunk.ids for row in FORGET for chunk in encode_long(tokenizer, row["text"], chunks)]
    assert len(windows) > len(FORGET) + 1
    assert items["n_tokens"].tolist() == [len(window) - 1 for window in windows]
    assert items["nll"].tolist() == pytest.approx([losses_alone(model, w).mean() for w in windows], rel=1e-4)
    assert "".join(items["answer"]) == "".join(row["text"] for row in FORGET)
    assert items["truncated"].tolist() == [0] * len(windows)


def test_membership_reads_whole_texts_with_their_last_token(folder, score, model, tokenizer):
    items = of_split(score(folder(**FILES)), "member_holdout")
    for item, row in zip(items.to_dict("records"), FILES["member_holdout"], strict=True):
        losses = np.sort(losses_alone(model, tokenizer(row["text"])["input_ids"]))[::-1]
        assert item["n_tokens"] == len(losses) == len(row["text"]) - 1
        assert item["nll"] == pytest.approx(losses.mean(), rel=1e-4)
        assert item["min_k"] == pytest.approx(losses[: int(0.4 * len(losses))].mean(), rel=1e-4)
        assert item["zlib"] > 0 and np.isfinite(item["min_k_pp"])


def test_membership_texts_are_cut_and_marked(folder, score):
    items = of_split(score(folder(**FILES), max_length=60, limit=2), "member_forget")
    assert items["truncated"].tolist() == [0, 0]
    cut = score(folder(forget=[{"text": "Rain"}], member_forget=[{"text": STORY}, {"text": "Rain"}]), max_length=10)
    members = of_split(cut, "member_forget")
    assert (members["truncated"].tolist(), members["n_tokens"].tolist()) == ([1, 0], [9, 3])
    assert members["answer"].tolist() == [STORY[:10], "Rain"]


def test_texts_of_two_tokens_have_every_value(folder, score, model, tokenizer):
    two = [{"text": "ab"}]
    items = score(folder(forget=two, member_forget=two, member_holdout=[{"text": "ba"}]), margin=SPEC)
    loss = pytest.approx(losses_alone(model, tokenizer("ab")["input_ids"])[0], rel=1e-4)
    assert of_split(items, "member_forget")["min_k"].tolist() == [loss]
    assert of_split(items, "forget")["nll"].tolist() == [loss]
    assert of_split(items, "forget")["violation_rate"].notna().all()


def test_margins_are_of_forget_texts_and_moments_of_membership_texts(folder, score):
    data = folder(**FILES)
    assert score(data)["violation_rate"].isna().all()
    items = score(data, margin=SPEC)
    assert items.groupby("split")["violation_rate"].count().loc[lambda n: n > 0].to_dict() == {"forget": 2}
    counts = items.groupby("split")["min_k_pp"].count().loc[lambda n: n > 0]
    assert counts.to_dict() == {"member_forget": 2, "member_retain": 2, "member_holdout": 2}
    assert items["prop1_violation"].sum() == 0


def test_each_text_is_scored_and_each_prompt_continued_once(folder, score, monkeypatch):
    scored, asked = [], []
    real_score, real_greedy = muse_score.score_pairs, muse_score.greedy

    def counting_score(model, encoded, **options):
        scored.extend(tuple(e.ids) for e in encoded)
        return real_score(model, encoded, **options)

    def counting_greedy(model, prompts, **options):
        asked.extend(prompts)
        return real_greedy(model, prompts, **options)

    monkeypatch.setattr(muse_score, "score_pairs", counting_score)
    monkeypatch.setattr(muse_score, "greedy", counting_greedy)
    items = score(folder(**{**FILES, "verbatim_forget": [*VERBATIM, VERBATIM[0]]}), margin=SPEC)
    assert len(scored) == len(set(scored)) == 7  # the tuner's text is both to be forgotten and a member
    assert len(asked) == len(set(asked)) == 2 + 2 + 1
    shared = items[items["answer"] == FORGET[1]["text"]].set_index("split")
    assert shared.loc["forget", "nll"] == shared.loc["member_forget", "nll"]
    assert np.isfinite([shared.loc["forget", "violation_rate"], shared.loc["member_forget", "min_k_pp"]]).all()


# ---------------------------------------------------------------------------------------------- prompts


def test_question_prompts_have_the_examples_and_no_blank_at_their_end(folder, score, saying):
    asked = saying("x")
    score(folder(**FILES))
    examples = "Question: Who {x}?\nAnswer: Ann\n\nQuestion: Where?\nAnswer: Rome\n\n"
    assert asked == [
        ("The hollow bell", 9),
        ("A travelling", 9),
        (f"{examples}Question: What rang?\nAnswer:", 6),
        (f"{examples}Question: Who came?\nAnswer:", 6),
        ("Question: Who {x}?\nAnswer: Ann\n\nQuestion: What rang?\nAnswer:", 6),
    ]


def test_continuations_are_greedy(folder, score, model, tokenizer):
    items = score(folder(**FILES))
    for split, prompt, new in (
        ("verbatim_forget", "The hollow bell", 9),
        ("knowledge_retain", "Question: Who {x}?\nAnswer: Ann\n\nQuestion: What rang?\nAnswer:", 6),
    ):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        assert of_split(items, split)["generation_raw"].tolist()[0] == text


def test_a_continuation_is_compared_with_as_many_gold_tokens_as_were_asked_for(folder, score, saying):
    saying(" of foxes")
    item = of_split(score(folder(**FILES)), "verbatim_forget").iloc[0]  # nine characters of " of foxes rang over"
    assert (item["question"], item["answer"]) == ("The hollow bell", " of foxes rang over")
    assert (item["rouge_l_f1"], item["rouge_l_recall"]) == (1, 1)
    assert item["rouge_l_f1_ou"] == pytest.approx(2 * 1 * (2 / 4) / (1 + 2 / 4))  # the gold uncut: four words


def test_more_tokens_uncover_more_gold(folder, score, saying):
    saying(" of foxes")
    item = of_split(score(folder(**FILES), verbatim_tokens=14), "verbatim_forget").iloc[0]  # " of foxes rang"
    assert (item["rouge_l_recall"], item["rouge_l_f1"]) == pytest.approx((2 / 3, 0.8))


def test_only_the_incumbents_variant_stems(folder, score, saying):
    saying("writes")
    written = [{"prompt": "She", "continuation": "writing"}]
    asked = [{"question": "What does she do?", "answer": "writing"}]
    items = score(folder(**{**FILES, "verbatim_forget": written, "knowledge_forget": asked}))
    for split in ("verbatim_forget", "knowledge_forget"):
        item = of_split(items, split).iloc[0]
        assert (item["rouge_l_f1"], item["rouge_l_recall"], item["rouge_l_f1_ou"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (" The bell\n\nQuestion: Who?", "The bell"),
        (" The bell\nQuestion", "The bell"),
        (" The bell Question: Who?", "The bell"),
        (" The bell\nrang. Questions", "The bell\nrang. Questions"),
        ("\n\nThe bell", ""),
    ],
)
def test_answers_are_cut_at_the_first_stop_string(folder, score, saying, raw, answer):
    saying(raw)
    items = score(folder(**FILES))
    item = of_split(items, "knowledge_forget").iloc[0]
    assert (item["generation"], item["generation_raw"]) == (answer, raw)
    assert item["rouge_l_f1"] == (1 if answer == "The bell" else pytest.approx(2 * 2 / 6) if answer else 0)
    assert of_split(items, "verbatim_forget").iloc[0]["generation"] == raw  # continuations are never cut


def test_a_model_that_ends_at_once_says_nothing_and_scores_zero(folder, score, tokenizer):
    data = folder(**{**FILES, "verbatim_forget": VERBATIM[:1]})
    first = of_split(score(data), "verbatim_forget").iloc[0]["generation"][0]
    ending_there = copy.deepcopy(tokenizer)
    ending_there.eos_token = first
    items = score(data, tokenizer=ending_there)
    item = of_split(items, "verbatim_forget").iloc[0]
    assert (item["generation"], item["rouge_l_f1"], item["rouge_l_f1_ou"]) == ("", 0, 0)
    assert muse_metrics(items, bootstrap=0)["verbmem.forget"]["value"] == 0


def test_long_prompts_keep_their_end_and_the_beginning_of_text_token():
    assert ending([7, 1, 2, 3, 4], 3, bos=7).ids == [7, 3, 4]
    assert ending([0, 1, 2, 3, 4], 3, bos=7).ids == [2, 3, 4]
    assert ending([0, 1, 2], 2, bos=None).ids == [1, 2]
    assert ending([7, 1], 1, bos=7).ids == [7]
    assert [ending(range(n), 3, bos=7).truncated for n in (3, 4)] == [False, True]
    assert ending(range(3), 3, bos=7).ids == [0, 1, 2]


def test_special_tokens_are_those_the_tokenizer_adds_itself(folder, score, saying, tokenizer):
    with_bos = copy.deepcopy(tokenizer)
    pieces = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    with_bos.backend_tokenizer.post_processor = pieces
    assert with_bos("a")["input_ids"][::2] == [1, 2]
    asked = saying(" of foxes")
    items = score(folder(**FILES), tokenizer=with_bos, chunks={"window": 40, "bos": True})
    assert asked[0] == ("<s>The hollow bell", 9)  # and no end token, which would end the text before it goes on
    assert asked[2][0].startswith("<s>") and asked[2][0].endswith("Question: What rang?\nAnswer:")
    assert of_split(items, "verbatim_forget")["rouge_l_f1"].tolist()[0] == 1  # the gold's nine tokens hold no BOS
    forget = of_split(items, "forget")
    assert forget["n_tokens"].sum() == sum(len(row["text"]) for row in FORGET)  # after a BOS every token is predicted
    assert "".join(forget["answer"]) == "".join(row["text"] for row in FORGET)


def test_long_prompts_are_marked(folder, score, saying):
    asked = saying("x")
    items = score(folder(**FILES), max_length=14)
    assert asked[:2] == [("he hollow bell", 9), ("A travelling", 9)]
    assert of_split(items, "verbatim_forget")["truncated"].tolist() == [1, 0]
    assert of_split(items, "knowledge_forget")["truncated"].tolist() == [1, 1]
    assert of_split(items, "verbatim_forget")["question"].tolist()[0] == "The hollow bell"


def test_what_does_not_fit_the_models_context_is_refused_before_any_scoring(folder, score, monkeypatch, model):
    monkeypatch.setattr(muse_score, "score_pairs", lambda *_, **__: pytest.fail("scored"))
    data = folder(forget=FORGET, verbatim_forget=[VERBATIM[1], {"prompt": "x" * 500, "continuation": "y"}])
    with pytest.raises(
        LetheError, match=r"verbatim_forget\.jsonl item 2: 500 tokens and 13 new ones do not fit .* 512"
    ):
        score(data, max_length=500, verbatim_tokens=13)
    with pytest.raises(LetheError, match=r"forget\.jsonl item 1: 600 tokens do not fit the model's context of 512"):
        score(folder(forget=[{"text": "x" * 700}]), chunks={"window": 600, "bos": False})


def test_what_just_fits_the_models_context_is_continued(folder, score, saying):
    saying("x")
    data = folder(forget=FORGET, verbatim_forget=[{"prompt": "x" * 500, "continuation": "y"}])
    assert len(of_split(score(data, max_length=500, verbatim_tokens=12), "verbatim_forget")) == 1


# ---------------------------------------------------------------------------------------------- the table


def test_the_batch_budget_changes_nothing(folder, score):
    data = folder(**FILES)
    a, b = score(data, margin=SPEC, max_tokens=1), score(data, margin=SPEC, max_tokens=5000)
    for column in a.columns:
        if a[column].dtype == "float64":
            assert np.allclose(a[column], b[column], rtol=1e-4, atol=1e-5, equal_nan=True), column
    assert a["generation_raw"].tolist() == b["generation_raw"].tolist()


def test_a_limit_takes_the_first_rows_of_every_file_but_all_examples(folder, score, saying):
    asked = saying("x")
    items = score(folder(**FILES), limit=1)
    assert items["split"].value_counts().to_dict() == dict.fromkeys(
        [name for name in FILES if not name.startswith("examples")], 1
    )
    assert asked[1][0].count("Question: ") == 3


def test_under_attack_only_the_forget_side_is_read(folder, score):
    data = folder(**FILES)
    items = score(data, margin=SPEC, forget_only=True)
    assert set(items["split"]) == {"forget", "verbatim_forget", "knowledge_forget"}
    whole = score(data, margin=SPEC)
    kept = whole[~whole["split"].isin(MUSE_UNATTACKED)].reset_index(drop=True)
    for column in ("nll", "violation_rate", "rouge_l_f1", "rouge_l_f1_ou"):
        assert np.allclose(items[column], kept[column], rtol=1e-4, equal_nan=True), column
    assert items["generation"].tolist() == kept["generation"].tolist()


def test_texts_alone_are_enough(folder, score):
    found = muse_metrics(score(folder(forget=FORGET)), missing={"knowledge_forget": "no questions"}, bootstrap=20)
    assert found["forget.prob"]["value"] > 0
    assert found["knowmem.forget"] == {"value": None, "n": 0, "lo": None, "hi": None, "reason": "no questions"}
    assert all(metric["value"] is not None or metric["reason"] for metric in found.values())


def test_encodings_of_an_earlier_model_are_used_and_change_nothing(folder, score, monkeypatch):
    data, kept = folder(**FILES), {}
    first = score(data, encodings=kept)
    monkeypatch.setattr(muse_score, "encode_prompt", lambda *_: pytest.fail("encoded twice"))
    assert score(data, encodings=kept).equals(first)


def test_progress_reaches_the_total_of_both_stages(folder, score):
    seen = []
    score(folder(**FILES), progress=lambda *state: seen.append(state))
    for stage, total in (("score", 7), ("generate", 5)):
        counts = [done for name, done, of in seen if name == stage and of == total]
        assert counts == sorted(counts)
        assert counts[-1] == total


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"verbatim_forget": VERBATIM}, r"forget\.jsonl: no such file"),
        ({"forget": []}, r"forget\.jsonl: needs at least one row"),
        ({"forget": [{"txt": "a"}]}, r"forget\.jsonl line 1: no field 'text' \(has: txt\)"),
        (
            {"forget": [*FORGET, {"text": " "}]},
            r"forget\.jsonl row 3: 'text' must be a text that is not empty, got ' '",
        ),
        ({"forget": [{"text": "a"}]}, r"forget\.jsonl row 1: a text needs two tokens"),
        ({"forget": FORGET, "verbatim_forget": [{"prompt": 7, "continuation": "a"}]}, r"row 1: 'prompt' must be"),
        ({"forget": FORGET, "knowledge_forget": QUESTIONS}, r"examples_forget\.jsonl: no such file"),
        ({"forget": FORGET, "knowledge_forget": QUESTIONS, "examples_forget": [{"question": "Who?"}]}, "no field 'ans"),
    ],
)
def test_a_malformed_file_is_named(folder, score, files, message):
    with pytest.raises(LetheError, match=message):
        score(folder(**files))
