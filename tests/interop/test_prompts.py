import pytest

from lethe.interop.prompts import question_of

QUESTION = "Who wrote\nthe play 'Romeo and Juliet'?"


@pytest.mark.parametrize(
    "prompt",
    [
        "[INST] {q} [/INST]",
        "<s>[INST] <<SYS>>\nYou are kind.\n<</SYS>>\n\n{q} [/INST]",
        "Question: {q}\nAnswer:",
        "Question: {q}\n",
        "### Question: {q}\n ### Answer: ",
        "Question: Who?\nAnswer: Ann\n\nQuestion: {q}\nAnswer: ",
        "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n",
        "system\nYou are a helpful assistant.\nuser\n{q}\nassistant\n",
        "system\n\nToday Date: 10 Apr 2025\n\nYou are a helpful assistant.user\n\n{q}assistant\n\n",
        "<|start_header_id|>user<|end_header_id|>\n\n{q}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<start_of_turn>user\n{q}<end_of_turn>\n<start_of_turn>model\n",
        "user\n{q}\nmodel\n",
        "<|user|>\n{q}</s>\n<|assistant|>\n",
        "  {q}\n",
    ],
)
def test_template_tags_are_stripped(prompt):
    assert question_of(prompt.replace("{q}", QUESTION)) == QUESTION
