"""Tokens of a prompt from its bytes, by a law learnt from what engines report."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fit import FIRST_SAMPLES
from policies.prompt_length import MEDIA_BYTES, MODELS_MAX, PromptLength, content

RECORDED = json.loads((Path(__file__).parent.parent / "fixtures/prompts/o200k.json").read_text())["prompts"]
KINDS = [recorded["kind"] for recorded in RECORDED]


def a_body(text: str, *, ascii: bool = False) -> bytes:
    """The text as a client sends it."""
    if text.startswith('[{"type": "function"'):
        return b'{"model": "m", "tools": %s}' % text.encode()
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message]}, ensure_ascii=ascii).encode()


def estimated(body: bytes, prompt_bytes: int | None = None, length: PromptLength | None = None) -> int:
    size = len(body) if prompt_bytes is None else prompt_bytes
    return (length or PromptLength()).estimate("m", content(body, size))


@pytest.mark.parametrize("ascii", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("recorded", RECORDED, ids=KINDS)
def test_knows_what_is_dense(recorded: dict[str, Any], ascii: bool) -> None:
    """Prose, code, records, schemas and other scripts, in both ways to write them: within a quarter of what a
    current vocabulary counts, nothing being learnt yet."""
    body = a_body(recorded["text"], ascii=ascii)
    assert estimated(body) == pytest.approx(recorded["tokens"], rel=0.25)


def test_a_mixture_is_the_sum_of_its_parts() -> None:
    """Prose with records and Chinese behind it, too long to be read whole."""
    texts = [recorded for recorded in RECORDED if recorded["kind"] in ("english", "records", "chinese")]
    body = a_body("".join(recorded["text"] for recorded in texts * 10))
    assert len(body) > 100_000
    assert estimated(body) == pytest.approx(10 * sum(r["tokens"] for r in texts), rel=0.25)


def test_one_ratio_would_not_do() -> None:
    """Bytes per token differ by more than half as much again between these, so the kinds are needed."""
    ratios = [len(a_body(recorded["text"])) / recorded["tokens"] for recorded in RECORDED]
    assert max(ratios) / min(ratios) > 1.5


def test_an_image_counts_as_an_image() -> None:
    """Four megabytes of base64 are about a thousand tokens, beside the text around them."""
    picture = base64.b64encode(random.Random(1).randbytes(3_000_000)).decode()
    words = RECORDED[0]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    parts = [{"type": "text", "text": words["text"]}, image]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    prompt_bytes = len(body) - len(picture) + MEDIA_BYTES
    assert estimated(body, prompt_bytes) == pytest.approx(1000 + words["tokens"], rel=0.25)


def test_a_long_text_without_spaces_is_no_image() -> None:
    """Members of the body that are not in the prompt make it longer than its prompt, too."""
    schema = json.dumps({"enum": ["word"] * 5000}).encode()
    body = a_body("A question of a few words.")[:-1] + b', "response_format": ' + schema + b"}"
    assert estimated(body, 60) < 40


@pytest.mark.parametrize("kind", ["english", "chinese", "records"])
def test_learns_a_model_s_own_vocabulary(kind: str) -> None:
    """One that needs half as many tokens again: known after a few prompts, also for other kinds of text."""
    length = PromptLength()
    recorded = next(recorded for recorded in RECORDED if recorded["kind"] == kind)
    body = a_body(recorded["text"] * 3)
    for _ in range(FIRST_SAMPLES):
        assert estimated(body, length=length) == estimated(body)
        length.learn("m", content(body, len(body)), len(body), round(recorded["tokens"] * 4.5))
    assert estimated(body, length=length) == pytest.approx(recorded["tokens"] * 4.5, rel=0.05)
    other = a_body(RECORDED[1]["text"])
    assert estimated(other, length=length) > 1.2 * estimated(other)


def test_kinds_of_text_learn_apart() -> None:
    """A vocabulary that is poor in Chinese only: prose is not made longer by what Chinese has taught."""
    length, chance = PromptLength(), random.Random(1)
    english, chinese = (next(r for r in RECORDED if r["kind"] == kind) for kind in ("english", "chinese"))
    for _ in range(60):
        recorded, factor = chance.choice([(english, 1.0), (chinese, 2.0)])
        body = a_body(recorded["text"] * 2)
        length.learn("m", content(body, len(body)), len(body), round(2 * factor * recorded["tokens"]))
    for recorded, factor in ((english, 1.0), (chinese, 2.0)):
        tokens = estimated(a_body(recorded["text"]), length=length)
        assert tokens == pytest.approx(factor * recorded["tokens"], rel=0.1)


def test_models_learn_apart() -> None:
    """Vocabularies differ."""
    length = PromptLength()
    prompt = content(b"word " * 2000, 10_000)
    for _ in range(FIRST_SAMPLES):
        length.learn("dense", prompt, 10_000, 5000)
    assert length.estimate("dense", prompt) == pytest.approx(5000, rel=0.02)
    assert length.estimate("other", prompt) == PromptLength().estimate("other", prompt)


@pytest.mark.parametrize(("prompt_bytes", "prompt_tokens"), [(4095, 4000), (8000, 0)])
def test_ignores_what_teaches_nothing(prompt_bytes: int, prompt_tokens: int) -> None:
    """In a tiny prompt the template's tokens hide the law; no tokens is no report."""
    length = PromptLength()
    prompt = content(b"word " * 1600, prompt_bytes)
    for _ in range(FIRST_SAMPLES):
        length.learn("m", prompt, prompt_bytes, prompt_tokens)
    assert length.estimate("m", prompt) == PromptLength().estimate("m", prompt)


def test_remembers_a_bounded_number_of_models() -> None:
    """Clients choose the names, so there is a limit; known models go on learning."""
    length = PromptLength()
    prompt = content(b"word " * 2000, 10_000)
    for number in range(MODELS_MAX + 1):
        for _ in range(FIRST_SAMPLES):
            length.learn(f"m{number}", prompt, 10_000, 9000)
    assert length.estimate(f"m{MODELS_MAX - 1}", prompt) == pytest.approx(9000, rel=0.02)
    assert length.estimate(f"m{MODELS_MAX}", prompt) < 3000


@given(st.binary(max_size=5000), st.integers(0, 10_000_000))
def test_whatever_a_body_is_it_has_a_length(body: bytes, prompt_bytes: int) -> None:
    """No byte string breaks it; a prompt has at least one token and no more than a byte each, but for
    images."""
    tokens = estimated(body, prompt_bytes)
    assert 1 <= tokens <= max(1, prompt_bytes) + 1000 * body.count(b"base64")
