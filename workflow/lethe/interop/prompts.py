"""The question inside a prompt as evaluation logs print it: with the tags of some model's template around it."""

from __future__ import annotations

import re

# Tried in this order. Chat templates come both with their tags and decoded without special tokens.
_PATTERNS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\[INST\](?:\s*<<SYS>>.*?<</SYS>>)?(.*?)\[/INST\]",
        r"<\|start_header_id\|>user<\|end_header_id\|>(.*?)<\|eot_id\|>",
        r"<\|im_start\|>user\n(.*?)<\|im_end\|>",
        r"<start_of_turn>user\n(.*?)<end_of_turn>",
        r"<\|user\|>(.*?)(?:</s>|<\|end\|>)?\s*<\|assistant\|>",
        r"^(?:system\n.*?)?user\n(.*?)\s*(?:assistant|model)\s*$",
        r"^(?:.*\n)?\s*(?:###\s*)?Question:(.*?)(?:(?:###\s*)?Answer:\s*)?$",
    )
)


def question_of(prompt: str) -> str:
    """The prompt without template tags and surrounding blanks; a prompt of an unknown form comes back whole."""
    for pattern in _PATTERNS:
        if found := pattern.search(prompt):
            return found.group(1).strip()
    return prompt.strip()
