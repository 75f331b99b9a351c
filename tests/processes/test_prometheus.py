"""What an operator sees: every panel's query and every alert, of a real Prometheus and a real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from grafana.files import texts
from tests.debian import needs
from tests.processes.asking import Reply, ask
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, chat, engine, gateway
from tests.processes.prometheus import prometheus, rules

pytestmark = needs("prometheus")

WINDOW = "2s"  # of what Grafana would put in place of $__rate_interval


def panel_queries(backend: str) -> set[str]:
    """All expressions of all dashboards, as Grafana would send them."""
    found = set()
    for text in texts().values():
        for panel in json.loads(text)["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", WINDOW)
                found.add(expression.replace("$model", ".*").replace("$backend", backend))
    return found


class Clients:
    """Clients that keep asking until they are told to stop; what they get is no matter here."""

    def __init__(self, front: Gateway) -> None:
        self._front = front
        self._serial = count()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep_asking(
        self, model: str, text: str = "{}", clients: int = 1, priority: str = "agent"
    ) -> asyncio.Task[None]:
        """One thing after another; `text` has a number where it says {}. Returns the last one's asking."""
        for _ in range(clients):
            asking = asyncio.create_task(self._loop(model, text, priority))
            self._tasks.add(asking)
        return asking

    def keep_talking(self, agent: str) -> None:
        """One conversation, whose system prompt tells another time at each turn."""
        self._tasks.add(asyncio.create_task(self._talk(agent)))

    async def asked(self, model: str, text: str = "{}", priority: str = "agent") -> Reply:
        """One question."""
        body = chat(text.format(next(self._serial))) | {"model": model}
        return await ask(self._front, body, [("X-Slotgate-Priority", priority)])

    async def _loop(self, model: str, text: str, priority: str) -> None:
        while True:
            await self.asked(model, text, priority)
            await asyncio.sleep(0.05)

    async def _talk(self, agent: str) -> None:
        said = [{"role": "user", "content": "Go on."}]
        headers = [("X-Slotgate-Agent", agent), ("X-Slotgate-Session", agent)]
        while True:
            clock = f"You are an agent. It is 2026-11-30T12:00:{len(said) % 60:02d}Z."
            messages = [{"role": "system", "content": clock}, *said]
            await ask(self._front, chat("") | {"messages": messages}, headers)
            said += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """They leave, whatever they wait for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


@asynccontextmanager
async def clients(front: Gateway) -> AsyncIterator[Clients]:
    """Clients that have left at the end."""
    asking = Clients(front)
    try:
        yield asking
    finally:
        await asking.stop()


async def test_every_panel_has_data() -> None:
    """One backend on which everything happens that an engine can do: speculation, a warm cache, reasoning,
    refusals, failures, long prompts at once, prompts that change from the beginning."""
    async with (
        engine(
            "llamacpp", slots=3, spec_accept=0.6, prefix_cache=True, tokens_per_event=2, prefill_tps=4000.0
        ) as one,
        gateway(
            {
                "backends": [{"name": "b", "url": one.url}],
                "prefix": {"agents": {"held": {"stabilise": "all"}}},
            }
        ) as front,
        prometheus(front.url.removeprefix("http://")) as server,
        clients(front) as asking,
    ):
        await becomes(front, "b", "ready")
        await one.script(times=3, status=500)  # in a row: the backend is left alone, though not for long
        for _ in range(3):
            await asking.asked("fake-model")
        await one.script(match="refused", status=503)
        await asking.asked("fake-model", "refused {}")
        await one.script(times=None, match="thinks", reasoning_tokens=3)
        asking.keep_asking("fake-model", "thinks " * 200 + "{}")
        asking.keep_asking("fake-model", priority="interactive")
        asking.keep_asking("fake-model", "word" * 6000 + "{}", clients=2, priority="batch")
        asking.keep_talking("unsteady")
        asking.keep_talking("held")
        await server.answered(panel_queries("b"), 60.0)


# How the engine of each fault is started; each serves a model of its own name.
ENGINES: dict[str, dict[str, Any]] = {
    "gone": {},
    "hangs": {},
    "slow": {"decode_tps": 20.0},
    "fails": {},
    "fickle": {},
    "drafts": {"spec_accept": 0.6},
    "caches": {"prefix_cache": True},
}
AT_ONCE = (  # alerts, and the backend or class that each is about
    "SlotgateBackendDown gone",
    "SlotgateNoProgress hangs",
    "SlotgateQueueStands batch",
    "SlotgateQueueWaitLong interactive",
    "SlotgateRequestsFail",
    "SlotgateEstimateWrong fickle",
    "SlotgateSpeculationLost drafts",
    "SlotgatePrefixBroken caches",
)
NO_BACKEND, UNREACHABLE = "SlotgateNoBackend", "SlotgateUnreachable"
TOLD = ("drafts", "caches")  # need an engine that tells of what it drafts and caches


async def test_every_alert_fires() -> None:
    """Each of them by a fault of its own, in the queries as they are; `for` how long they hold before, is a
    matter of `promtool test rules`."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = {
            name: await enter(engine("llamacpp" if name in TOLD else "openai", model=[name], **options))
            for name, options in ENGINES.items()
        }
        backends = [
            {"name": name, "url": one.url, "slots": one.options.get("slots", 1)}
            for name, one in engines.items()
        ]
        queue = {"unavailable_grace_seconds": 1}
        front = await enter(gateway({"backends": backends, "queue": queue}))
        server = await enter(prometheus(front.url.removeprefix("http://")))
        asking = await enter(clients(front))
        for name in ENGINES:
            await becomes(front, name, "ready")

        warm = asking.keep_asking("caches", "word" * 500 + "{}")
        drafting = asking.keep_asking("drafts")
        usual = 'count_over_time(backend:slotgate_prefix_hit_ratio:reported{backend="caches"}[6h]) > 20'
        await server.answered([usual, 'slotgate_spec_accept_ratio{backend="drafts"} > 0.5'], 30.0)

        warm.cancel()
        asking.keep_asking("caches", "{} " + "word" * 500)
        drafting.cancel()
        await engines["drafts"].restart(spec_accept=0.01)
        await engines["gone"].process.kill()
        await engines["hangs"].script(times=None, prefill_seconds=300.0)
        asking.keep_asking("hangs", clients=3, priority="batch")
        asking.keep_asking("slow", clients=4, priority="interactive")
        await engines["fails"].script(times=None, status=500)
        asking.keep_asking("fails", clients=2)
        await engines["fickle"].script(times=None, match="sooner", prefill_seconds=0.01)
        await engines["fickle"].script(times=None, match="later", prefill_seconds=0.3)
        asking.keep_asking("fickle", "sooner {}")
        asking.keep_asking("fickle", "later {}", clients=2)  # more than half, or the others alone are right
        await server.fired(AT_ONCE, 120.0)

        await asking.stop()
        for one in engines.values():
            await one.process.kill()
        await server.fired([NO_BACKEND], 30.0)
        await front.stop()
        await server.fired([UNREACHABLE], 10.0)


def test_no_alert_is_left_out() -> None:
    """A new one needs a fault of its own here."""
    named = {alert.partition(" ")[0] for alert in (*AT_ONCE, NO_BACKEND, UNREACHABLE)}
    assert named == {rule["alert"] for group in rules("alerts.yaml")["groups"] for rule in group["rules"]}
