"""How long answers are, by model and class."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from policies.output_length import CONVERSATIONS_MAX, KINDS_MAX, LEARNT, UNKNOWN, WINDOW, OutputLength, Window
from policies.types import Priority


def test_a_guess_until_enough_answers_were_seen() -> None:
    """256 in the middle and 2,048 at most, as long as there are fewer than twenty."""
    length = OutputLength()
    for _ in range(LEARNT - 1):
        length.learn("m", Priority.AGENT, 10, None)
    assert length.of("m", Priority.AGENT) == UNKNOWN
    length.learn("m", Priority.AGENT, 10, None)
    assert length.of("m", Priority.AGENT).p90 == 10


def test_classes_and_models_learn_apart() -> None:
    """Short questions have short answers; another model thinks longer."""
    length = OutputLength()
    for tokens in range(100, 200):
        length.learn("m", Priority.INTERACTIVE, tokens, None)
        length.learn("m", Priority.AGENT, 10 * tokens, 65536)
    assert (length.of("m", Priority.INTERACTIVE).mean, length.of("m", Priority.AGENT).mean) == (149, 1495)
    assert (length.of("m", Priority.INTERACTIVE).p90, length.of("m", Priority.AGENT).p90) == (190, 1900)
    assert length.of("other", Priority.AGENT) == UNKNOWN


def test_forgets_what_answers_were_like_long_ago() -> None:
    """The latest 200 count."""
    length = OutputLength()
    for tokens in [5000] * 300 + [100] * WINDOW:
        length.learn("m", Priority.AGENT, tokens, None)
    assert length.of("m", Priority.AGENT).p90 == 100


def test_an_answer_cut_off_counts_only_if_it_was_long() -> None:
    """A limit of 16 says nothing of answers without one; a limit beyond the 90th percentile does."""
    length = OutputLength()
    for _ in range(50):
        length.learn("m", Priority.AGENT, 500, None)
        length.learn("m", Priority.AGENT, 16, 16)
    assert length.of("m", Priority.AGENT).mean == 500
    for _ in range(100):
        length.learn("m", Priority.AGENT, 4000, 4000)
    assert length.of("m", Priority.AGENT).p90 == 4000


def test_remembers_a_bounded_number_of_kinds() -> None:
    """Clients choose the names."""
    length = OutputLength()
    for number in range(KINDS_MAX + 1):
        for _ in range(LEARNT):
            length.learn(f"m{number}", Priority.AGENT, 7, None)
    assert length.of("m0", Priority.AGENT).p90 == 7
    assert length.of(f"m{KINDS_MAX}", Priority.AGENT) == UNKNOWN


@given(st.lists(st.integers(0, 10_000), min_size=LEARNT, max_size=3 * WINDOW))
def test_tells_of_the_latest(answers: list[int]) -> None:
    """Their mean, and what nine of ten are no longer than, but for one."""
    window = Window()
    for tokens in answers:
        window.add(tokens)
    latest = answers[-WINDOW:]
    mean, p90 = window.tokens
    assert mean == sum(latest) // len(latest) and p90 in latest
    assert sum(tokens <= p90 for tokens in latest) >= 0.9 * len(latest)
    assert sum(tokens < p90 for tokens in latest) <= 0.9 * len(latest)


def test_a_conversation_goes_on_as_it_did() -> None:
    """Its own answers count beside its class, the more of them the more; a stranger has the class alone."""
    length = OutputLength()
    for _ in range(LEARNT):
        length.learn("m", Priority.AGENT, 100, None, "short")
    for mean in (366, 500):
        length.learn("n", Priority.AGENT, 900, None, "long")
        assert length.of("m", Priority.AGENT, "long").mean == mean
    assert length.of("m", Priority.AGENT, "stranger").mean == 100
    assert length.of("m", Priority.AGENT, "long").p90 == 100


def test_remembers_a_bounded_number_of_conversations() -> None:
    """The one that was silent longest is forgotten."""
    length = OutputLength()
    for number in range(CONVERSATIONS_MAX + 1):
        length.learn("m", Priority.BATCH, 10_000, 1, number)
    assert length.of("n", Priority.BATCH, 0) == UNKNOWN
    assert length.of("n", Priority.BATCH, 1).mean > UNKNOWN.mean


def test_follows_a_real_mixture() -> None:
    """Most tool calls are short, some answers are long: the mean lies between, the 90th percentile is
    the long ones'."""
    chance = random.Random(1)
    window = Window()
    for _ in range(WINDOW):
        window.add(chance.randrange(50, 150) if chance.random() < 0.8 else chance.randrange(2000, 4000))
    assert 200 <= window.tokens.mean < 1200
    assert 2000 <= window.tokens.p90 < 4000
