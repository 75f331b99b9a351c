"""Tokens of a prompt from its bytes, with a ratio learnt from what engines report."""

from __future__ import annotations

import pytest

from policies.prompt_length import MODELS_MAX, PromptLength


def test_starts_with_four_bytes_a_token() -> None:
    """English and JSON on current vocabularies; a prompt has at least one token."""
    length = PromptLength()
    assert [length.estimate("m", size) for size in (0, 1, 4000)] == [1, 1, 1000]


def test_takes_the_first_report_whole_and_then_moves_slowly() -> None:
    """The first sample replaces the guess; later ones count a fifth."""
    length = PromptLength()
    length.learn("m", 6000, 2000)
    assert length.estimate("m", 3000) == 1000
    length.learn("m", 8000, 1000)  # ratio 3 -> 4
    assert length.estimate("m", 4000) == 1000


def test_models_learn_apart() -> None:
    """Vocabularies differ."""
    length = PromptLength()
    length.learn("chinese", 6000, 3000)
    assert (length.estimate("chinese", 2000), length.estimate("english", 2000)) == (1000, 500)


@pytest.mark.parametrize(("prompt_bytes", "prompt_tokens"), [(4095, 10), (8000, 0)])
def test_ignores_what_teaches_nothing(prompt_bytes: int, prompt_tokens: int) -> None:
    """In a tiny prompt the template's tokens hide the ratio; no tokens is no report."""
    length = PromptLength()
    length.learn("m", prompt_bytes, prompt_tokens)
    assert length.estimate("m", 4000) == 1000


def test_remembers_a_bounded_number_of_models() -> None:
    """Clients choose the names, so there is a limit; known models go on learning."""
    length = PromptLength()
    for number in range(MODELS_MAX + 1):
        length.learn(f"m{number}", 6000, 3000)
    assert length.estimate(f"m{MODELS_MAX - 1}", 2000) == 1000
    assert length.estimate(f"m{MODELS_MAX}", 2000) == 500
    length.learn("m0", 7000, 1000)
    assert length.estimate("m0", 3000) == 1000
