"""A plain engine."""

from __future__ import annotations

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import CHAT, MESSAGES, Answer, Report
from tests.unit.engines.answers import answer, recorded

OPENAI = ENGINES["openai"]


@pytest.mark.parametrize(
    ("models", "report"),
    [
        (recorded("vllm/models"), Report(context_tokens=2048, models=("tiny",))),
        (
            answer(200, {"data": [{"id": "a", "context_length": 65536}, {"id": "b", "max_model_len": 4096}]}),
            Report(context_tokens=4096, models=("a", "b")),
        ),
        (answer(200, {"data": [{"id": "a", "context_length": "much"}]}), Report(models=("a",))),
        (answer(200, {"data": []}), Report(models=())),
        (answer(404, {"detail": "Not Found"}), Report()),
        (recorded("llamacpp/loading"), Report(loading=True)),
    ],
)
def test_a_plain_engine_reports_its_models_and_their_smallest_context(models: Answer, report: Report) -> None:
    """Slots, load and start of a plain engine stay unknown."""
    assert OPENAI.read({"/v1/models": models}) == report


def test_ids_and_aliases_are_listed_once_each() -> None:
    """A request may name a model by its id or by any alias."""
    data = [{"id": "a", "aliases": ["a", "b", 7]}, {"id": "c"}, {"id": None}, "noise"]
    assert OPENAI.read({"/v1/models": answer(200, {"data": data})}).models == ("a", "b", "c")


def test_a_plain_engine_is_not_asked_to_count_and_its_limits_are_left_alone() -> None:
    """Nothing is known of how it counts or reserves."""
    assert OPENAI.count(CHAT, b"{}") is None
    assert OPENAI.count(MESSAGES, b"{}") is None
    assert OPENAI.max_tokens(None, 16384, 100, 2048, counted=False) is None
    assert OPENAI.max_tokens(65536, 16384, 100, 2048, counted=False) is None
