"""Conversations that come through several gateways by turns: the slot that one has warmed is found through
any of them. The engines count what they found."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from tests.debian import needs
from tests.processes.asking import ask, backend
from tests.processes.harness import Gateway, until
from tests.processes.test_shared import Stage, stage

pytestmark = needs("redis-server")

NOTES = "{slotgate:default}:prefixes"
FOLLOWED_SECONDS = 0.5  # in which others read what is told
CONVERSATIONS, TURNS = 4, 4
# As many slots as conversations, and each slot keeps one.
ENGINES: dict[str, Any] = {"prefix_cache": True, "tokens": 4, "prefill_tps": 10_000_000, "decode_tps": 10_000}


def turn_of(number: int, turn: int) -> dict[str, Any]:
    """A conversation's next body: what was said before, and one more question."""
    said = [{"role": "system", "content": f"Conversation {number} is about {number}. " * 60}]
    for place in range(turn):
        said.append({"role": "user", "content": f"Question {place} of {number}? " * 40})
        said.append({"role": "assistant", "content": f"Answer {place} of {number}. " * 40})
    said.append({"role": "user", "content": f"Question {turn} of {number}? " * 40})
    return {"model": "fake-model", "messages": said, "max_tokens": 4, "stream": False}


class Told:
    """Where the turns went, and how much of them was cached there."""

    def __init__(self) -> None:
        self.backends: dict[int, list[str]] = {}
        self.cached = self.tokens = 0

    async def ask(self, front: Gateway, number: int, turn: int) -> None:
        """One turn of a conversation, through this gateway."""
        answer = await ask(front, turn_of(number, turn))
        assert answer.head.status == 200, answer
        self.backends.setdefault(number, []).append(answer.head.headers["x-slotgate-backend"])
        if turn:  # the first one finds nothing
            usage = json.loads(answer.body)["usage"]
            self.tokens += usage["prompt_tokens"]
            self.cached += usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def share(self) -> float:
        """Of the prompts' tokens, those that were cached."""
        return self.cached / self.tokens

    @property
    def moves(self) -> int:
        """How often a conversation went to another engine than with its last turn."""
        return sum(one != other for went in self.backends.values() for one, other in pairwise(went))


async def told(scene: Stage, count: int) -> None:
    """Wait until so many notes are there, and read."""

    async def there() -> bool:
        async with scene.server.client() as client:
            return int(await client.xlen(NOTES)) >= count

    await until(there, f"{count} notes")
    await asyncio.sleep(FOLLOWED_SECONDS)


async def by_turns(scene: Stage, *, shared: bool) -> Told:
    """Every turn of each conversation through the other gateway than the one before; in another order each
    time, or who takes engines by turns would find the right one."""
    went = Told()
    for turn in range(TURNS):
        for place, number in enumerate(range(CONVERSATIONS)[:: 1 if turn % 2 else -1], 1):
            await went.ask(scene.gateways[(number + turn) % 2], number, turn)
            if shared and (not turn or place == CONVERSATIONS):
                await told(scene, 2 * (turn * CONVERSATIONS + place))  # sent, and found
    return went


async def test_a_conversation_finds_its_slot_through_any_gateway() -> None:
    """By turns through two of them, as many conversations as there are slots: each stays where it is warm.
    One that was killed and starts again finds them, too, and nothing of a prompt is in Redis."""
    async with stage(2, 2, personality="llamacpp", **ENGINES) as scene:
        went = await by_turns(scene, shared=True)
        print(f"through both: {went.share:.2f}, {went.moves} moves")  # noqa: T201
        assert went.moves <= 1, went.backends
        assert went.share > 0.65
        first, second = scene.gateways
        second.expect_end()
        await second.process.kill()
        second.process.start()
        await until(lambda: second.answers("/ready"), "the gateway that was killed")

        async def caught_up() -> bool:
            return all([(await backend(second, f"b{i}"))["prefix"]["entries"] == 2 for i in range(2)])

        await until(caught_up, "what others sent")
        before, again = {number: went.backends[number][-1] for number in range(CONVERSATIONS)}, Told()
        for number in range(CONVERSATIONS):
            await again.ask(second, number, TURNS)
        assert sum(again.backends[number] != [before[number]] for number in before) <= 1
        assert again.share > 0.65
        async with scene.server.client() as client:
            notes = str(await client.xrange(NOTES))
            assert 0 < await client.pttl(NOTES) <= 600_000
        assert scene.engines[0].url in notes
        assert "uestion" not in notes and "nswer" not in notes
        assert all("Traceback" not in one.process.errors for one in (first, second))


async def test_nothing_but_warmth_is_lost_where_notes_are_refused() -> None:
    """A Redis that lets nobody write them: every request is answered, slots are shared, nothing is logged.
    The conversations lose their slots, so it is the notes that keep them."""
    refusing = ("--user", "default", "on", "nopass", "~*", "&*", "+@all", "-xadd")
    async with stage(2, 2, personality="llamacpp", arguments=refusing, **ENGINES) as scene:
        went = await by_turns(scene, shared=False)
        print(f"without notes: {went.share:.2f}, {went.moves} moves")  # noqa: T201
        assert went.moves > 4, went.backends
        assert went.share < 0.6
        await scene.never_too_many()
        for number, front in enumerate(scene.gateways):
            await scene.sharing(number, "shared")
            assert "NOPERM" not in front.process.errors
            assert "Traceback" not in front.process.errors
