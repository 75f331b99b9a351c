"""How much of a cache is believed in, as engines find less or more than they should."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest

from policies.block_prefix import BlockShadow
from policies.prefix import Chain, PrefixShadow, Shadow
from policies.types import Backend
from tests.unit.fleet import a_chain
from tests.unit.test_learner import Stage

SLOTS = 4
TOKENS = 250_000  # that such an engine says it holds, where requests share blocks
SHADOWS: dict[str, Callable[[], Shadow]] = {
    "slots": lambda: PrefixShadow(SLOTS, copies=False),
    "banks": lambda: PrefixShadow(SLOTS),
    "blocks": lambda: BlockShadow(TOKENS),
}
ROUNDS = 6


class Engine:
    """Holds the conversations that were used last, whatever it says, and tells what it found of a prompt."""

    def __init__(self, shadow: Shadow) -> None:
        self.stage = Stage()
        self.backend: Backend = self.stage.backend
        self.backend.shadow = shadow
        self.backend.slots = SLOTS
        self.holds = SLOTS
        self._held: OrderedDict[int, int] = OrderedDict()  # messages by conversation
        self._turns: dict[int, int] = {}

    def turns(self, conversations: int, rounds: int = ROUNDS, first: int = 0) -> tuple[float, float]:
        """A turn of each of them, and again; the shares of their prompts that were predicted and found in
        the second half of these."""
        predicted = found = tokens = 0
        for turn in range(rounds):
            for conversation in range(first, first + conversations):
                prompt, cached, expected = self._turn(conversation)
                if turn >= rounds // 2:
                    predicted, found, tokens = predicted + expected, found + cached, tokens + prompt
        return predicted / tokens, found / tokens

    def restart(self) -> None:
        """Another process; the gateway has noticed."""
        self._held.clear()
        self.stage.admission.restarted("backend")

    def _turn(self, conversation: int) -> tuple[int, int, int]:
        """Tokens of the prompt, those found, and those that were predicted."""
        self._turns[conversation] = self._turns.get(conversation, 1) + 2
        messages = self._turns[conversation]
        chain: Chain = a_chain(*range(1000 * conversation, 1000 * conversation + messages))
        cached = 1000 * self._held.pop(conversation, 0)
        self._held[conversation] = messages + 1  # its answer, too
        while len(self._held) > self.holds:
            self._held.popitem(last=False)
        lease = self.stage.serve(1000 * messages, 20, cached=cached, truly=cached, chain=chain)
        return 1000 * messages, cached, lease.cached_tokens


@pytest.fixture(params=SHADOWS)
def engine(request: pytest.FixtureRequest) -> Engine:
    """One of each kind."""
    return Engine(SHADOWS[request.param]())


def near(shares: tuple[float, float]) -> bool:
    """Within five points of each other."""
    predicted, found = shares
    return abs(predicted - found) <= 0.05


def test_what_an_engine_says_is_believed(engine: Engine) -> None:
    """As long as it finds that."""
    room = engine.backend.shadow.room
    shares = engine.turns(SLOTS)
    assert near(shares) and shares[1] > 0.7
    assert engine.backend.shadow.room == room
    assert engine.backend.calibration.found_less == engine.backend.calibration.found_more == 0


def test_one_that_evicts_is_believed_less(engine: Engine) -> None:
    """Its other users push out what was used longest ago. Once they have left, all is believed again."""
    engine.turns(SLOTS)
    room = engine.backend.shadow.room
    assert room is not None
    engine.holds = 2
    shares = engine.turns(SLOTS, 2 * ROUNDS)
    assert near(shares) and shares[1] == 0.0
    assert engine.backend.calibration.found_less > 0
    assert (engine.backend.shadow.room or 0) < room
    engine.holds = SLOTS
    shares = engine.turns(SLOTS, 2 * ROUNDS)
    assert near(shares) and shares[1] > 0.7


def test_one_that_puts_away_is_believed_more(engine: Engine) -> None:
    """It keeps in its host's memory, or on disk, what its slots had to give up."""
    engine.holds = 4 * SLOTS
    if isinstance(engine.backend.shadow, BlockShadow):
        engine.backend.shadow.resize(SLOTS, TOKENS // 10)
    shares = engine.turns(3 * SLOTS, 2 * ROUNDS)
    assert near(shares) and shares[1] > 0.7
    assert engine.backend.calibration.found_more > 0
    if isinstance(engine.backend.shadow, PrefixShadow):
        assert engine.backend.shadow.room >= 3 * SLOTS


def test_a_restart_forgets_what_was_learnt(engine: Engine) -> None:
    """Another process has the room that it says, and nothing in it."""
    room = engine.backend.shadow.room
    engine.turns(SLOTS)
    engine.holds = 2
    engine.turns(SLOTS, 2 * ROUNDS)
    engine.restart()
    assert (engine.backend.shadow.room, len(engine.backend.shadow)) == (room, 0)
    assert engine.backend.service.cache_efficiency == 1.0
    engine.holds = SLOTS
    assert near(engine.turns(SLOTS))


def test_what_gave_way_has_a_bound() -> None:
    """A gateway that runs for months must not remember every conversation."""
    shadow, blocks = PrefixShadow(2), BlockShadow(1000)
    for number in range(300):
        chain = a_chain(*range(1000 * number, 1000 * number + 500))
        shadow.book(chain, 1000)
        shadow.ended(chain)
        blocks.book(chain, 1000)
    assert shadow._past_holders.links <= 20_000
    assert sum(len(one.chain) for one in shadow._past.values()) == shadow._past_holders.links
    assert len(blocks._past) <= 50_000
