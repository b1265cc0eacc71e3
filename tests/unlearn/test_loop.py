import copy
import math

import pytest
import torch

from lethe.data.rows import default_template, encode_rows
from lethe.data.text import collate, pad_token_id
from lethe.errors import LetheError
from lethe.files import write_jsonl
from lethe.models.load import SupervisedLM, load_model, load_tokenizer, logits_at, weights_sha256
from lethe.optim.build import learning_rate
from lethe.recipe import Recipe, load_recipes, resolve, set_values
from lethe.schema import validate
from lethe.unlearn import losses
from lethe.unlearn.loop import State, accumulate_gradients, train, violation_rate
from lethe.unlearn.objective import select_trained
from lethe.unlearn.reference import Reference
from lethe.unlearn.refusals import Refusals
from lethe.unlearn.stopping import Budget, ViolationStop
from lethe.unlearn.streams import Stream

METHODS = ["ga", "graddiff", "npo", "npo-klr", "simnpo", "rmu", "idk-dpo", "masc-full"]


def recipe(name, *settings) -> Recipe:
    """A recipe for two forget rows and four retain rows, in one batch."""
    raw = resolve(load_recipes(), name).model_dump(mode="json")
    small = ["batch.rows=2", "batch.accumulate=1", "batch.effective=2", "optimizer.lr=0.01", "optimizer.warmup=0"]
    return validate(Recipe, set_values(raw, [*small, *settings]), name)


class Problem:
    def __init__(self, folder, rows, recipe, seed=0):
        self.recipe, self.model = recipe, load_model(folder)
        tokenizer = load_tokenizer(folder)
        self.pad = pad_token_id(tokenizer)
        self.streams = {}
        for name in ("forget", "retain"):
            encoded = encode_rows(tokenizer, default_template(tokenizer), rows[name], 64)
            if name == "forget" or recipe.retain:
                self.streams[name] = Stream(encoded, recipe.batch.effective, seed=seed, name=name)
        self.refusals = None
        if recipe.needs_refusals:
            write_jsonl(
                rows["forget"].with_name("idk.jsonl"), [{"text": t} for t in ("No idea.", "I cannot say that.")]
            )
            idk, template = rows["forget"].with_name("idk.jsonl"), default_template(tokenizer)
            self.refusals = Refusals(rows["forget"], idk, tokenizer, template, 64, seed)
        self.refer()

    def refer(self):
        """Take the model as it is now for the start."""
        forget = self.streams["forget"]
        drawn = self.refusals.drawn(forget, 20) if self.refusals else None
        self.reference = Reference(self.model, None, self.recipe, forget.examples, self.pad, 0, drawn)

    def train(self, steps=3, **options):
        stop = options.pop("stop", Budget(steps))
        return train(
            self.model, self.recipe, self.streams, stop, seed=0, pad_id=self.pad, reference=self.reference,
            refusals=self.refusals, **options,
        )  # fmt: skip

    def gradients(self):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        self.model.zero_grad()
        rows = {name: stream[0] for name, stream in self.streams.items()}
        state = State()
        value = accumulate_gradients(
            accelerator, SupervisedLM(self.model), self.recipe, self.streams, rows, self.reference, 0, self.pad, state,
            self.refusals,
        )  # fmt: skip
        return value, {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}


def memorise(problem):
    """Fine-tune on the forget rows: what a method then has to undo."""
    tuned = recipe(
        "target", "optimizer.lr=0.003", "optimizer.schedule=constant", "precision.gradient_checkpointing=false"
    )
    train(problem.model, tuned, {"retain": problem.streams["forget"]}, Budget(60), seed=0, pad_id=problem.pad)
    forget = problem.streams["forget"].examples
    assert violation_rate(problem.model, forget, recipe("masc").margin, problem.pad) == 1.0
    problem.refer()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("reduction", ["per_token", "per_sequence"])
def test_accumulated_micro_batches_equal_the_large_batch(tiny_folder, rows, name, reduction):
    change = [f"retain.reduction={reduction}"] if name not in ("ga", "rmu") else []
    change += [f"forget.reduction={reduction}"] if name in ("ga", "graddiff", "masc-full") else []
    large = ["batch.rows=4", "batch.effective=4", *change]
    small = ["batch.rows=1", "batch.accumulate=4", "batch.effective=4", *change]
    (losses_a, a), (losses_b, b) = (Problem(tiny_folder, rows, recipe(name, *s)).gradients() for s in (large, small))
    assert losses_a == pytest.approx(losses_b, rel=1e-5)
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=1e-6)


def test_the_gradient_of_graddiff_is_that_of_its_formula(tiny_folder, rows):
    """-CE(forget) + CE(retain), both means over pooled tokens, by a plain forward pass over full logits."""
    problem = Problem(tiny_folder, rows, recipe("graddiff", "batch.rows=4", "batch.effective=4"))
    value, gradient = problem.gradients()
    problem.model.zero_grad()
    total = 0.0
    for name, sign in (("forget", -1.0), ("retain", 1.0)):
        batch = collate(problem.streams[name].examples, problem.pad)
        logits = problem.model(input_ids=batch.ids, attention_mask=batch.attention_mask).logits[batch.rows, batch.cols]
        total = total + sign * torch.nn.functional.cross_entropy(logits, batch.labels)
    total.backward()
    assert sum(value.values()) == pytest.approx(total.item(), abs=1e-5)  # a small difference of large terms
    for key, p in problem.model.named_parameters():
        torch.testing.assert_close(gradient[key], p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_its_own_loss_and_moves_the_forget_answers_away(tiny_folder, rows, name):
    change = [] if name == "ga" else ["retain.weight=0.01"]  # a random model has nothing to retain yet
    problem = Problem(tiny_folder, rows, recipe(name, "optimizer.schedule=constant", "optimizer.lr=0.003", *change))
    memorise(problem)
    batch = collate(problem.streams["forget"].examples, problem.pad)
    before = losses.token_nll(logits_at(problem.model, batch), batch.labels).mean()
    state, reason = problem.train(steps=5)
    after = losses.token_nll(logits_at(problem.model.eval(), batch), batch.labels).mean()
    assert reason == "budget" and state.step == 5 and len(state.trace) == 5
    assert after > before


@pytest.mark.parametrize("name", ["npo", "idk-dpo"])
def test_losses_against_the_start_begin_at_two_over_beta_log_two(tiny_folder, rows, name):
    value, _ = Problem(tiny_folder, rows, recipe(name, "retain.weight=0")).gradients()
    assert value["forget"] == pytest.approx(2 / 0.1 * math.log(2), rel=1e-5)


def moved(problem):
    """The start, after the problem's model has been moved away from it."""
    start = copy.deepcopy(problem.model)
    with torch.no_grad():
        for p in problem.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return start


def test_the_gradient_of_rmu_is_that_of_its_formula_and_ends_at_its_layer(tiny_folder, rows):
    """|h - c u|^2 / H at the answers' own tokens of forget rows and |h - h_start|^2 / H at those of retain rows, means
    over each row's tokens and then over rows, from all hidden states of a plain forward pass."""
    settings = ["batch.rows=4", "batch.effective=4", "forget.depth=0.5", "forget.coefficient=5", "retain.weight=3"]
    problem = Problem(tiny_folder, rows, recipe("rmu", *settings))
    start = moved(problem)
    value, gradient = problem.gradients()
    problem.model.zero_grad()

    def state(model, example):
        ids = torch.tensor([example.ids])
        return model(input_ids=ids, output_hidden_states=True).hidden_states[1][0, example.start :]

    expected = {}
    for name, weight in (("forget", 1.0), ("retain", 3.0)):
        means = []
        for example in problem.streams[name].examples:
            goal = problem.reference.steering if name == "forget" else state(start, example).detach()
            means.append((state(problem.model, example) - goal).pow(2).mean(-1).mean())
        expected[name] = weight * torch.stack(means).mean()
    sum(expected.values()).backward()
    assert value == pytest.approx({name: v.item() for name, v in expected.items()}, rel=1e-4)
    assert expected["retain"] > 1e-4
    for key, p in problem.model.named_parameters():
        assert (key in gradient) == (p.grad is not None) == (".layers.1." not in key and "model.norm" not in key)
        if p.grad is not None:
            torch.testing.assert_close(gradient[key], p.grad, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_idk_dpo_is_that_of_its_formula(tiny_folder, rows):
    """From log-probabilities of whole answers and refusals, end tokens included, one plain forward pass each."""
    problem = Problem(tiny_folder, rows, recipe("idk-dpo", "retain.weight=0", "forget.beta=0.5"))
    start = moved(problem)
    value, gradient = problem.gradients()
    problem.model.zero_grad()

    def log_ratio(example):
        ids, at = torch.tensor([example.ids]), slice(example.start - 1, -1)
        now, then = (m(input_ids=ids).logits[0, at].log_softmax(-1) for m in (problem.model, start))
        labels = ids[0, example.start :, None]
        return (now.gather(-1, labels) - then.detach().gather(-1, labels)).sum()

    drawn = problem.streams["forget"][0]
    refusals = problem.refusals.examples(problem.refusals.keys(drawn, 0))
    answers = [problem.streams["forget"].examples[r] for r in drawn]
    assert {e.ids[-1] for e in [*answers, *refusals]} == {load_tokenizer(tiny_folder).eos_token_id}
    margins = [log_ratio(r) - log_ratio(a) for r, a in zip(refusals, answers, strict=True)]
    expected = -2 / 0.5 * torch.nn.functional.logsigmoid(0.5 * torch.stack(margins)).mean()
    expected.backward()
    assert value["forget"] == pytest.approx(expected.item(), rel=1e-4)
    for key, p in problem.model.named_parameters():
        torch.testing.assert_close(gradient[key], p.grad, rtol=1e-3, atol=1e-5)


def test_rmu_runs_neither_the_head_nor_a_second_pass(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("rmu"))
    ran = []
    decoder = problem.model.get_decoder()
    for name, module in (("pass", decoder), ("later", decoder.layers[1]), ("head", problem.model.lm_head)):
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
    problem.train(steps=3)
    assert ran == ["pass"] * 3  # a step is one micro-batch of forget and retain rows together


def test_refusals_of_each_step_share_its_pass_and_count_as_trained_but_not_as_forget_tokens(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("idk-dpo"))
    forget, retain = problem.streams["forget"], problem.streams["retain"]
    answers = [forget.examples[r] for step in range(6) for r in forget[step]]
    others = [retain.examples[r] for step in range(6) for r in retain[step]]
    refusals = [e for step in range(6) for e in problem.refusals.examples(problem.refusals.keys(forget[step], step))]
    always_the_first = 6 * sum(len(e.ids) for e in refusals[:2])
    assert sum(len(e.ids) for e in refusals) != always_the_first  # so that the sum below tells the two apart
    logits_at(problem.model, collate(answers, problem.pad))  # the one pass that asks what head the model has
    passes = []
    problem.model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    state, _ = problem.train(steps=6)
    assert len(passes) == 6
    assert state.costs.trained_tokens == sum(len(e.ids) for e in [*answers, *others, *refusals])
    assert state.tokens["forget"] == sum(len(e.ids) - e.start for e in answers)


@pytest.mark.parametrize("name", ["rmu", "rmu-down"])
def test_a_run_of_rmu_changes_only_what_it_trains(tiny_folder, rows, name):
    problem = Problem(tiny_folder, rows, recipe(name, "optimizer.weight_decay=0.1"))
    before = copy.deepcopy(problem.model.state_dict())
    if problem.recipe.trained:
        select_trained(problem.model, problem.recipe)
    problem.train(steps=2)
    changed = {key for key, value in problem.model.state_dict().items() if not torch.equal(value, before[key])}
    first = {key for key in before if ".layers.0." in key}
    if name == "rmu-down":
        assert changed == {"model.layers.0.mlp.down_proj.weight"}
    else:
        assert first <= changed and not {key for key in changed if ".layers.1." in key or "model.norm" in key}


def test_kl_to_the_start_is_zero_at_the_start(tiny_folder, rows):
    value, _ = Problem(tiny_folder, rows, recipe("npo-klr")).gradients()
    assert value["retain"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", ["npo-klr", "rmu", "idk-dpo"])
def test_a_resumed_run_ends_with_the_same_weights_and_trace(tiny_folder, rows, tmp_path, name):
    whole = Problem(tiny_folder, rows, recipe(name))
    state, _ = whole.train(steps=6)

    class Killed(Exception):
        pass

    def kill(step, loss):
        if step == 4:
            raise Killed

    options = {"checkpoint": tmp_path / "c.pt", "checkpoint_seconds": 0.0}
    first = Problem(tiny_folder, rows, recipe(name))
    with pytest.raises(Killed):
        first.train(steps=6, report=kill, **options)
    second = Problem(tiny_folder, rows, recipe(name))
    resumed, _ = second.train(steps=6, **options)
    assert weights_sha256(second.model) == weights_sha256(whole.model)
    assert resumed.trace == state.trace
    assert resumed.costs.trained_tokens == state.costs.trained_tokens


def test_the_same_run_twice_gives_the_same_weights(tiny_folder, rows):
    hashes = set()
    for _ in range(2):
        problem = Problem(tiny_folder, rows, recipe("masc-full"))
        problem.train(steps=3)
        hashes.add(weights_sha256(problem.model))
    assert len(hashes) == 1


def test_a_loss_that_is_not_finite_stops_the_run_with_its_step(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("ga"))
    with torch.no_grad():
        next(problem.model.parameters()).fill_(torch.nan)
    with pytest.raises(LetheError, match=r"not finite at step 1"):
        problem.train()


def test_the_stop_rule_ends_at_the_first_probe_that_meets_alpha(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("masc-full"))
    memorise(problem)
    stop = ViolationStop(alpha=0.0, every=2, trigger=1, confirm=2, budget=200, examples=2)
    state, reason = problem.train(stop=stop)
    assert reason == "satisfied" and state.step % 2 == 0 and 0 < state.step < 200
    examples = problem.streams["forget"].examples
    assert violation_rate(problem.model, examples, problem.recipe.margin, problem.pad) == 0.0
    assert state.trace[-1]["violation_rate"] == 0.0 and state.trace[-1]["probe_n"] == 2


def test_a_run_that_already_satisfies_takes_no_step(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("masc-full"))
    before = weights_sha256(problem.model)
    state, reason = problem.train(stop=ViolationStop(alpha=1.0, every=2, trigger=1, confirm=2, budget=9, examples=2))
    assert (reason, state.step, weights_sha256(problem.model)) == ("already-satisfied", 0, before)


def test_the_violation_rate_does_not_depend_on_the_batches(tiny_folder, rows, monkeypatch):
    problem = Problem(tiny_folder, rows, recipe("masc-full"))
    examples = problem.streams["retain"].examples
    whole = violation_rate(problem.model, examples, problem.recipe.margin, problem.pad)
    monkeypatch.setattr("lethe.unlearn.loop.NO_GRAD_TOKENS", 1)
    assert violation_rate(problem.model, examples, problem.recipe.margin, problem.pad) == pytest.approx(whole)


def test_an_effective_batch_other_than_the_recipes_is_refused(tiny_folder, rows):
    with pytest.raises(LetheError, match=r"4 for 4 x 4 x 1 = 16|32 for 4 x 4 x 1 = 16"):
        Problem(tiny_folder, rows, recipe("ga", "batch.rows=4", "batch.accumulate=4", "batch.effective=32")).train()
    recipe("ga", "batch.rows=4", "batch.accumulate=4", "batch.effective=32").batch.check(processes=2)


def test_the_learning_rate_warms_up_and_decays_linearly():
    options = recipe("ga", "optimizer.lr=1.0", "optimizer.warmup=1.0").optimizer
    rates = [learning_rate(options, step, per_epoch=4, total=12) for step in range(12)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0 and rates[-1] == pytest.approx(1 / 8)
    constant = recipe("masc").optimizer
    assert {learning_rate(constant, step, 4, 12) for step in range(12)} == {constant.lr}


def test_master_weights_accumulate_what_bfloat16_would_lose():
    narrow = torch.tensor(0.05, dtype=torch.bfloat16)
    master = narrow.float()
    for _ in range(10):
        narrow, master = narrow + 1e-5, master + 1e-5
    assert float(narrow) == 0.050048828125
    assert float(master) == pytest.approx(0.05014883, abs=1e-7)
    assert float(master.bfloat16()) == pytest.approx(0.05, abs=5e-4)


def test_bfloat16_autocast_keeps_float32_weights(tiny_folder, rows):
    problem = Problem(tiny_folder, rows, recipe("graddiff", "precision.autocast=bfloat16"))
    start = copy.deepcopy(problem.model.state_dict())
    problem.train(steps=2)
    assert {p.dtype for p in problem.model.parameters()} == {torch.float32}
    assert any(not torch.equal(v, start[k]) for k, v in problem.model.state_dict().items())


def test_gradient_checkpointing_gives_the_same_gradients(tiny_folder, rows):
    plain = Problem(tiny_folder, rows, recipe("graddiff"))
    _, a = plain.gradients()
    other = Problem(tiny_folder, rows, recipe("graddiff"))
    other.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    other.model.train()
    _, b = other.gradients()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-7)
