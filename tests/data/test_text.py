from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lethe.data.text import (
    TAILS,
    TEMPLATES,
    Encoded,
    batches_by_length,
    by_paragraphs,
    collate,
    collate_prompts,
    encode_chunks,
    encode_pair,
    encode_prompt,
    encode_text,
    end_token_id,
    get_template,
    pad_token_id,
)
from lethe.errors import LetheError
from lethe.models.load import load_tokenizer

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}"
    "{% if m['role'] != 'user' %}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def wrap(backend: Tokenizer, chat_template: str | None = CHAT, **specials) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=chat_template,
        **{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **specials},
    )


def bpe(merges: list[tuple[str, str]], byte_level: bool = False, bos: bool = False, eos: bool = False):
    """A BPE with the given merges on top of single characters. No word splitting, so merges may cross any border."""
    letters = pre_tokenizers.ByteLevel.alphabet() if byte_level else {*map(chr, range(32, 127)), "\n", "é", "宮"}
    vocab = {token: i for i, token in enumerate([*SPECIAL, *sorted(letters)])}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.add_special_tokens(SPECIAL)
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
        backend.decoder = decoders.ByteLevel()
    else:
        backend.decoder = decoders.Fuse()
    if bos or eos:
        single = ("<s> " if bos else "") + "$A" + (" </s>" if eos else "")
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    return wrap(backend)


def unigram():
    pieces = ["▁Question", "▁Answer", ":", "▁was", "▁born", "▁in", "▁Paris", "▁", "?", "/", "[", "]", "é", "\n"]
    letters = [chr(i) for i in range(33, 127) if chr(i) not in pieces]
    vocab = [("<unk>", 0.0), *[(t, 0.0) for t in SPECIAL], *[(p, -1.0) for p in pieces], *[(c, -5.0) for c in letters]]
    backend = Tokenizer(models.Unigram(vocab, unk_id=0))
    backend.add_special_tokens(SPECIAL)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return wrap(backend)


TOKENIZERS = {
    "characters": bpe([]),
    "characters with BOS": bpe([], bos=True),
    "characters with BOS and EOS": bpe([], bos=True, eos=True),
    "byte-level": bpe([("Ġ", "b"), ("Ġb", "o"), ("Ċ", "A"), (".", "Ċ")], byte_level=True),
    "unigram": unigram(),
}


def tokens(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=lambda t: t.name)
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_at_a_clean_border_the_prompt_is_what_generation_starts_from(tokenizer, template):
    pair = encode_pair(tokenizer, template, "who was born ?", "born in Paris", max_length=500)
    assert pair.ids[: pair.start] == encode_prompt(tokenizer, template, "who was born ?")
    assert tokenizer.decode(pair.ids[pair.start : -1]).replace("▁", " ").strip() == "born in Paris"
    assert pair.ids[-1] == end_token_id(tokenizer, template)
    assert not pair.truncated


@given(question=st.text("ab ]:", max_size=5), answer=st.text("ab [:é宮\n", max_size=8))
@pytest.mark.parametrize("name", ["plain", "llama2"])
@pytest.mark.parametrize("tokenizer", [TOKENIZERS["characters"], TOKENIZERS["byte-level"]], ids=["chars", "bytes"])
def test_answer_tokens_spell_the_answer_and_prompt_tokens_the_prompt(tokenizer, name, question, answer):
    template = get_template(name)
    pair = encode_pair(tokenizer, template, question, answer, max_length=500)
    prompt, supervised = pair.ids[: pair.start], pair.ids[pair.start : -1]
    assert tokenizer.decode(prompt, clean_up_tokenization_spaces=False) == template.prompt.format(question=question)
    assert tokenizer.decode(supervised, clean_up_tokenization_spaces=False) == template.answer.format(answer=answer)


def test_a_token_that_carries_the_first_letter_of_the_answer_is_supervised():
    tokenizer = bpe([("]", "B")])  # "[/INST]B" ends in the token "]B"
    pair = encode_pair(tokenizer, get_template("llama2"), "q", "Bob", max_length=99)
    assert tokens(tokenizer, pair.ids[pair.start :]) == ["]B", "o", "b", "</s>"]
    assert tokens(tokenizer, encode_prompt(tokenizer, get_template("llama2"), "q"))[-1] == "]"


def test_a_token_that_draws_the_answers_blank_into_the_prompt_loses_no_letter():
    tokenizer = bpe([(":", " ")])  # "Answer: Bob" has the token ": "
    pair = encode_pair(tokenizer, get_template("plain"), "q", "Bob", max_length=99)
    assert tokens(tokenizer, pair.ids[pair.start :]) == ["B", "o", "b", "</s>"]


def test_a_prompt_that_ends_in_a_blank_does_not_hide_the_first_word():
    tokenizer = bpe([("Ġ", "B"), ("ĠB", "o"), ("ĠBo", "b")], byte_level=True)
    assert len(tokenizer("Answer: ").input_ids) == len(tokenizer("Answer: Bob").input_ids)  # len(prompt) hides "Bob"
    tokenizer.chat_template = "{{ messages[0].content }} {% for m in messages[1:] %}{{ m.content }}</s>{% endfor %}"
    pair = encode_pair(tokenizer, get_template("chat"), "q", "Bob", max_length=99)
    assert tokens(tokenizer, pair.ids) == ["q", "ĠBob", "</s>"] and pair.start == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_bos_is_added_once_by_tokenizers_that_add_it(name):
    tokenizer = TOKENIZERS["characters with BOS and EOS"]
    if name == "chat":  # a chat template writes its own
        tokenizer = bpe([], bos=True)
        tokenizer.chat_template = "<s>" + CHAT
    pair = encode_pair(tokenizer, get_template(name), "q", "a", max_length=99)
    assert pair.ids.count(tokenizer.bos_token_id) == 1 and pair.ids[0] == tokenizer.bos_token_id
    assert encode_prompt(tokenizer, get_template(name), "q")[0] == tokenizer.bos_token_id


def test_eos_ends_an_answer_once_also_where_the_tokenizer_appends_it():
    tokenizer = TOKENIZERS["characters with BOS and EOS"]
    pair = encode_pair(tokenizer, get_template("plain"), "q", "a", max_length=99)
    assert tokens(tokenizer, pair.ids[-3:]) == [" ", "a", "</s>"]
    assert tokenizer.eos_token_id not in encode_prompt(tokenizer, get_template("plain"), "q")


def test_a_chat_answer_ends_with_the_end_of_turn_and_not_with_what_follows_it():
    tokenizer = bpe([])
    pair = encode_pair(tokenizer, get_template("chat"), "q", "a", max_length=99)
    assert tokens(tokenizer, pair.ids) == ["<|user|>", "q", "<|assistant|>", "a", "<|end|>"]  # the template adds "\n"
    assert end_token_id(tokenizer, get_template("chat")) == tokenizer.convert_tokens_to_ids("<|end|>")
    assert end_token_id(tokenizer, get_template("plain")) == tokenizer.eos_token_id


def test_blanks_that_a_chat_template_sets_around_the_answer_are_supervised():
    tokenizer = bpe([])  # Llama-2's own chat template: "[INST] q [/INST] a </s>"
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]"
        "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
    )
    pair = encode_pair(tokenizer, get_template("chat"), "q", "a", max_length=99)
    assert tokens(tokenizer, pair.ids[pair.start :]) == [" ", "a", " ", "</s>"]


def test_system_prompt_and_date_reach_the_chat_template():
    tokenizer = bpe([])
    tokenizer.chat_template = "{{ date_string | default('') }}" + CHAT
    template = get_template("chat", system="S", date_string="10 Apr")
    pair = encode_pair(tokenizer, template, "q", "a", max_length=99)
    assert tokenizer.decode(pair.ids[: pair.start], skip_special_tokens=True) == "10 AprS\nq"
    assert pair.ids[: pair.start] == encode_prompt(tokenizer, template, "q")


def test_truncation_keeps_the_prompt_and_the_beginning_of_the_answer_without_end_token():
    tokenizer = bpe([])
    whole = encode_pair(tokenizer, get_template("llama2"), "q", "abcdef", max_length=99)
    cut = encode_pair(tokenizer, get_template("llama2"), "q", "abcdef", max_length=len(whole.ids) - 3)
    assert cut == Encoded(whole.ids[:-3], whole.start, truncated=True)
    assert tokens(tokenizer, cut.ids[cut.start :]) == list("abcd")
    with pytest.raises(LetheError, match="leaves no room for an answer"):
        encode_pair(tokenizer, get_template("llama2"), "q", "abcdef", max_length=whole.start)


def test_raw_text_is_supervised_from_its_second_token():
    tokenizer = bpe([])
    assert encode_text(tokenizer, "abcd", 99) == Encoded(tokenizer("abcd").input_ids, 1)
    assert encode_text(tokenizer, "abcd", 3) == Encoded(tokenizer("abc").input_ids, 1, truncated=True)
    with pytest.raises(LetheError, match="two tokens"):
        encode_text(tokenizer, "a", 99)


CHARACTERS = bpe([])
BOS = CHARACTERS.bos_token_id


def spelled(chunks):
    """Each chunk as its context and what it supervises, ^ for BOS: letters are tokens here."""
    letters = ["".join(tokens(CHARACTERS, chunk.ids)).replace("<s>", "^") for chunk in chunks]
    borders = [len("".join(tokens(CHARACTERS, chunk.ids[: chunk.start])).replace("<s>", "^")) for chunk in chunks]
    return [f"{text[:border]}|{text[border:]}" for text, border in zip(letters, borders, strict=True)]


@pytest.mark.parametrize(
    "text, window, overlap, bos, tail, expected",
    [
        ("abcdefgh", 4, 0, False, "keep", ["a|bcd", "e|fgh"]),  # exact multiples have no tail
        ("abcdefgh", 4, 0, False, "drop", ["a|bcd", "e|fgh"]),
        ("abcdefgh", 4, 0, False, "shift", ["a|bcd", "e|fgh"]),
        ("abcdefghij", 4, 0, False, "keep", ["a|bcd", "e|fgh", "i|j"]),
        ("abcdefghi", 4, 0, False, "keep", ["a|bcd", "e|fghi"]),  # i alone would not be supervised
        ("abcdefghi", 4, 0, True, "keep", ["^|abc", "^|def", "^|ghi"]),
        ("abcdefg", 4, 0, True, "keep", ["^|abc", "^|def", "^|g"]),  # with BOS it is
        ("abcdefg", 4, 0, True, "drop", ["^|abc", "^|def"]),
        ("abcdefg", 4, 0, True, "shift", ["^|abc", "^|def", "^ef|g"]),
        ("abcdefghi", 4, 0, False, "drop", ["a|bcd", "e|fgh"]),
        ("abcdefghi", 4, 0, False, "shift", ["a|bcd", "e|fgh", "fgh|i"]),
        ("abcdefg", 4, 1, False, "keep", ["a|bcd", "d|efg"]),
        ("abcdefgh", 4, 1, False, "keep", ["a|bcd", "d|efg", "g|h"]),
        ("abcdefgh", 4, 1, False, "drop", ["a|bcd", "d|efg"]),
        ("abcdefgh", 4, 1, False, "shift", ["a|bcd", "d|efg", "efg|h"]),
        ("abcdef", 4, 1, True, "keep", ["^|abc", "^c|de", "^e|f"]),
        ("abcdef", 4, 2, True, "keep", ["^|abc", "^bc|d", "^cd|e", "^de|f"]),
        ("abc", 9, 2, False, "keep", ["a|bc"]),  # shorter than the window: all there is
        ("abc", 9, 2, True, "drop", ["^|abc"]),
        ("abc", 9, 2, False, "shift", ["a|bc"]),
        ("ab", 2, 0, False, "drop", ["a|b"]),
        ("ab", 2, 0, True, "keep", ["^|a", "^|b"]),
        ("a", 2, 0, True, "keep", ["^|a"]),
    ],
)
def test_chunks_are_worked_by_hand(text, window, overlap, bos, tail, expected):
    assert spelled(encode_chunks(CHARACTERS, text, window, overlap, bos, tail)) == expected


@given(st.data())
def test_chunks_lose_no_token_and_supervise_none_twice(data):
    text = "".join(map(chr, range(33, 33 + data.draw(st.integers(2, 60)))))  # no letter twice: a token says where it is
    window, bos = data.draw(st.integers(2, 12)), data.draw(st.booleans())
    overlap, tail = data.draw(st.integers(0, window - 1 - bos)), data.draw(st.sampled_from(TAILS))
    place = {token: i for i, token in enumerate(CHARACTERS(text).input_ids)}
    chunks = encode_chunks(CHARACTERS, text, window, overlap, bos, tail)
    assert all(chunk.ids[:bos] == [BOS] * bos for chunk in chunks)
    held = [[place[token] for token in chunk.ids[bos:]] for chunk in chunks]
    assert all(places == list(range(places[0], places[-1] + 1)) for places in held)

    supervised = [place[token] for chunk in chunks for token in chunk.ids[chunk.start :]]
    end = held[-1][-1] + 1
    new_firsts = {0} | {after[0] for before, after in pairwise(held) if after[0] > before[-1]}
    alone = set() if bos else new_firsts  # nothing stands before them in their chunk
    assert supervised == [i for i in range(end) if i not in alone]
    assert end == len(text) or (tail == "drop" and len(text) - end < window - bos - overlap)
    assert [chunk.truncated for chunk in chunks] == [False] * (len(chunks) - 1) + [end < len(text)]

    repeated = [before[-1] + 1 - after[0] for before, after in pairwise(held)]
    assert all(n == overlap for n in repeated[:-1])
    assert all(n == overlap or (tail == "shift" and n > overlap) for n in repeated[-1:])
    full = [len(chunk.ids) == window for chunk in chunks]
    assert all(full[:-1]) and (full[-1] or len(chunks) == 1 or tail == "keep")
    joined = tail == "keep" and not bos and not overlap
    assert all(1 <= chunk.start < len(chunk.ids) <= window + joined for chunk in chunks)


def test_special_tokens_of_the_tokenizer_do_not_enter_chunks():
    tokenizer = TOKENIZERS["characters with BOS and EOS"]
    assert [chunk.ids for chunk in encode_chunks(tokenizer, "abcd", 4, 0, False, "keep")] == [
        CHARACTERS("abcd").input_ids
    ]
    assert encode_chunks(tokenizer, "ab", 4, 0, True, "keep") == [Encoded([BOS, *CHARACTERS("ab").input_ids], 1)]


@pytest.mark.parametrize(
    "text, window, overlap, bos, tail, message",
    [
        ("abcd", 4, 4, False, "keep", r"overlap lie in \[0, window\), got window 4, overlap 4"),
        ("abcd", 4, 3, True, "keep", r"overlap lie in \[0, window - 1\), got window 4, overlap 3"),
        ("abcd", 4, -1, False, "keep", r"got window 4, overlap -1"),
        ("abcd", 1, 0, False, "keep", r"window must be at least 2 .* got window 1, overlap 0"),
        ("abcd", 4, 0, False, "rotate", r"tail must be one of keep, drop, shift, got 'rotate'"),
        ("a", 4, 0, False, "keep", r"a text needs two tokens"),
        ("", 4, 0, True, "keep", r"a text needs two tokens"),
    ],
)
def test_chunks_that_cannot_be_cut_are_one_line(text, window, overlap, bos, tail, message):
    with pytest.raises(LetheError, match=message):
        encode_chunks(CHARACTERS, text, window, overlap, bos, tail)


def test_the_largest_overlaps_that_are_allowed_advance_by_one_token():
    assert len(encode_chunks(CHARACTERS, "abcdef", 4, 3, False, "keep")) == 3
    assert len(encode_chunks(CHARACTERS, "abcdef", 4, 2, True, "keep")) == 4


def test_chunks_with_bos_need_a_tokenizer_that_has_one():
    tokenizer = wrap(bpe([]).backend_tokenizer, bos_token=None)
    with pytest.raises(LetheError, match="need a beginning-of-text token, got none"):
        encode_chunks(tokenizer, "abcd", 4, 0, True, "keep")
    assert len(encode_chunks(tokenizer, "abcd", 4, 0, False, "keep")) == 1


def test_the_mask_comes_from_lengths_although_the_pad_token_occurs_inside_the_text():
    batch = collate([Encoded([1, 9, 5, 9], 2), Encoded([1, 9], 1)], pad_id=9)
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.ids.tolist() == [[1, 9, 5, 9], [1, 9, 9, 9]]
    assert batch.lengths.tolist() == [4, 2]
    assert list(zip(batch.rows.tolist(), batch.cols.tolist(), batch.labels.tolist(), strict=True)) == [
        (0, 1, 5),
        (0, 2, 9),
        (1, 0, 9),
    ]
    assert batch.counts.tolist() == [2, 1]


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(1, 8)), min_size=1, max_size=6))
def test_supervised_positions_are_exactly_those_from_start_to_the_length(shapes):
    items = [Encoded(list(range(10, 10 + n)), min(start, n - 1)) for n, start in shapes]
    batch = collate(items, pad_id=0)
    assert batch.labels.tolist() == [token for item in items for token in item.ids[item.start :]]
    assert torch.equal(batch.labels, batch.ids[batch.rows, batch.cols + 1])
    assert batch.counts.tolist() == [len(item.ids) - item.start for item in items]
    assert torch.equal(batch.attention_mask.sum(1), batch.lengths)


def test_prompts_are_padded_on_the_left_and_positions_count_from_the_first_token():
    batch = collate_prompts([[5, 6, 7], [8]], pad_id=8)
    assert batch.ids.tolist() == [[5, 6, 7], [8, 8, 8]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2], [0, 0, 0]]


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
def test_batches_cover_every_index_once_within_the_budget(lengths, budget):
    batches = batches_by_length(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget
    assert batches_by_length(lengths, budget) == batches


def test_batches_group_equal_lengths():
    assert batches_by_length([1, 5, 1, 5, 2], max_tokens=10) == [[1, 3], [4, 0, 2]]


def test_generated_text_is_cut_where_the_model_goes_on_with_another_question():
    assert get_template("plain").cut(" X.\n\nQuestion: Y") == "X."
    assert get_template("plain").cut(" X.\nQuestion: Y\nAnswer: Z") == "X."
    assert get_template("chat").cut("X.\n\nQuestion: Y") == "X.\n\nQuestion: Y"


def test_padding_falls_back_to_the_end_token():
    assert pad_token_id(bpe([])) == 0
    assert pad_token_id(SimpleNamespace(pad_token_id=None, eos_token_id=2)) == 2


def test_what_a_tokenizer_lacks_is_said_in_one_line():
    slow = SimpleNamespace(is_fast=False, name_or_path="slow-one", chat_template=None, eos_token_id=None)
    with pytest.raises(LetheError, match="tokenizer slow-one: a fast tokenizer is needed"):
        encode_prompt(slow, get_template("plain"), "q")
    with pytest.raises(LetheError, match="needs a tokenizer with a chat template"):
        encode_prompt(wrap(bpe([]).backend_tokenizer, chat_template=None), get_template("chat"), "q")
    with pytest.raises(LetheError, match="an end-of-text token is needed"):
        end_token_id(slow, get_template("plain"))
    endless = wrap(bpe([]).backend_tokenizer, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(LetheError, match="must end with a special token"):
        encode_pair(endless, get_template("chat"), "q", "a", 99)
    strict = wrap(bpe([]).backend_tokenizer, chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(LetheError, match="no system role"):
        encode_prompt(strict, get_template("chat", system="S"), "q")


def test_an_unknown_template_or_a_stray_option_is_refused():
    with pytest.raises(LetheError, match="one of chat, llama2, plain, got 'phi'"):
        get_template("phi")
    with pytest.raises(LetheError, match="belong to the template 'chat'"):
        get_template("plain", system="S")


def test_paragraphs_stay_together_and_nothing_is_lost(tiny_folder):
    tokenizer = load_tokenizer(tiny_folder)
    text = "One fox.\n\nTwo crows met.\n\n\nA very long day came to the old fox and the crow.\n\nYes\n\n"
    pieces = by_paragraphs(tokenizer, text, 12)
    assert "".join(pieces) == text and len(pieces) > 1
    assert all(piece.endswith("\n\n") for piece in pieces)
    lengths = [len(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces]
    assert all(length <= 14 or piece.count("\n\n") == 1 for length, piece in zip(lengths, pieces, strict=True))
    assert by_paragraphs(tokenizer, text, 10_000) == [text]
    assert by_paragraphs(tokenizer, "No empty line\nhere.", 2) == ["No empty line\nhere."]
