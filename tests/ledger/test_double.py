"""The double of the ledger and the script in a real Redis give the same answers to the same steps."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from gateway.ledger.redis import SCRIPT
from tests.debian import needs
from tests.ledger.double import Double
from tests.ledger.server import redis_server

CLOCK = "redis.call('TIME')"  # the one line of the script that is not the steps' own
SEEDS, STEPS = 20, 60
URLS = ("http://a:1", "http://b:2", "http://c:3")


class Player:
    """Draws the steps of one gateway: sensible ones, late ones, doubled ones."""

    def __init__(self, dice: random.Random, owner: str) -> None:
        self.dice = dice
        self.owner = owner
        self.number = self.heard = 0
        self.epoch = ""
        self.numbers: list[tuple[int, str]] = []

    def step(self) -> dict[str, Any]:
        """The next one."""
        dice = self.dice
        self.number += dice.choice((1, 1, 1, 0, 2))
        urls = URLS[: dice.choice((1, 2, 3, 3))]
        places = range(1, len(urls) + 1)
        known = [one for one in self.numbers if one[0] in places]
        wanted = [(dice.choice(places), str(dice.randrange(40))) for _ in range(dice.randrange(3))]
        self.numbers += wanted
        return {
            "owner": self.owner,
            "number": self.number,
            "heard": max(0, self.heard - dice.randrange(2)) if dice.random() < 0.9 else self.number,
            "epoch": self.epoch if dice.random() < 0.95 else "another",
            "nonce": f"epoch-{self.owner}-{self.number}",
            "clock": dice.randrange(10, 13),
            "lease": 3000,
            "freeze": 1500,
            "claim": 1000,
            "lost": dice.choice((False, False, dice.randrange(10) - dice.choice((0, 300, 3000)))),
            "channel": "freed",
            "engines": [
                {
                    "url": url,
                    "slots": dice.randrange(-3, 4),
                    "ready": dice.random() < 0.7,
                    "came": dice.choice((False, dice.randrange(10))),
                }
                for url in urls
            ],
            "freed": dice.sample(known, min(len(known), dice.randrange(3))),
            "held": dice.sample(known, min(len(known), dice.randrange(4))),
            "wanted": [(place, number, dice.randrange(10), dice.randrange(4)) for place, number in wanted],
            "drains": [(place, dice.choice((False, "", "why"))) for place in places if dice.random() < 0.1],
            "known": [(place, "known") for place in places if dice.random() < 0.2],
            "full": dice.random() < 0.4,
            "bye": dice.random() < 0.03,
        }

    def hears(self, reply: dict[str, Any]) -> None:
        """What the ledger said."""
        if "epoch" in reply:
            self.epoch, self.heard = reply["epoch"], self.number


@needs("redis-server")
async def test_the_double_does_what_the_script_does() -> None:
    """Over sequences of random steps of three gateways, at random times, after losses of all data: the same
    replies, the same leases and as many hints; and all kinds of replies were among them."""
    assert SCRIPT.count(CLOCK) == 1
    script = SCRIPT.replace(CLOCK, "{ARGV[2], ARGV[3]}")
    kinds: Counter[str] = Counter()
    async with redis_server() as server, server.client() as client:
        evaluate = client.register_script(script)
        for seed in range(SEEDS):
            dice = random.Random(seed)
            await client.flushall()
            double, now, hints = Double(), 1_700_000_000_000, 0
            players = [Player(dice, owner) for owner in "pqr"]
            async with client.pubsub(ignore_subscribe_messages=True) as channel:
                await channel.subscribe("freed")
                for _ in range(STEPS):
                    now += dice.choice((0, 1, 10, 250, 700, 2000, -5000 if dice.random() < 0.1 else 0))
                    if dice.random() < 0.02:
                        double.clear()
                        await client.flushall()
                    player = dice.choice(players)
                    step = player.step()
                    keys = [
                        "{x}:epoch",
                        "{x}:gateways",
                        "{x}:drains",
                        *(f"{{x}}:{one['url']}" for one in step["engines"]),
                    ]
                    clock = [now // 1000, now % 1000 * 1000]
                    real = json.loads(await evaluate(keys=keys, args=[json.dumps(step), *clock]))
                    for name in ("had", "given", "engines"):  # an empty list has no type there
                        real[name] = real.get(name) or []
                    ours = json.loads(double.step(json.dumps(step), now))
                    assert {"had": [], "given": [], "engines": []} | ours == real, (seed, step)
                    player.hears(ours)
                    for url in URLS:
                        members = await client.zrange(f"{{x}}:{url}", 0, -1, withscores=True)
                        leases = {member.decode(): int(expiry) for member, expiry in members}
                        assert leases == double.leases.get(url, {}), (seed, step)
                    kinds.update(name for name in ("stale", "again") if ours.get(name))
                    kinds.update(f"given {one}" for one in ours.get("given", ()))
                    kinds.update(f"had {one}" for one in ours.get("had", ()))
                    kinds["tried"] += any(row[2] for row in ours.get("engines", ()))
                    kinds["ahead"] += any(row[3] for row in ours.get("engines", ()))
                    kinds["frozen"] += bool(ours.get("frozen"))
                await client.publish("freed", "last")
                while (message := await channel.get_message(timeout=5.0)) is None or message[
                    "data"
                ] != b"last":
                    hints += message is not None
            assert hints == double.hints, seed
            kinds["hints"] += hints
    assert all(
        kinds[kind] > 20
        for kind in (
            "stale",
            "again",
            "had 0",
            "had 1",
            "given 0",
            "given 1",
            "tried",
            "ahead",
            "frozen",
            "hints",
        )
    ), kinds
