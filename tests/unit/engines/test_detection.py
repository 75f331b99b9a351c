"""Which engine it is."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.engines import DETECTION_PATHS, ENGINES, detect
from gateway.engines.base import Answer
from gateway.options import BackendSettings
from tests.unit.engines.answers import (
    DS4_FORK,
    DS4_UPSTREAM,
    LLAMACPP,
    LLAMACPP_LOADING,
    SGLANG,
    VLLM,
    answer,
    recorded,
)

ELSEWHERE = dict.fromkeys(DETECTION_PATHS, answer(404))
PLAIN = {"/v1/models": answer(200, {"data": [{"id": "a", "owned_by": "somebody"}]})}


def test_detection_asks_every_engines_paths_once() -> None:
    """An unknown engine is asked all that any engine is recognised by, each path once."""
    assert len(DETECTION_PATHS) == len(set(DETECTION_PATHS))
    assert set(DETECTION_PATHS) == {path for engine in ENGINES.values() for path in engine.paths}


def test_every_engine_can_be_configured() -> None:
    """The option's choices are the engines, and `auto`."""
    choices = get_args(BackendSettings.model_fields["engine"].annotation)
    assert sorted(choices) == sorted(["auto", *ENGINES])


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        (DS4_FORK, "ds4"),
        (DS4_UPSTREAM, "ds4"),
        ({"/v1/stats": recorded("ds4/stats")}, "ds4"),
        (LLAMACPP, "llamacpp"),
        ({"/props": recorded("llamacpp/props")}, "llamacpp"),
        # A probe that met the end of loading, or a proxy that hides /props: the list's owner tells.
        ({"/props": recorded("llamacpp/loading"), "/v1/models": recorded("llamacpp/models")}, "llamacpp"),
        (VLLM, "vllm"),
        (VLLM | {"/v1/models": recorded("vllm/wrong_key")}, "vllm"),  # /metrics needs no key
        ({"/v1/models": recorded("vllm/models")}, "vllm"),
        (VLLM | {"/server_info?config_format=json": recorded("vllm/server_info_dev")}, "vllm"),
        (SGLANG, "sglang"),
        ({"/server_info": recorded("sglang/server_info_old")}, "sglang"),
        ({"/v1/models": recorded("sglang/models")}, "sglang"),
        (PLAIN, "openai"),
        (PLAIN | {"/props": answer(200, {})}, "openai"),
        (PLAIN | {"/props": answer(200, {"total_slots": True})}, "openai"),
        (PLAIN | {"/v1/stats": answer(200, {"server": {"max_seq": "11"}})}, "openai"),
        (PLAIN | {"/server_info": answer(200, {"status": "ready"})}, "openai"),
        (PLAIN | {"/metrics": Answer(200, {}, b"process_start_time_seconds 1.7\n")}, "openai"),
        ({"/v1/models": answer(200, {"data": []})}, "openai"),
        (LLAMACPP_LOADING, None),
        ({}, None),
        ({"/v1/models": answer(401, {"error": "Unauthorized"})}, None),
        ({"/v1/models": answer(200, {"data": None})}, None),
        ({"/v1/models": Answer(200, {}, b"<html>it works</html>")}, None),
    ],
)
def test_an_engine_is_recognised_by_what_only_it_answers(
    answers: dict[str, Answer], name: str | None
) -> None:
    """Each by a route of its own or as owner of its models; any list of models is a plain engine."""
    engine = detect(ELSEWHERE | answers)
    assert (engine.name if engine else None) == name
