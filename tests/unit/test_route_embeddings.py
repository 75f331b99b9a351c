"""Routes that generate nothing: embeddings, and the counting of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.accounting import TokenSource, Usage
from gateway.engines.base import Answer
from gateway.errors import InvalidRequest
from gateway.request import Request, parse
from gateway.routes import ROUTES
from gateway.routes.embeddings import Embeddings
from gateway.routes.messages import CountTokens
from gateway.routes.missing import lacks_route
from gateway.routes.tokenize import Tokenize

EMBEDDINGS = Embeddings()


def embedding(**fields: Any) -> Request:
    """A parsed request for vectors."""
    return parse(json.dumps({"model": "m", "input": "words"} | fields).encode(), EMBEDDINGS)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("words", 5),
        (["words", "more words"], 10),
        ([1, 2, 3], 12),
        ([[1, 2, 3], [4]], 12),
        ([], 0),
        ("", 0),
        (None, 0),
    ],
)
def test_the_longest_text_is_what_must_fit(given: Any, size: int) -> None:
    """Each has a context of its own; a token given by its number counts like a token of text."""
    assert embedding(input=given).prompt_bytes == size


def test_no_answer_is_made_and_no_prefix_kept() -> None:
    """Nothing is to be generated, streamed, or found again."""
    request = embedding(stream=True, max_tokens=7)
    assert (request.output_tokens_max, request.stream, request.chain()) == (0, False, ())
    assert request.edited(max_tokens=7) is request.body
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"model":"m"}', EMBEDDINGS)
    assert caught.value.param == "input"


def test_only_the_prompt_is_counted() -> None:
    """Of other tokens there are none, whether or not the engine counts."""
    document = {"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    usage = Usage(TokenSource.REPORTED, prompt_tokens=8, completion_tokens=0)
    assert EMBEDDINGS.usage(document) == usage
    assert EMBEDDINGS.usage({"data": []}) == Usage(TokenSource.REPORTED, completion_tokens=0)
    assert EMBEDDINGS.is_answer(document)
    assert not EMBEDDINGS.is_answer({"error": {}})


def test_counting_takes_no_slot() -> None:
    """And only counting."""
    assert {path for path, route in ROUTES.items() if not route.takes_slot} == {
        "/tokenize",
        "/v1/messages/count_tokens",
    }
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    assert parse(body, CountTokens()).chain() == ()


def test_a_text_is_tokenized_by_any_model() -> None:
    """If none is named; one that is no name is refused. The body stays as it is."""
    request = parse(b'{"content":"hi"}', Tokenize())
    assert (request.model, request.edited(model=None)) == ("", request.body)
    assert parse(b'{"model":"m","prompt":"hi"}', Tokenize()).model == "m"
    with pytest.raises(InvalidRequest):
        parse(b'{"model":7,"content":"hi"}', Tokenize())
    with pytest.raises(InvalidRequest):
        parse(b'{"messages":[1]}', CountTokens())


@pytest.mark.parametrize(
    ("status", "body", "lacks"),
    [
        (501, b'{"error":{"code":501,"message":"This server does not support embeddings."}}', True),
        (405, b'{"detail":"Method Not Allowed"}', True),
        (404, b'{"detail":"Not Found"}', True),
        (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}', True),
        (404, b'{"error":{"message":"unknown endpoint","type":"invalid_request_error"}}', True),
        (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError"}}', False),
        (404, b'{"error":{"message":"Response with id \'r\' not found."}}', False),
        (404, b"<html>Not Found</html>", False),
        (404, b'{"error":"Not Found"}', False),
        (400, b'{"detail":"Not Found"}', False),
        (200, b'{"detail":"Not Found"}', False),
    ],
)
def test_a_route_that_is_not_there_is_told_from_what_is_not_there_on_it(
    status: int, body: bytes, lacks: bool
) -> None:
    """By the engines' own words: a model or an earlier response may be missing, too."""
    assert lacks_route(Answer(status, {}, body)) is lacks
