"""What is predicted to be cached, and what engines find, on real sockets: engines that hold what they say,
that put away what their slots give up, and that have other users."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.processes.asking import ask, backend, metric, quiet
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Engine, Gateway, engine, gateway
from tests.unit.conversations import Body, Message, sessions, turns

FAST: dict[str, Any] = {"prefix_cache": True, "tokens": 4, "prefill_tps": 10_000_000, "decode_tps": 10_000}
TOKENS = 12_000  # of a session as it ends, and more
CACHED = re.compile(r"; cached=(\d+)/(\d+)").search


def interleaved(conversations: int) -> Iterator[tuple[int, Body]]:
    """Recorded sessions, a turn of each at a time; those that end early leave the others to go on. Calls of
    tools are said in words, since the fake engine reads nothing else."""
    said = [list(map(in_words, messages)) for messages in sessions()[:conversations]]
    queues = dict(enumerate(map(turns, said)))
    while queues:
        for number, queue in list(queues.items()):
            body = next(queue, None)
            if body is None:
                del queues[number]
            else:
                yield number, body | {"stream": False, "model": "fake-model", "max_tokens": 4}


def in_words(message: Message) -> Message:
    """A message whose calls are its content."""
    calls = message.get("tool_calls")
    return {"role": message["role"], "content": json.dumps(calls) if calls else message["content"]}


class Shares:
    """Of the prompts of a phase: what was predicted to be cached, and what was."""

    def __init__(self) -> None:
        self._prompts: list[tuple[int, int, int, int]] = []

    async def ask(self, front: Gateway, number: int, body: Body) -> None:
        """The next turn of a conversation."""
        headers = [("X-Slotgate-Session", f"session-{number}"), ("X-Slotgate-Explain", "1")]
        answer = await ask(front, body, headers)
        assert answer.head.status == 200, answer
        told = CACHED(answer.head.headers["x-slotgate-prefix"])
        assert told is not None
        usage = json.loads(answer.body)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        await quiet(front)  # else the next one may find the slot taken
        self._prompts.append((int(told[1]), int(told[2]), cached, usage["prompt_tokens"]))

    def predicted_and_reported(self, of: slice) -> tuple[float, float]:
        """Shares of the prompts' tokens."""
        predicted, estimated, cached, tokens = map(sum, zip(*self._prompts[of], strict=True))
        return predicted / estimated, cached / tokens


def known(one: Engine) -> dict[str, Any]:
    """A configuration that says what the engine serves; ds4 does not."""
    return configured(one, backend={"models": ["fake-model"]})


async def others_use(one: Engine, times: int) -> None:
    """Requests that the gateway never sees."""
    async with httpx.AsyncClient(base_url=one.url, trust_env=False, timeout=10.0) as client:
        for number in range(times):
            said = [{"role": "user", "content": f"{number} of somebody else. " * 400}]
            body = {"model": "fake-model", "messages": said, "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "slots": ("llamacpp", {"slots": 4}, 4),
    "slots with a host cache": ("llamacpp", {"slots": 2, "host_tokens": 10 * TOKENS}, 6),
    "banks": ("ds4", {"slots": 4}, 4),
    "banks with a disk": ("ds4", {"slots": 2, "host_tokens": 10 * TOKENS}, 6),
    "blocks": ("vllm", {"slots": 4, "kv_tokens": 6 * TOKENS, "usage_details": True}, 4),
    "blocks with more memory": (
        "vllm",
        {"slots": 4, "kv_tokens": TOKENS, "host_tokens": 10 * TOKENS, "usage_details": True},
        6,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_predicts_what_each_kind_of_cache_finds(kind: str) -> None:
    """Within five points of what the engine reports, once it has shown how much it holds; the admin port and
    the metrics say whether it surprised."""
    personality, options, conversations = KINDS[kind]
    async with engine(personality, **FAST, **options) as one, gateway(known(one)) as front:
        await becomes(front, "b0", "ready")
        shares = Shares()
        for number, body in interleaved(conversations):
            await shares.ask(front, number, body)
        half = len(shares._prompts) // 2
        predicted, reported = shares.predicted_and_reported(slice(half, None))
        shown = (await backend(front, "b0"))["prefix"]
        print(f"{kind}: predicted {predicted:.3f}, reported {reported:.3f}, {shown}")  # noqa: T201
        assert reported > (0.4 if kind == "slots" else 0.6)  # slots that share a head are taken over
        assert abs(predicted - reported) <= 0.05, (predicted, reported, shown)
        surprised = "with" in kind
        assert (shown["found_more"] > 0) == surprised
        told = await metric(front, "slotgate_prefix_surprises_total", backend="b0", found="more")
        assert told == shown["found_more"]
        efficiency = await metric(front, "slotgate_prefix_efficiency", backend="b0")
        assert efficiency == shown["efficiency"]


async def test_other_users_of_an_engine_lower_what_is_believed() -> None:
    """They push our conversations out: less is predicted. They leave, and it is as before."""
    async with engine("ds4", slots=4, **FAST) as one, gateway(known(one)) as front:
        await becomes(front, "b0", "ready")
        requests = list(interleaved(4))
        shared, alone = Shares(), Shares()
        for number, body in requests:
            await others_use(one, 4)
            await shared.ask(front, number, body)
        crowded = (await backend(front, "b0"))["prefix"]
        for number, body in requests:
            await alone.ask(front, number, body)
        late = slice(len(requests) // 2, None)
        of_shared, of_alone = shared.predicted_and_reported(late), alone.predicted_and_reported(late)
        print(f"with others: predicted {of_shared[0]:.3f}, reported {of_shared[1]:.3f}, {crowded}")  # noqa: T201
        print(f"alone again: predicted {of_alone[0]:.3f}, reported {of_alone[1]:.3f}")  # noqa: T201
        assert abs(of_shared[0] - of_shared[1]) <= 0.05, of_shared
        assert abs(of_alone[0] - of_alone[1]) <= 0.05, of_alone
        assert of_alone[1] > 0.6
        assert crowded["found_less"] > 0
