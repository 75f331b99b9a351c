"""The ledger without Redis, for virtual time: what `step.lua` does, in Python.

`test_double.py` holds it against the script in a real Redis, step for step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Double:
    """One pool. A step goes in and comes out as text, as with the script."""

    epoch: tuple[str, int] | None = None  # its name, and when it thaws
    returned: tuple[int, int, bool] = (0, 0, False)  # when; regroup until; are any forgotten?
    said: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last word of each gateway
    leases: dict[str, dict[str, int]] = field(default_factory=dict)  # expiries by engine and member
    drains: dict[str, str] = field(default_factory=dict)  # why, by engine
    hints: int = 0  # published so far

    def clear(self) -> None:
        """Forget everything, as Redis does that starts empty."""
        self.epoch, self.returned = None, (0, 0, False)
        self.said.clear()
        self.leases.clear()
        self.drains.clear()

    def step(self, text: str, now: int) -> str:
        """Make one step at this millisecond; the reply."""
        step = json.loads(text)
        owner, engines = step["owner"], step["engines"]
        self.said = {one: word for one, word in self.said.items() if word["expires"] > now}
        mine = self.said.get(owner)
        others = {one: word for one, word in self.said.items() if one != owner}
        if mine and mine["number"] >= step["number"]:
            return json.dumps({"stale": True})
        if self.epoch is None:
            self.epoch = step["nonce"], now + step["freeze"]
        epoch, thaws = self.epoch
        new = now < thaws
        known = mine is not None and mine["number"] >= step["heard"] and step["epoch"] == epoch
        if not step["full"] and not known:
            return json.dumps({"again": True})
        heard = mine and (mine["at"] if mine["number"] == step["heard"] else mine["heard"])
        thaws = max(thaws, self.regroup_until(step, heard, list(others.values()), now))

        held: list[dict[str, int]] = []
        for engine in engines:
            leases = self.leases.setdefault(engine["url"], {})
            for member in [member for member, expiry in leases.items() if expiry <= now]:
                del leases[member]
            held.append(leases)
        freed = {
            place
            for place, number in step["freed"]
            if held[place - 1].pop(f"{owner}:{number}", None) is not None
        }

        def when(place: int, came: int) -> int:
            told = mine["engines"].get(engines[place]["url"]) if mine else None
            if told and told["came"] is not False and told["came"] == came:
                return int(told["since"])
            return int(now - (step["clock"] - came))

        since = [
            when(place, engine["came"]) if engine["came"] is not False else None
            for place, engine in enumerate(engines)
        ]
        words = {
            engine["url"]: {
                "slots": engine["slots"],
                "came": engine["came"],
                "since": first,
                "ready": engine["ready"],
            }
            for engine, first in zip(engines, since, strict=True)
        }
        word = {
            "number": step["number"],
            "at": now,
            "heard": heard,
            "expires": now + step["lease"],
            "engines": words,
        }
        if step["bye"]:
            self.said.pop(owner, None)
        else:
            self.said[owner] = word
        had = []
        if step["full"]:
            for place, number in step["held"]:
                had.append(int(f"{owner}:{number}" in held[place - 1]))
                held[place - 1][f"{owner}:{number}"] = now + step["lease"]
            if new:
                for place, why in step["known"]:
                    self.drains.setdefault(engines[place - 1]["url"], why)
        for place, why in step["drains"]:
            if why is False:
                self.drains.pop(engines[place - 1]["url"], None)
            else:
                self.drains[engines[place - 1]["url"]] = why

        def before(place: int, came: float) -> int:
            url, count = engines[place]["url"], 0
            for one, word in others.items():
                theirs = word["engines"].get(url, {}).get("since")
                lately = word["at"] > now - step["claim"]
                count += theirs is not None and lately and (theirs, one) < (came, owner)
            return count

        def slots(place: int, least: int) -> int:
            url = engines[place]["url"]
            told = [word["engines"].get(url, {}).get("slots", 0) for word in others.values()]
            return min([one for one in (*told, least) if one > 0], default=0)

        def tried(place: int) -> int:
            url = engines[place]["url"]
            told = [word["engines"].get(url, {}).get("slots", 0) for word in others.values()]
            return max([0, *(-one for one in told)])

        given = []
        for place, number, at, least in step["wanted"]:
            leases, own = held[place - 1], since[place - 1]
            came = when(place - 1, at) if own is None else min(own, when(place - 1, at))
            member = f"{owner}:{number}"
            free = now >= thaws and len(leases) + before(place - 1, came) < slots(place - 1, least)
            if free and member not in leases:
                leases[member] = now + step["lease"]
            given.append(int(member in leases))

        rows = []
        for place, engine in enumerate(engines):
            there = {
                one: word["engines"][engine["url"]]
                for one, word in others.items()
                if engine["url"] in word["engines"]
            }
            own = since[place]
            rows.append(
                [
                    len(held[place]),
                    slots(place, 0),
                    tried(place),
                    before(place, float("inf") if own is None else own),
                    1 + len(there),
                    sum(one < owner for one in there),
                    int(any(word["ready"] for word in there.values())),
                    self.drains.get(engine["url"], False),
                ]
            )
            if place + 1 in freed and before(place, float("inf")):
                self.hints += 1
        frozen = max(0, thaws - now)
        return json.dumps({"epoch": epoch, "frozen": frozen, "had": had, "given": given, "engines": rows})

    def regroup_until(
        self, step: dict[str, Any], heard: int | None, others: list[dict[str, Any]], now: int
    ) -> int:
        """Until when those that come back wait for each other; `heard`: when this one was told something."""

        def missing(time: int) -> int:
            return sum((word["heard"] or 0) <= time for word in others)

        returned, regroup_until, forgotten = self.returned
        if returned > now:
            returned, regroup_until = 0, 0
        if step["lost"] is not False:
            lost = now - (step["clock"] - step["lost"])
            nobody_heard = not heard and missing(lost) == len(others)
            if returned <= lost and (nobody_heard or missing(lost)):
                forgotten = nobody_heard or (forgotten and now < regroup_until)
                returned, regroup_until = now, now + step["freeze"]
                self.returned = returned, regroup_until, forgotten
        return regroup_until if forgotten or missing(returned) else 0
