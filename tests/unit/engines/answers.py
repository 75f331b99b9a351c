"""Answers of engines: recorded, made up, and as a probe of a ready engine gets them."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.engines.base import Answer

FIXTURES = Path(__file__).parents[2] / "fixtures"


def recorded(name: str) -> Answer:
    """The answer in `fixtures/NAME.http`."""
    head, _, body = (FIXTURES / f"{name}.http").read_bytes().partition(b"\n\n")
    status, *fields = head.decode().splitlines()
    pairs = (field.split(": ", 1) for field in fields)
    return Answer(int(status.split()[1]), {name.lower(): value for name, value in pairs}, body)


def answer(status: int, value: object = None, **headers: str) -> Answer:
    """An answer with this JSON body."""
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, json.dumps(value).encode())


def edited(answer: Answer, old: bytes, new: bytes) -> Answer:
    """The answer with other bytes in it."""
    assert old in answer.body
    return Answer(answer.status, answer.headers, answer.body.replace(old, new))


DS4_UPSTREAM = {
    "/v1/stats": recorded("ds4/unknown_endpoint"),
    "/v1/models": recorded("ds4/models"),
}
DS4_FORK = DS4_UPSTREAM | {"/v1/stats": recorded("ds4/stats")}
LLAMACPP = {
    "/props": recorded("llamacpp/props"),
    "/v1/models": recorded("llamacpp/models"),
    "/metrics": recorded("llamacpp/metrics_idle"),
}
LLAMACPP_LOADING = dict.fromkeys(LLAMACPP, recorded("llamacpp/loading"))
VLLM = {
    "/v1/models": recorded("vllm/models"),
    "/metrics": recorded("vllm/metrics_3running_2waiting"),
    "/server_info?config_format=json": recorded("vllm/server_info"),
}
SGLANG = {
    "/v1/models": recorded("sglang/models"),
    "/v1/loads": recorded("sglang/loads"),
    "/server_info": recorded("sglang/server_info"),
}
