"""A fake engine looks like its original: the shapes of its answers are those of recorded ones."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.fakes.questions import LLAMACPP, VLLM, Question
from tests.fakes.shape import Answered, differences
from tests.processes.harness import Engine, engine

ANSWERS = Path(__file__).parents[1] / "fixtures/answers"


def http(one: Engine) -> httpx.AsyncClient:
    """A client of one engine."""
    return httpx.AsyncClient(base_url=one.url, trust_env=False, verify=False, timeout=60)


@pytest.mark.parametrize(("personality", "questions"), [("vllm", VLLM), ("llamacpp", LLAMACPP)])
async def test_answers_have_the_recorded_shapes(personality: str, questions: tuple[Question, ...]) -> None:
    """Status, header, members, kinds of values and the order of events, on every route."""
    found: list[str] = []
    async with (
        engine(personality, model="tiny", context_tokens=2048, slots=2, tokens=20, instant=True) as one,
        http(one) as client,
    ):
        for question in questions:
            real = Answered.recorded(ANSWERS / personality / f"{question.name}.http")
            wrong = differences(await question.ask(client), real, question.but)
            found += [f"{question.name}: {line}" for line in wrong]
    assert not found, "\n".join(found)
