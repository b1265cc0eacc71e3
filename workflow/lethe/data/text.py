"""From a question and an answer to token ids: templates, supervised positions, padding.

Label masks come from the character offsets of ONE tokenisation of the whole text, never from the length of a prompt
tokenised by itself, so no answer token is lost or gained where a tokenizer merges across the border.
Attention masks come from lengths, never from `ids != pad`: a pad token may also occur inside a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jinja2 import TemplateError

from lethe.errors import LetheError


@dataclass(frozen=True)
class Template:
    """How a question and an answer become one text.

    prompt: format string with {question}; None means the tokenizer's own chat template. answer: format string with
    {answer}. stops: strings at which a generated answer is cut. system, date_string: chat templates only.
    """

    name: str
    prompt: str | None
    answer: str = "{answer}"
    stops: tuple[str, ...] = ()
    system: str | None = None
    date_string: str | None = None

    def cut(self, text: str) -> str:
        """The generated text up to the first stop string, without surrounding blanks."""
        ends = [text.find(stop) for stop in self.stops]
        return text[: min((e for e in ends if e >= 0), default=len(text))].strip()


TEMPLATES = {
    "chat": Template("chat", prompt=None),
    # TOFU's Llama-2 format: no blank before the answer.
    "llama2": Template("llama2", prompt="[INST] {question} [/INST]"),
    # The blank belongs to the answer: a prompt that ends in a blank would lose it to the answer's first token.
    "plain": Template(
        "plain", prompt="Question: {question}\nAnswer:", answer=" {answer}", stops=("\n\nQuestion", "\nQuestion:")
    ),
}


TAILS = ("keep", "drop", "shift")


@dataclass(frozen=True)
class Encoded:
    """Token ids of one text; ids[start:] are supervised, and start >= 1. truncated: the end was cut off."""

    ids: list[int]
    start: int
    truncated: bool = False


@dataclass(frozen=True)
class Batch:
    """Right-padded texts and their n supervised positions in row-major order.

    ids, attention_mask (B, T) long; lengths (B,) long. rows, cols, labels (n,) long: the logits at [rows, cols] predict
    labels = ids[rows, cols + 1].
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    attention_mask: torch.Tensor
    rows: torch.Tensor
    cols: torch.Tensor
    labels: torch.Tensor

    @property
    def counts(self) -> torch.Tensor:
        """(B,) supervised tokens a row."""
        return torch.bincount(self.rows, minlength=len(self.ids))

    def to(self, device: torch.device | str) -> Batch:
        return Batch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class PromptBatch:
    """Left-padded prompts for generation: ids, attention_mask, position_ids (B, T) long; positions count from the
    first real token."""

    ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor

    def to(self, device: torch.device | str) -> PromptBatch:
        return PromptBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def get_template(name: str, system: str | None = None, date_string: str | None = None) -> Template:
    """A template by name, with the options of chat templates. LetheError: unknown name, options that do not apply."""
    if name not in TEMPLATES:
        raise LetheError(f"template must be one of {', '.join(TEMPLATES)}, got {name!r}")
    if name != "chat" and (system is not None or date_string is not None):
        raise LetheError(f"template {name}: system and date_string belong to the template 'chat', got them here")
    return replace(TEMPLATES[name], system=system, date_string=date_string)


def encode_pair(tokenizer: Any, template: Template, question: str, answer: str, max_length: int) -> Encoded:
    """Prompt and answer with the template's end token; the answer's tokens and the end token are supervised.

    A token that holds characters of both sides counts as answer (unless all it takes from the answer is blanks).
    Truncation to max_length tokens keeps the prompt and the beginning of the answer; the end token goes first.
    LetheError: slow tokenizer, no chat template where one is asked for, no end token, a prompt that fills max_length.
    """
    prompt, rest = _render(tokenizer, template, question, answer)
    ids, offsets = _tokenize(tokenizer, prompt + rest, add_special_tokens=template.prompt is not None)
    if template.prompt is None:
        ids = ids[: _end_of_turn(tokenizer, ids, offsets, len(prompt) + _answer_end(rest, answer)) + 1]
    else:
        ids = [*ids, _eos(tokenizer)]
    supervised = [i for i, span in enumerate(offsets) if _belongs_to_answer(prompt + rest, span, len(prompt))]
    start = max(1, supervised[0] if supervised else len(ids) - 1)
    if start >= max_length:
        raise LetheError(
            f"max_length {max_length} leaves no room for an answer: prompt of {start} tokens, got {question[:60]!r}"
        )
    return Encoded(ids[:max_length], start, truncated=len(ids) > max_length)


def encode_prompt(tokenizer: Any, template: Template, question: str) -> list[int]:
    """What generation starts from; equals ids[:start] of `encode_pair` where no token spans the border."""
    if template.prompt is None:
        text = _chat(tokenizer, template, question, answer=None)
        return _tokenize(tokenizer, text, add_special_tokens=False)[0]
    return _tokenize(tokenizer, template.prompt.format(question=question), add_special_tokens=True)[0]


def encode_text(tokenizer: Any, text: str, max_length: int) -> Encoded:
    """Raw text: everything after its first token is supervised, no end token. LetheError: fewer than two tokens."""
    ids, _ = _tokenize(tokenizer, text, add_special_tokens=True)
    if min(len(ids), max_length) < 2:
        raise LetheError(f"a text needs two tokens to be learned from, got {ids[:max_length]} from {text[:60]!r}")
    return Encoded(ids[:max_length], 1, truncated=len(ids) > max_length)


def encode_long(tokenizer: Any, text: str, chunks: Any) -> list[Encoded]:
    """Raw text in the chunks of `encode_chunks`. chunks: window, overlap, tail; bos, which may be `auto`: where the
    tokenizer has one; paragraphs: whether chunks hold whole paragraphs, where these are not longer than a window."""
    bos = tokenizer.bos_token_id is not None if chunks.bos == "auto" else chunks.bos
    pieces = by_paragraphs(tokenizer, text, chunks.window - bos) if chunks.paragraphs else [text]
    return [
        chunk
        for piece in pieces
        for chunk in encode_chunks(tokenizer, piece, chunks.window, chunks.overlap, bos, chunks.tail)
    ]


def by_paragraphs(tokenizer: Any, text: str, tokens: int) -> list[str]:
    """A text cut at empty lines into pieces of as many whole paragraphs as have at most `tokens` tokens together, at
    least one (a paragraph of a single token, from which nothing is learned, goes with the one before)."""
    pieces: list[str] = []
    size = 0
    for paragraph in re.split(r"(?<=\n\n)(?!\n)", text):
        length = len(tokenizer(paragraph, add_special_tokens=False)["input_ids"])
        if pieces and (size + length <= tokens or length < 2):
            pieces[-1] += paragraph
            size += length
        elif paragraph:
            pieces.append(paragraph)
            size = length
    return pieces


def encode_chunks(tokenizer: Any, text: str, window: int, overlap: int, bos: bool, tail: str) -> list[Encoded]:
    """Raw text as consecutive chunks of at most `window` ids, of which BOS is the first where `bos`; no end token.

    A chunk repeats the `overlap` ids before it as context; what it adds is supervised (without BOS and context all but
    its first token, which nothing predicts). tail, what does not fill the last window:
      keep   is a short chunk; a token that could not be supervised alone joins the chunk before, one id above `window`
      drop   is left out, unless it is all there is, and the last chunk counts as truncated
      shift  moves the last window back until it is full; what it repeats is context
    LetheError: a window without room for a supervised token, no BOS where one is asked for, a text without any.
    """
    room = window - bos
    stride = room - overlap
    if window < 2 or overlap < 0 or stride < 1:
        limits = f"window must be at least 2 and overlap lie in [0, window{' - 1' if bos else ''})"
        raise LetheError(f"chunks: {limits}, got window {window}, overlap {overlap}")
    if tail not in TAILS:
        raise LetheError(f"chunks: tail must be one of {', '.join(TAILS)}, got {tail!r}")
    if bos and tokenizer.bos_token_id is None:
        raise LetheError(f"{_name(tokenizer)}: chunks with bos need a beginning-of-text token, got none")
    head = [tokenizer.bos_token_id] if bos else []
    ids, _ = _tokenize(tokenizer, text, add_special_tokens=False)
    if len(head) + len(ids) < 2:
        raise LetheError(f"a text needs two tokens to be learned from, got {head + ids} from {text[:60]!r}")

    ends = [*range(room, len(ids), stride), len(ids)]
    rest = ends[-1] - ends[-2] if len(ends) > 1 else stride  # new ids of the last chunk
    if rest < stride and tail == "drop":
        ends.pop()
    if rest == 1 and tail == "keep" and not bos and not overlap:
        del ends[-2]
    chunks = []
    for begin, end in pairwise([0, *ends]):
        shifted = tail == "shift" and end == len(ids) and rest < stride
        first = end - room if shifted else max(0, begin - overlap)
        cut = end == ends[-1] < len(ids)
        chunks.append(Encoded(head + ids[first:end], max(1, len(head) + begin - first), truncated=cut))
    return chunks


def end_token_id(tokenizer: Any, template: Template) -> int:
    """The token that ends an answer, on which generation stops: EOS, or the chat template's end of turn."""
    if template.prompt is not None:
        return _eos(tokenizer)
    return encode_pair(tokenizer, template, "Who?", "She.", max_length=1 << 20).ids[-1]


def pad_token_id(tokenizer: Any) -> int:
    """The id to pad with: the tokenizer's pad token, else EOS (harmless, as masks come from lengths)."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else _eos(tokenizer)


def collate(items: Sequence[Encoded], pad_id: int) -> Batch:
    """Right-pad to the longest text; supervised positions in row-major order."""
    lengths = torch.tensor([len(item.ids) for item in items])
    starts = torch.tensor([item.start for item in items])
    ids = torch.full((len(items), int(lengths.max())), pad_id)
    for row, item in zip(ids, items, strict=True):
        row[: len(item.ids)] = torch.tensor(item.ids)
    position = torch.arange(ids.shape[1])
    supervised = (position >= starts[:, None]) & (position < lengths[:, None])
    rows, tokens = supervised.nonzero(as_tuple=True)
    mask = (position < lengths[:, None]).long()
    return Batch(ids, lengths, mask, rows, cols=tokens - 1, labels=ids[rows, tokens])


def collate_prompts(prompts: Sequence[Sequence[int]], pad_id: int) -> PromptBatch:
    """Left-pad to the longest prompt, so that every next token is predicted in the last column."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.full((len(prompts), int(lengths.max())), pad_id)
    for row, prompt in zip(ids, prompts, strict=True):
        row[len(row) - len(prompt) :] = torch.tensor(prompt)
    position = torch.arange(ids.shape[1]) - (ids.shape[1] - lengths[:, None])
    return PromptBatch(ids, attention_mask=(position >= 0).long(), position_ids=position.clamp(min=0))


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped by length, longest first, each group within max_tokens padded tokens (a longer one stands alone).

    The same lengths give the same groups: ties keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for i in order:
        # The first of a batch is its longest, so the padded size is (rows) x (its length).
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _render(tokenizer: Any, template: Template, question: str, answer: str) -> tuple[str, str]:
    """The prompt's text, and the text after it (for chat templates with what closes the turn)."""
    if template.prompt is not None:
        return template.prompt.format(question=question), template.answer.format(answer=answer)
    prompt = _chat(tokenizer, template, question, answer=None)
    whole = _chat(tokenizer, template, question, answer)
    if not whole.startswith(prompt):
        raise LetheError(f"{_name(tokenizer)}: the chat prompt must be a prefix of the conversation, got {prompt!r}")
    return prompt, whole[len(prompt) :]


def _chat(tokenizer: Any, template: Template, question: str, answer: str | None) -> str:
    if getattr(tokenizer, "chat_template", None) is None:
        raise LetheError(f"{_name(tokenizer)}: template 'chat' needs a tokenizer with a chat template, got one without")
    messages = [{"role": "system", "content": template.system}] if template.system is not None else []
    messages.append({"role": "user", "content": question})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    options = {} if template.date_string is None else {"date_string": template.date_string}
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer is None, **options)
    except TemplateError as error:
        raise LetheError(f"{_name(tokenizer)}: the chat template refuses these messages, got {error}") from None


def _tokenize(tokenizer: Any, text: str, add_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids and character spans. An end token that the tokenizer itself appends is left out: templates append theirs."""
    if not tokenizer.is_fast:
        raise LetheError(f"{_name(tokenizer)}: a fast tokenizer is needed, got {type(tokenizer).__name__}")
    encoding = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    ids, offsets, sequence = encoding["input_ids"], encoding["offset_mapping"], encoding.sequence_ids(0)
    stop = len(ids)
    while stop > 0 and sequence[stop - 1] is None and any(s is not None for s in sequence):
        stop -= 1
    return ids[:stop], offsets[:stop]


def _belongs_to_answer(text: str, span: tuple[int, int], border: int) -> bool:
    """Some tokenizers trim blanks off their spans; ignoring a spanning token's blanks treats both kinds alike."""
    start, end = span
    return end > border and (start >= border or text[border:end].strip() != "")


def _answer_end(rest: str, answer: str) -> int:
    """Where the answer's text ends in `rest` (chat templates may strip an answer and set blanks around it)."""
    at = rest.find(answer.strip())
    if at < 0:
        raise LetheError(f"the chat template changes the answer's text, got {rest[:60]!r} for {answer[:60]!r}")
    return at + len(answer.strip())


def _end_of_turn(tokenizer: Any, ids: list[int], offsets: list[tuple[int, int]], answer_end: int) -> int:
    """Index of the special token that closes the answer."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | {*tokenizer.all_special_ids}
    for i, (start, _) in enumerate(offsets):
        if start >= answer_end and ids[i] in special:
            return i
    raise LetheError(f"{_name(tokenizer)}: an answer must end with a special token, got none from the chat template")


def _eos(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise LetheError(f"{_name(tokenizer)}: an end-of-text token is needed, got a tokenizer without one")
    return tokenizer.eos_token_id


def _name(tokenizer: Any) -> str:
    return f"tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}"
