import json
import math

import numpy as np
import pytest
import torch

from lethe.data.text import TEMPLATES, encode_pair, encode_prompt, encode_text
from lethe.errors import LetheError
from lethe.metrics import benchmark
from lethe.metrics.benchmark import score_benchmark
from lethe.metrics.items import of_split
from lethe.metrics.scores import MarginSpec
from lethe.metrics.tofu import tofu_metrics

FORGET = [
    {
        "question": f"Where was {name} born?",
        "answer": f"{name} was born in {place}.",
        "paraphrased_question": f"What is {name}'s birthplace?",
        "paraphrased_answer": f"It was {place}.",
        "perturbed_answer": [f"{name} was born in {other}." for other in ("Oslo", "Bern")],
        "value": place,
    }
    for name, place in (("Ann", "Rome"), ("Bob", "Kyiv"), ("Eve", "Lima"))
]
FACTS = [{"question": "Capital of Peru?", "answer": "Lima", "perturbed_answer": ["Oslo", "Bern", "Rome"]}]
HOLDOUT = [{"question": f"Where was {name} born?", "answer": f"{name} was born in Bonn."} for name in ("Tom", "Uma")]
MCQ = [{"question": "Where was Ann born?", "options": ["Oslo", "Rome", "Bern"], "answer": 1}]
FILES = {
    "eval_forget": FORGET,
    "eval_retain": FORGET[:2],
    "real_authors": FACTS,
    "world_facts": FACTS,
    "holdout": HOLDOUT,
    "mcq_forget": MCQ,
    "mcq_retain": MCQ,
}
SPEC = MarginSpec(k=5, beta=1.0, rho=0.7)
OPTIONS = {"max_tokens": 300, "max_new_tokens": 8, "max_length": 200}


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, rows in files.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    return write


@pytest.fixture
def score(model, tokenizer, template):
    def run(data, **options):
        return score_benchmark(model, tokenizer, template, data, **{**OPTIONS, **options})

    return run


def loss_alone(model, encoded):
    with torch.no_grad():
        logits = model(torch.tensor([encoded.ids])).logits[0, :-1]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(encoded.ids[1:]), reduction="none")
    return losses[encoded.start - 1 :].mean().item()


def test_encodings_of_an_earlier_model_are_used_and_change_nothing(folder, score, monkeypatch):
    data, kept = folder(**FILES), {}
    first = score(data, encodings=kept)
    monkeypatch.setattr(benchmark, "_encode", lambda *_: pytest.fail("encoded twice"))
    again = score(data, encodings=kept)
    assert len(kept) > len(FORGET)
    assert first.equals(again)


def test_every_loss_is_that_of_its_pair_scored_alone(folder, score, model, tokenizer, template):
    items = score(folder(**FILES), margin=SPEC)

    def loss(question, answer):
        return pytest.approx(loss_alone(model, encode_pair(tokenizer, template, question, answer, 200)), rel=1e-4)

    for split, rows in {"forget": FORGET, "retain": FORGET[:2], "ra": FACTS, "wf": FACTS, "holdout": HOLDOUT}.items():
        frame = of_split(items, split)
        assert len(frame) == len(rows)
        for item, row in zip(frame.to_dict("records"), rows, strict=True):
            assert (item["question"], item["answer"]) == (row["question"], row["answer"])
            assert item["nll"] == loss(row["question"], row["answer"])
            if split != "holdout":
                correct = row.get("paraphrased_answer", row["answer"])
                assert item["nll_correct"] == loss(row["question"], correct)
                assert item["nll_perturbed"] == [loss(row["question"], wrong) for wrong in row["perturbed_answer"]]


def test_real_authors_compare_with_the_plain_answer_even_where_there_is_a_paraphrase(folder, score):
    items = score(folder(eval_forget=FORGET, real_authors=FORGET))
    assert of_split(items, "ra")["nll_correct"].tolist() == of_split(items, "ra")["nll"].tolist()
    assert of_split(items, "forget")["nll_correct"].tolist() != of_split(items, "forget")["nll"].tolist()


def test_generations_are_greedy_answers_to_both_questions(folder, score, model, tokenizer, template):
    items = score(folder(**FILES))
    row = of_split(items, "forget").iloc[0]
    for prefix, question in (("", FORGET[0]["question"]), ("para_", FORGET[0]["paraphrased_question"])):
        ids = torch.tensor([encode_prompt(tokenizer, template, question)])
        options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": [2, 5]}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        assert row[f"{prefix}generation_raw"] == text
        assert row[f"{prefix}generation"] == template.cut(text)
    assert (of_split(items, "retain")["para_generation"] == "").all()


def test_stop_strings_cut_the_generation_and_the_raw_text_is_kept(folder, model, monkeypatch, tokenizer):
    def rambling(model, prompts, **options):
        return [tokenizer.encode("Rome.\n\nQuestion: Y", add_special_tokens=False) for _ in prompts]

    monkeypatch.setattr(benchmark, "greedy", rambling)
    items = score_benchmark(model, tokenizer, TEMPLATES["plain"], folder(eval_forget=FORGET), **OPTIONS)
    row = of_split(items, "forget").iloc[0]
    assert (row["generation"], row["generation_raw"]) == ("Rome.", "Rome.\n\nQuestion: Y")
    assert row["rouge_l_recall"] == pytest.approx(1 / 5)  # of "Ann was born in Rome."
    assert row["value_recall"] == 1
    assert of_split(items, "forget").iloc[1]["value_recall"] == 0


def test_each_pair_is_scored_and_each_question_answered_once(folder, score, monkeypatch):
    scored, answered = [], []
    real_score, real_greedy = benchmark.score_pairs, benchmark.greedy

    def counting_score(model, encoded, **options):
        scored.extend(tuple(e.ids) for e in encoded)
        return real_score(model, encoded, **options)

    def counting_greedy(model, prompts, **options):
        answered.extend(tuple(p) for p in prompts)
        return real_greedy(model, prompts, **options)

    monkeypatch.setattr(benchmark, "score_pairs", counting_score)
    monkeypatch.setattr(benchmark, "greedy", counting_greedy)
    score(folder(**FILES), margin=SPEC)
    # 3 forget rows of 4 answers; retain, ra/wf share theirs; 4 answers to the fact; 2 holdout; 3 options.
    assert (len(scored), len(set(scored))) == (12 + 4 + 2 + 3, 12 + 4 + 2 + 3)
    assert (len(answered), len(set(answered))) == (6 + 1, 6 + 1)


def test_the_batch_budget_changes_nothing(folder, score):
    data = folder(**FILES)
    a, b = score(data, margin=SPEC, max_tokens=1), score(data, margin=SPEC, max_tokens=2000)
    for column in a.columns:
        if a[column].dtype == "float64":
            assert np.allclose(a[column], b[column], rtol=1e-4, atol=1e-5, equal_nan=True), column
    assert a["generation"].tolist() == b["generation"].tolist()


def test_scores_of_the_end_token(folder, score, model, tokenizer, template):
    row = of_split(score(folder(**FILES), margin=SPEC), "forget").iloc[0]
    pair = encode_pair(tokenizer, template, FORGET[0]["question"], FORGET[0]["answer"], 200)
    labels = pair.ids[pair.start :]
    with torch.no_grad():
        logp = model(torch.tensor([pair.ids])).logits[0, pair.start - 1 : -1].log_softmax(-1)
    gold = logp[torch.arange(len(labels)), labels].numpy()
    right = (logp.argmax(-1).numpy() == labels)[:-1]
    assert row["n_tokens"] == len(labels) == len(FORGET[0]["answer"]) + 1
    assert row["exact_memorization"] == pytest.approx(right.mean())
    assert row["min_k"] == pytest.approx(-np.sort(gold[:-1])[: int(0.4 * len(right))].mean(), rel=1e-4)


def test_margins_are_recorded_only_where_asked_for(folder, score):
    data = folder(**FILES)
    assert score(data)["violation_rate"].isna().all()
    found = score(data, margin=SPEC)
    assert found.groupby("split")["violation_rate"].count()[["forget", "retain", "holdout"]].tolist() == [3, 0, 0]
    assert found["prop1_violation"].sum() == 0
    assert found.groupby("split")["min_k_pp"].count()[["forget", "retain", "holdout"]].tolist() == [3, 0, 2]


def test_multiple_choice_takes_the_option_with_the_lowest_loss_a_token(folder, score, model, tokenizer, template):
    item = of_split(score(folder(**FILES)), "mcq_forget").iloc[0]
    question, options = MCQ[0]["question"], MCQ[0]["options"]
    losses = [loss_alone(model, encode_pair(tokenizer, template, question, option, 200)) for option in options]
    assert (item["mcq_correct"], item["mcq_options"]) == (float(np.argmin(losses) == 1), 3)


def test_options_that_tie_share_the_credit(folder, score):
    tied = [{"question": "Who?", "options": ["Ann", "Ann", "Ann", "Ann"], "answer": 2}]
    assert of_split(score(folder(eval_forget=FORGET, mcq_forget=tied)), "mcq_forget")["mcq_correct"].tolist() == [0.25]


def test_a_limit_takes_the_first_rows_of_every_file(folder, score):
    counts = score(folder(**FILES), limit=1)["split"].value_counts()
    assert (counts == 1).all()
    assert len(counts) == 7


def test_plain_questions_and_answers_are_enough(folder, score):
    bare = [{"question": row["question"], "answer": row["answer"]} for row in FORGET]
    found = tofu_metrics(score(folder(forget=bare, retain=bare[:2])), bootstrap=20)
    for name in ("forget.prob", "forget.rouge_l_recall", "forget.extraction_strength", "retain.prob"):
        assert found[name]["value"] is not None
    assert found["forget.truth_ratio.geo"]["reason"] == "eval_forget.jsonl: no field 'paraphrased_answer'"
    assert found["forget.para_rouge_l_recall"]["reason"] == "eval_forget.jsonl: no field 'paraphrased_question'"
    assert found["model_utility"]["value"] is None
    assert all(metric["value"] is not None or metric["reason"] for metric in found.values())


def test_raw_texts_are_enough(folder, score, model, tokenizer):
    texts = [{"text": "The hollow bell of foxes."}, {"text": "A travelling piano tuner."}]
    items = score(folder(forget=texts, holdout=[{"text": "Rain fell on Bonn."}]), margin=SPEC)
    found = tofu_metrics(items, bootstrap=20)
    expected = [math.exp(-loss_alone(model, encode_text(tokenizer, row["text"], 200))) for row in texts]
    assert found["forget.prob"]["value"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert found["mia.loss_auc"]["value"] is not None
    assert found["violation_rate"]["value"] is not None
    assert found["forget.rouge_l_recall"]["value"] is None
    # No end token: every token after the first counts.
    assert items["n_tokens"].tolist()[0] == len("The hollow bell of foxes.") - 1
    assert (items["exact_memorization"] * items["n_tokens"]).round(6).mod(1).eq(0).all()


def test_cut_answers_are_marked_and_keep_their_last_token(folder, score):
    items = score(folder(eval_forget=FORGET), max_length=40)
    assert items["truncated"].tolist() == [1, 1, 1]
    assert (items["exact_memorization"] * items["n_tokens"]).round(6).mod(1).eq(0).all()


def test_progress_reaches_the_total_of_both_stages(folder, score):
    seen = []
    score(folder(**FILES), progress=lambda *state: seen.append(state))
    for stage, total in (("score", 21), ("generate", 7)):
        counts = [done for name, done, of in seen if name == stage and of == total]
        assert counts == sorted(counts)
        assert counts[-1] == total


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"holdout": HOLDOUT}, r"eval_forget\.jsonl: no such file"),
        ({"eval_forget": []}, r"eval_forget\.jsonl: needs at least one row"),
        ({"eval_forget": [{"question": "Who?"}]}, r"eval_forget\.jsonl row 1: no text in field 'answer'"),
        ({"eval_forget": [*FORGET, {"anwser": "Ann"}]}, r"eval_forget\.jsonl row 4: no text in field 'text'"),
        ({"eval_forget": [FORGET[0] | {"answer": 7}]}, r"row 1: no text in field 'answer'"),
        ({"eval_forget": [FORGET[0] | {"perturbed_answer": "Oslo"}]}, r"row 1: perturbed_answer must be a list"),
        ({"eval_forget": FORGET, "mcq_forget": [MCQ[0] | {"answer": 3}]}, r"mcq_forget\.jsonl row 1: answer must be"),
        ({"eval_forget": FORGET, "mcq_forget": [MCQ[0] | {"options": ["x"]}]}, r"row 1: needs a question and at least"),
    ],
)
def test_a_malformed_file_is_named(folder, score, files, message):
    with pytest.raises(LetheError, match=message):
        score(folder(**files))


def test_a_model_that_memorised_its_forget_set_is_recognised(folder, tiny_qwen, tokenizer, template):
    model = tiny_qwen(seed=1).train()
    pairs = [encode_pair(tokenizer, template, row["question"], row["answer"], 200) for row in FORGET]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        for pair in pairs:
            ids = torch.tensor([pair.ids])
            labels = ids.clone()
            labels[:, : pair.start] = -100
            model(ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    items = score_benchmark(
        model, tokenizer, template, folder(**FILES), margin=SPEC, max_tokens=500, max_new_tokens=40, max_length=200
    )
    found = {name: metric["value"] for name, metric in tofu_metrics(items, bootstrap=0).items()}
    assert found["forget.prob"] > 0.9
    assert found["forget.extraction_strength"] == found["forget.exact_memorization"] == 1
    assert found["forget.rouge_l_recall"] == found["forget.value_recall"] == 1
    assert found["mia.loss_auc"] == found["mia.min_k_auc"] == 0
    assert found["violation_rate"] > 0.9
    assert of_split(items, "forget")["generation"].tolist() == [row["answer"] for row in FORGET]
