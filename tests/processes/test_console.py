"""The live page in a real browser: what it shows under load, what its buttons do, what it survives."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Locator

from tests.debian import needs
from tests.processes.asking import CHAT, ask
from tests.processes.chromium import Tab, browser, tab
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Gateway, RawClient, chat, engine, gateway, until

pytestmark = needs("chromium")

LONG = "the-one-who-reports-every-night-" * 4
HOSTILE = "<img src=x onerror=alert(1)>"
SLOTS = 4
CLIENTS = 7
TOKEN = "let-me-in"
OFFLINE = "Failed to load resource: net::ERR_"  # the browser's own words while no gateway listens


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as one:
        yield one


@asynccontextmanager
async def busy(clock: str = "", **options: object) -> AsyncIterator[tuple[Gateway, list[RawClient]]]:
    """An engine whose slots are all taken for long: streams that decode, prompts that are read, a queue."""
    defaults = {"slots": SLOTS, "prefill_tps": 200.0, "decode_tps": 20.0, "tokens": 4000}
    async with (
        engine("llamacpp", **(defaults | options)) as one,
        gateway(configured(one, routing={"interactive_reserve_slots": 0})) as front,
    ):
        await becomes(front, "b0", "ready")
        if clock:
            await clockwork(front, clock)
        clients = []
        for number in range(CLIENTS):
            client = await RawClient.connect(front.url)
            clients.append(client)
            prompt = "a short one" if number < SLOTS - 1 else "the river runs past the mill " * 700
            who = HOSTILE if number == 0 else f"agent-{number}"
            await client.post(CHAT, chat(prompt), [("X-Slotgate-Agent", who)])
            if number < SLOTS - 1:
                await client.head()
                await client.first_token()
        try:
            yield front, clients
        finally:
            for client in clients:
                client.close()


async def clockwork(front: Gateway, agent: str) -> None:
    """A conversation whose system prompt tells the time, so that each turn breaks the prefix."""
    said: list[dict[str, str]] = []
    for turn in range(3):
        said.append({"role": "user", "content": f"Is it late? ({turn})"})
        system = {
            "role": "system",
            "content": f"You keep the house. It is 15:0{turn}:07. " + "Be kind. " * 40,
        }
        reply = await ask(
            front, chat("", messages=[system, *said], max_tokens=1), [("X-Slotgate-Agent", agent)]
        )
        assert reply.head.status == 200
        said.append({"role": "assistant", "content": "Hm."})


async def words(tab: Tab, selector: str) -> list[str]:
    """The words of all elements there."""
    return [" ".join(one.split()) for one in await tab.page.locator(selector).all_inner_texts()]


async def shows(tab: Tab, selector: str, pattern: str) -> None:
    """Wait until the words of some element there match."""

    async def so() -> bool:
        return any(re.search(pattern, one) for one in await words(tab, selector))

    try:
        await until(so, f"{pattern!r} at {selector}")
    except AssertionError as missing:
        missing.add_note(f"there is {await words(tab, selector)}; complaints: {tab.complaints}")
        raise


# -- what it shows --------------------------------------------------------------------------------------


async def test_it_shows_slots_queue_lines_and_agents_under_load(chromium: Browser) -> None:
    """Each slot with agent, class, phase and age; why the others wait; nothing from elsewhere."""
    async with busy() as (front, _), tab(chromium, f"{front.admin}/console") as page:
        await shows(page, ".slot[data-phase=decode]", r"^agent-1 \d+ s \d+ tok · \d+(\.\d)?/s interactive$")
        await shows(page, ".slot[data-phase=prefill]", r"^agent-3 \d+ s reads \d+ % of [\d.]+k agent$")
        await shows(
            page, "#queue tr", r"^1 agent-4 agent fake-model [\d.]+k \d+ s [\d.:]+ (s|min) no free slot: b0$"
        )
        await shows(page, "#now-slots", f"^{SLOTS} of {SLOTS}$")
        await shows(page, "#now-waiting", f"^{CLIENTS - SLOTS}$")
        await shows(page, ".backend .state", "^ready$")
        await shows(page, "#ttft-chart .legend", r"median [\d.]+ s")
        await shows(page, "#rate-chart .legend", r"b0 [1-9]")
        assert re.fullmatch(r"M.+", await page.page.locator("#rate-chart path.line").get_attribute("d") or "")
        assert await page.page.locator(".slot").count() == SLOTS
        assert all(url.startswith(front.admin) for url in page.asked), page.asked
        assert page.complaints == []


async def test_progress_moves(chromium: Browser) -> None:
    """A prompt's share grows as it is read."""
    async with busy() as (front, _), tab(chromium, f"{front.admin}/console") as page:
        await page.see(".slot[data-phase=prefill]", "%")

        async def read() -> int:
            found = re.search(r"(\d+) %", (await words(page, ".slot[data-phase=prefill] .doing"))[0])
            return int(found[1]) if found else 0

        first = await read()
        await until(lambda: grown(read, first), "progress")
        assert page.complaints == []


async def grown(read: Callable[[], Awaitable[int]], first: int) -> bool:
    """Whether more has been read by now."""
    return await read() > first


async def test_requests_stay_where_they_are(chromium: Browser) -> None:
    """One that ends leaves its place to the next; the others do not move."""
    async with busy() as (front, clients), tab(chromium, f"{front.admin}/console") as page:
        await page.see(".slot .agent", "agent-3")
        before = await words(page, ".slot .agent")
        assert sorted(before) == sorted([HOSTILE, *(f"agent-{number}" for number in range(1, SLOTS))])
        place = before.index("agent-1")
        clients.pop(1).close()

        async def left() -> bool:
            return (await words(page, ".slot .agent"))[place] in ("free", "agent-4")

        await until(left, "a place that was left")
        after = await words(page, ".slot .agent")
        assert [*after[:place], *after[place + 1 :]] == [*before[:place], *before[place + 1 :]]
        assert page.complaints == []


async def test_what_clients_name_themselves_is_text(chromium: Browser) -> None:
    """Markup in a name is shown as it was sent; the page has no element of it."""
    async with busy() as (front, _), tab(chromium, f"{front.admin}/console") as page:
        await page.see(".slot .agent", HOSTILE)
        assert await page.page.locator("main img").count() == 0
        assert page.complaints == []


async def test_it_names_the_agents_that_break_their_prefixes(chromium: Browser) -> None:
    """What breaks them, where, what it costs and what to change; markup in a name is text."""
    async with engine(slots=2, tokens=1) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await clockwork(front, HOSTILE)
        async with tab(chromium, f"{front.admin}/console") as page:
            await shows(
                page,
                "#breaking li",
                rf"^{re.escape(HOSTILE)} time in messages\[0\].content, byte \d+ "
                r"\d+ tok read again, [\d.]+ s 2 of 3 turns\. Leave the time out",
            )
            assert not await page.page.locator("#no-breaking").is_visible()
            assert await words(page, "#breaking-note") == [""]
            assert page.complaints == []


async def test_an_idle_gateway_says_so(chromium: Browser) -> None:
    """Free slots, nobody waiting, lines at zero: no figure is made up."""
    async with engine(slots=2) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        async with tab(chromium, f"{front.admin}/console") as page:
            await shows(page, "#now-waiting-note", "^nobody$")
            await shows(page, "#no-queue", "^Nobody waits.$")
            await shows(page, "#no-breaking", "^No prompt has broken one yet.$")
            await shows(page, "#now-ttft", "^\u2013$")
            assert await words(page, ".slot") == ["free", "free"]
            assert page.complaints == []


# -- what it does ---------------------------------------------------------------------------------------


async def test_a_click_drains_and_another_resumes(chromium: Browser) -> None:
    """The change is shown where it happened and in the list of changes."""
    async with engine(slots=2) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        async with tab(chromium, f"{front.admin}/console") as page:
            await page.page.get_by_role("button", name="Drain b0").click()
            await becomes(front, "b0", "drained")
            await shows(page, ".backend .state", "^drained$")
            await shows(page, "#changes", "b0 drained")
            await shows(page, "#gateway", "^no backend is ready: b0 drained$")
            await page.page.get_by_role("button", name="Resume b0").click()
            await becomes(front, "b0", "ready")
            await shows(page, "#changes", "b0 ready")
            assert page.complaints == []


async def test_all_of_it_is_done_by_keyboard(chromium: Browser) -> None:
    """Tab reaches the skip link, then each control; Enter steers; the focus stays where it was."""
    async with busy() as (front, _), tab(chromium, f"{front.admin}/console") as page:
        await page.see("button", "Drain")
        press = page.page.keyboard.press

        async def focused() -> str:
            return str(await page.page.evaluate("document.activeElement.textContent.trim()"))

        await press("Tab")
        assert await focused() == "Skip to the backends"
        await press("Enter")
        await press("Tab")
        assert await focused() == "Drain"
        await press("Enter")
        await becomes(front, "b0", "draining")
        await page.see("button", "Resume")
        assert await focused() == "Resume"
        await press("Tab")
        assert await page.page.evaluate("document.activeElement.id") == "queue-scroll"
        await press("Shift+Tab")
        await press("Enter")
        await becomes(front, "b0", "warming")  # until a slot is free to warm up in
        await page.see("button", "Drain")
        assert await focused() == "Drain"
        assert page.complaints == []


async def test_a_button_says_what_went_wrong(chromium: Browser) -> None:
    """A gateway that does not answer is told beside what was wanted."""
    async with engine(slots=2) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        async with tab(chromium, f"{front.admin}/console") as page:
            await page.see("button", "Drain")
            await front.stop()
            await page.page.get_by_role("button", name="Drain b0").click()
            await shows(page, "#fault", "^b0 could not be drained: the gateway did not answer.$")


# -- what it survives -----------------------------------------------------------------------------------


async def test_it_survives_a_restart_of_the_gateway(chromium: Browser) -> None:
    """The loss is shown, with its time; then all is live again, and the lines of before are still there."""
    async with engine(slots=2, tokens=200) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        assert (await ask(front, chat("before"))).head.status == 200
        async with tab(chromium, f"{front.admin}/console") as page:
            line = page.page.locator("#rate-chart path.line")
            await until(lambda: has_a_peak(line), "a line")
            await front.stop()
            await shows(page, "#connection", r"^connection lost \d+ s ago: the gateway .+; trying again$")
            before = await line.get_attribute("d")
            front.process.start()
            await shows(page, "#connection", "^live$")
            await shows(page, ".backend .state", "^ready$")
            await until(lambda: differs(line, before), "lines of the new process")
            assert await has_a_peak(line)
            assert [words for words in page.complaints if not words.startswith(OFFLINE)] == []


async def has_a_peak(line: Locator) -> bool:
    """Whether the line leaves the ground anywhere."""
    heights = re.findall(r"[ML][\d.]+ ([\d.]+)", await line.get_attribute("d") or "")
    return any(float(height) < 140 for height in heights)


async def differs(line: Locator, before: str | None) -> bool:
    """Whether it has been drawn anew."""
    return await line.get_attribute("d") != before


async def test_a_gateway_that_hangs_is_a_lost_connection(chromium: Browser) -> None:
    """Nothing is closed, nothing comes: after some seconds of silence the page says so, and recovers."""
    async with engine(slots=2) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        async with tab(chromium, f"{front.admin}/console") as page:
            await shows(page, "#connection", "^live$")
            front.process.signal(signal.SIGSTOP)
            try:
                await shows(page, "#connection", "^connection lost .+: the gateway is silent; trying again$")
            finally:
                front.process.signal(signal.SIGCONT)
            await shows(page, "#connection", "^live$")


async def test_the_token_is_asked_once(chromium: Browser) -> None:
    """Without it nothing is shown; a wrong one is told; the right one serves until the tab is closed."""
    async with (
        engine(slots=2) as one,
        gateway(configured(one, server={"admin_token": TOKEN})) as front,
        tab(chromium, f"{front.admin}/console") as page,
    ):
        field = page.page.get_by_label("Operator's token")
        await field.wait_for()
        assert not await page.page.locator("main").is_visible()
        await field.fill("wrong")
        await field.press("Enter")
        await shows(page, "#door-fault", "^This is not the token.$")
        await field.fill(TOKEN)
        await field.press("Enter")
        await shows(page, ".backend h3", "^b0$")
        await page.page.get_by_role("button", name="Drain b0").click()
        await shows(page, ".backend .state", "^drained$")
        await page.page.reload()
        await shows(page, ".backend h3", "^b0$")
        assert not await field.is_visible()
        assert TOKEN not in " ".join(page.asked)
        refused = "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
        assert page.complaints == [refused, refused]


# -- where it is looked at --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 390, 768])
async def test_nothing_is_cut_off_on_a_phone(chromium: Browser, width: int) -> None:
    """No sideways scroll, and buttons that a thumb can hit, with names of any length."""
    async with (
        busy(clock=LONG) as (front, _),
        tab(chromium, f"{front.admin}/console", width, 800, phone=True) as page,
    ):
        await page.see("#breaking", LONG)
        await page.see(".slot[data-phase=prefill]", "agent-3")
        await page.see("#queue", "agent-4")
        assert await page.page.evaluate("document.documentElement.scrollWidth") == width
        box = await page.page.get_by_role("button", name="Drain b0").bounding_box()
        assert box is not None
        assert box["height"] >= (40 if width < 640 else 30)
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("dark", [False, True])
async def test_it_can_be_read_by_day_and_by_night(chromium: Browser, dark: bool) -> None:
    """It follows the system; each text stands out from what is behind it, as WCAG's AA wants: 4.5 to 1."""
    async with (
        busy(clock=LONG) as (front, _),
        tab(chromium, f"{front.admin}/console", dark=dark) as page,
    ):
        await page.see("#breaking", LONG)
        await page.see(".slot[data-phase=prefill]", "agent-3")
        await page.see("#queue", "agent-4")
        ground = await page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 300) is dark
        assert await page.page.evaluate(CONTRASTS) == []


# Texts whose contrast is too low, as [words, ratio].
CONTRASTS = """
() => {
  const parts = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => parts(colour).slice(0, 3).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (parts(colour)[3] === 255) return colour;
    }
  };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const texts = [...node.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE);
    const words = texts.map((one) => one.data.trim()).join("");
    if (!words || !node.checkVisibility() || node.closest(".skip")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([words, ratio]);
  }
  return low;
}
"""
