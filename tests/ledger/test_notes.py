"""What gateways tell each other of prompts, in bytes: small, bounded, and refused where it is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.notes import HEAD, LINK, LINKS_MAX, Kind, Note
from policies.prefix import Chain, Link
from tests.unit.fleet import a_chain

OWNER = b"gateway1"
URL = "http://engine:1"
NUMBERS = st.integers(0, 2**32 - 1)


@st.composite
def chains(draw: st.DrawFn, least: int = 0) -> Chain:
    """Any links, each of which ends no sooner than the one before."""
    ends = sorted(draw(st.lists(NUMBERS, min_size=least, max_size=20)))
    return tuple(Link(draw(st.integers(0, 2**64 - 1)), end) for end in ends)


@given(st.sampled_from(Kind), st.text(max_size=40), chains(1), chains(), NUMBERS, NUMBERS)
def test_what_is_told_is_heard(
    kind: Kind, url: str, chain: Chain, inside: Chain, tokens: int, cached: int
) -> None:
    """Whatever it is, in 12 bytes for each link."""
    note = Note(kind, url, chain, inside, tokens, cached)
    told = note.encoded(OWNER)
    assert Note.decoded(told) == (OWNER, note)
    assert len(told) == HEAD.size + len(url.encode()) + LINK.size * (len(chain) + len(inside))


def test_of_a_very_long_prompt_the_beginning_is_told() -> None:
    """Which is as true, with its share of the tokens; places inside its end are not."""
    whole = a_chain(*range(2 * LINKS_MAX))
    told = Note(Kind.SENT, URL, whole, a_chain(1, 2), 2**40).encoded(OWNER)
    assert len(told) < 13_000
    _, note = Note.decoded(told)
    assert (note.chain, note.inside) == (whole[:LINKS_MAX], ())
    told = Note(Kind.SENT, URL, whole, prompt_tokens=5000).encoded(OWNER)
    assert Note.decoded(told)[1].prompt_tokens == 2500


def test_what_is_no_note_is_refused() -> None:
    """Cut anywhere, longer, of another version or kind, with a URL that is none, or of no such prompt."""
    good = Note(Kind.SENT, URL, a_chain(1, 2), a_chain(3), 100).encoded(OWNER)
    bad = [good[:size] for size in range(len(good))]
    bad += [good + b"x", b"\x02" + good[1:], good[:1] + b"\x09" + good[2:]]
    bad += [good[: HEAD.size] + b"\xff" + good[HEAD.size + 1 :]]
    bad += [Note(Kind.SENT, URL, a_chain(1, 2)[::-1]).encoded(OWNER)]
    bad += [Note(kind, URL).encoded(OWNER) for kind in (Kind.SENT, Kind.FOUND)]
    for told in bad:
        with pytest.raises(ValueError):  # noqa: PT011
            Note.decoded(told)
    assert Note.decoded(good)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_note_or_refused(told: bytes) -> None:
    """Nothing else comes of them."""
    try:
        owner, note = Note.decoded(told)
    except ValueError:
        return
    assert note.encoded(owner) == told


def test_a_prompt_has_the_same_hashes_in_every_process() -> None:
    """Else no gateway would find another's."""
    code = (
        "from gateway.request import parse; from gateway.routes import ROUTES; "
        'body = b\'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}\'; '
        "route = ROUTES['/v1/chat/completions']; print(parse(body, route).chain())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "digest=" in said.pop()
