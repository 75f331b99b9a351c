"""What the gateway does with a prompt that breaks its prefix: it counts, prices and shows it, or mends it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console, RenderableType

from gateway.accounting import Record
from gateway.admin.prefix import ADVICE, PrefixView, prefix_view
from gateway.cli.prefix_table import page
from gateway.client import Client
from gateway.dispatcher import Dispatcher, Slot
from gateway.engines.base import CHAT, COMPLETIONS, MESSAGES
from gateway.explanation import describe
from gateway.inflight import Inflight
from gateway.mender import Mender
from gateway.metrics import Metrics
from gateway.options import PrefixSettings
from gateway.prefixes import WARNINGS_MAX, Prefixes
from gateway.request import Request, parse
from gateway.routes import ROUTES
from policies.mending import ordered_tools
from policies.service_model import ServiceModel
from policies.types import Backend, Granted
from policies.volatility import Kind
from tests.unit.conversations import TOOLS, Body, body_of
from tests.unit.fleet import a_backend, a_call, an_admission
from tests.unit.test_metrics import meter, series
from tests.unit.wire import Wire

SERVICE = ServiceModel(setup_seconds=9.0, prefill_tokens_per_second=100.0)
ORDERED = json.loads(ordered_tools(json.dumps(TOOLS).encode())[0])
SECRET = "the launch code is xyzzy"


def fields(request: Request) -> dict[str, object]:
    """All that is known of it."""
    return {name: getattr(request, name) for name in Request.__slots__ if name != "mends"}


class Stage:
    """Prompts of agents that go out to one backend."""

    def __init__(self, settings: PrefixSettings | None = None) -> None:
        self.metrics: Metrics = meter()
        self.prefixes = Prefixes(self.metrics, lambda: 50.0)
        self.mender = Mender(settings or PrefixSettings(), self.prefixes)
        self.backend: Backend = a_backend()
        self.backend.service = SERVICE

    def send(self, body: Body, agent: str = "hermes", path: str = CHAT, **headers: str) -> Inflight:
        """A request, mended if so told, and sent."""
        record = Record("id", path, 0.0)
        record.agent = agent
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        request: Request = parse(json.dumps(body).encode(), ROUTES[path])
        if self.mender.works:
            request = self.mender.mended(request, agent, named)
            assert fields(request) == fields(parse(request.body, ROUTES[path]))
        live = Inflight(record, Client(Wire(), ROUTES[path], "id", 0.0), request, [], 9.0, explains=True)
        live.call = a_call(chain=request.chain(), prompt_tokens=request.prompt_bytes // 4)
        self.prefixes.look(live, live.call, self.backend)
        return live

    def shown(self) -> list[PrefixView]:
        """As the admin port shows it."""
        worst = self.prefixes.findings.worst()
        return [prefix_view(agent, finding, self.mender, 60.0) for agent, finding in worst]

    def count(self, name: str) -> dict[str, float]:
        """A counter by kind."""
        return {
            dict(labels)["kind"]: value
            for (found, labels), value in series(self.metrics).items()
            if found == name
        }


@pytest.fixture
async def stage() -> Stage:
    return Stage()


def prompt(minute: int, *more: str, words: int = 400) -> Body:
    """A turn of an agent that tells the time at the head of its system prompt."""
    system = f"It is 9:{minute:02}. {SECRET}. " + "Be careful. " * words
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate((SECRET, *more))]
    return body_of([{"role": "system", "content": system}, *said])


async def test_a_break_is_counted_priced_and_shown(stage: Stage) -> None:
    """Tokens by the prompt's own share of its bytes, seconds by the backend's curve behind what is shared."""
    first = stage.send(prompt(1))
    assert first.verdict is not None
    assert first.verdict.difference is None
    second = stage.send(prompt(2, "Done.", "Go on."))
    assert second.verdict is not None
    assert second.call is not None
    tokens = round(second.verdict.lost_bytes * second.call.prompt_tokens / second.call.chain[-1].end_bytes)
    assert tokens > 1000
    (view,) = stage.shown()
    (kind,) = view.kinds
    assert (view.agent, view.turns, view.breaks, view.tokens) == ("hermes", 2, 1, tokens)
    assert view.seconds == pytest.approx(tokens / 100, abs=0.01)
    assert (kind.kind, kind.path, kind.stabilise) == (Kind.TIME, "messages[0].content", "all")
    assert kind.offset == second.request.body.index(b"9:02") + 3
    assert stage.count("slotgate_prefix_breaks_total") == {"time": 1.0}


async def test_the_worst_agent_comes_first(stage: Stage) -> None:
    """By the seconds that it costs, not by how often it breaks."""
    for agent, words, turns in (("often", 10, 4), ("dear", 4000, 2), ("well", 10, 0)):
        for turn in range(turns):
            stage.send(prompt(turn, *["So.", "Go on."] * turn, words=words), agent)
        stage.send(prompt(0), agent)
    assert [view.agent for view in stage.shown()] == ["dear", "often", "well"]


async def test_warns_once_per_agent_and_kind(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """With path and byte; not a word of the prompt is in the log or in what is shown."""
    with caplog.at_level(logging.INFO):
        for agent in ("one", "two"):
            for turn in range(4):
                stage.send(prompt(turn, *["So.", "Go on."] * turn), agent)
    warnings = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "agent one" in warnings[0]
    assert "time at messages[0].content, byte " in warnings[0]
    told = "".join([*warnings, *(view.model_dump_json() for view in stage.shown())])
    assert not [word for word in ("launch", "xyzzy", "It is 9:0") if word in told]


async def test_warnings_have_an_end(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A client that takes a new name for each request fills neither disk nor memory."""
    for number in range(WARNINGS_MAX + 20):
        for turn in range(2):
            stage.send(prompt(turn, *["So.", "Go on."] * turn, words=200), f"agent-{number}")
    assert len(caplog.records) == WARNINGS_MAX
    assert len(stage.shown()) == 1000


async def test_one_request_is_compared_once(stage: Stage) -> None:
    """Sent again after an engine refused it, it is still the same turn."""
    live = stage.send(prompt(1))
    assert live.call is not None
    stage.prefixes.look(live, live.call, stage.backend)
    assert [view.turns for view in stage.shown()] == [1]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}, CHAT),
        ({"model": "m", "prompt": "Once upon a time " * 500}, COMPLETIONS),
    ],
    ids=["one message", "a text"],
)
async def test_what_is_no_conversation_is_not_compared(stage: Stage, body: Body, path: str) -> None:
    """It has no turn before, and costs nothing."""
    assert stage.send(body, path=path).verdict is None
    assert stage.shown() == []


async def test_a_defect_is_no_failure_of_the_request(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with the request's id."""
    live = stage.send(prompt(1))
    live.verdict = None
    del live.request.parts
    assert live.call is not None
    stage.prefixes.look(live, live.call, stage.backend)
    assert "request id could not be compared" in caplog.text


# -- the header ------------------------------------------------------------------------------------


async def test_the_header_tells_who_asks(stage: Stage) -> None:
    """Whether it continues the turn before or where it leaves it, and what is expected to be cached."""
    bodies = (prompt(1), prompt(1, "So.", "Go on."), prompt(2, "So.", "Go on.", "So.", "On."))
    turns = [stage.send(body) for body in bodies]
    told = [header(live, stage.backend) for live in turns]
    assert [line.partition(";")[0] for line in told] == ["append", "append", "break"]
    offset = turns[2].request.body.index(b"9:02") + 3
    assert told[2].startswith(f"break; kind=time; offset={offset}; path=messages[0].content; cached=")


def header(live: Inflight, backend: Backend, name: bytes = b"x-slotgate-prefix") -> str:
    """A header of the answer, "" if it has none."""
    assert live.call is not None
    admission = an_admission(backend)
    slot = Slot(Dispatcher(admission, lambda: 0.0), live.call)
    (decision,) = admission.submit(live.call, 0.0)
    assert isinstance(decision, Granted)
    slot.lease = decision.lease
    headers = dict(describe(slot, live, backend))
    admission.finish(live.call.id, 0.0)
    return headers.get(name, b"").decode()


# -- mending ---------------------------------------------------------------------------------------


def shuffled(turn: int, body: Body) -> Body:
    """Its tools in an order of this turn."""
    return body | {"tools": ORDERED[turn % 3 :] + ORDERED[: turn % 3]}


def agent_turns() -> Iterator[Body]:
    """Turns of an agent that tells the time and shuffles its tools."""
    for turn in range(5):
        yield shuffled(turn, prompt(turn, *["So.", "Go on."] * turn))


async def test_mends_nothing_unless_told(stage: Stage) -> None:
    """The body of a request is what came, and no header says otherwise."""
    assert not stage.mender.works
    for body in agent_turns():
        live = stage.send(body)
        assert live.request.body == json.dumps(body).encode()
        assert header(live, stage.backend, b"x-slotgate-stabilised") == ""
    assert stage.count("slotgate_prefix_mends_total") == {}
    assert stage.count("slotgate_prefix_breaks_total") == {"tool_order": 4.0}


async def test_tools_in_one_order() -> None:
    """Nothing else of the body is touched: the time still breaks the prefix."""
    stage = Stage(PrefixSettings(stabilise="tools"))
    for turn, body in enumerate(agent_turns()):
        live = stage.send(body)
        sent = json.loads(live.request.body)
        assert sent | {"tools": body["tools"]} == body
        assert sent["tools"] == ORDERED
        assert header(live, stage.backend, b"x-slotgate-stabilised") == ("tool_order" if turn % 3 else "")
    assert stage.count("slotgate_prefix_mends_total") == {"tool_order": 3.0}
    assert stage.count("slotgate_prefix_breaks_total") == {"time": 4.0}


async def test_heads_at_their_first_values() -> None:
    """All turns continue each other; what was changed is counted, shown, and told in a header."""
    stage = Stage(PrefixSettings(stabilise="all"))
    for turn, body in enumerate(agent_turns()):
        live = stage.send(body)
        sent = json.loads(live.request.body)
        assert sent["messages"][0]["content"] == prompt(0)["messages"][0]["content"]
        assert sent["messages"][1:] == body["messages"][1:]
        told = header(live, stage.backend, b"x-slotgate-stabilised")
        assert told == ", ".join(["time"] * (turn > 0) + ["tool_order"] * (turn % 3 > 0))
    assert stage.count("slotgate_prefix_breaks_total") == {}
    (view,) = stage.shown()
    assert (view.stabilise, view.held) == ("all", {"tool_order": 3, "time": 4})


async def test_what_is_known_of_a_body_moves_with_it() -> None:
    """Wherever its members stand, with parts that are cut and options behind it."""
    stage = Stage(PrefixSettings(stabilise="all"))
    for turn in range(4):
        said = prompt(9 + turn)["messages"]
        named = {"role": "tool", "tool_call_id": "c", "name": "search", "content": "Found."}
        tail = {"tools": ORDERED[::-1], "stream_options": {"include_usage": True}, "user": "me"}
        first = {"metadata": {"session_id": f"s{turn // 2}"}, "tools": ORDERED[::-1], "stream": True}
        for body in (
            {"model": "m", "messages": [*said, named]} | tail,
            first | {"model": "m", "messages": said},
        ):
            assert stage.send(body).request.mends
        blocks: Any = [{"type": "text", "text": f"It is 9:0{turn}.", "cache_control": {"type": "ephemeral"}}]
        system = {"system": blocks, "model": "m", "max_tokens": 9, "messages": prompt(1)["messages"][1:]}
        stage.send(system, path=MESSAGES)


async def test_bytes_that_are_not_mended_stay() -> None:
    """Spacing, unknown members and order of the rest of the body."""
    stage = Stage(PrefixSettings(stabilise="all", patterns=("mood [a-z]+",)))
    text = (
        '{ "x": 1.0,"messages":[ {"content" :"mood gay","role":"system"} , {"role":"user","content":"Hi"}],\n'
        '"model":"m" ,"y":[1 , 2]}'
    )
    bodies = [text, text.replace("gay", "sad")]
    sent = [stage.mender.mended(parse(body.encode(), ROUTES[CHAT]), "a", {}).body.decode() for body in bodies]
    assert sent == [bodies[0], bodies[0]]


async def test_a_defect_of_mending_mends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The request goes as it came, and the log has the place."""
    stage = Stage(PrefixSettings(stabilise="all"))
    request = parse(json.dumps(prompt(1)).encode(), ROUTES[CHAT])
    del request.parts
    assert stage.mender.mended(request, "a", {}) is request
    assert "a request could not be mended" in caplog.text


async def test_several_system_prompts_are_held_each() -> None:
    """One of the platform and one of its user, say."""
    stage = Stage(PrefixSettings(stabilise="all"))
    for turn in range(4):
        body = prompt(turn, *["So.", "Go on."] * turn)
        body["messages"].insert(1, {"role": "developer", "content": f"You have used {turn} steps."})
        live = stage.send(body)
        assert live.verdict is not None
        assert live.verdict.difference is None
        assert b"You have used 0 steps." in live.request.body


async def test_agents_may_be_told_otherwise() -> None:
    """Each by its name, with patterns of its own beside those of all."""
    agents: dict[str, Any] = {
        "wild": {"stabilise": "off"},
        "tidy": {"stabilise": "tools"},
        "moody": {"patterns": ["mood [a-z]+"]},
    }
    stage = Stage(PrefixSettings(stabilise="all", agents=agents))
    modes = [stage.mender.mode(name) for name in (*agents, "other")]
    assert modes == ["off", "tools", "all", "all"]
    for agent in (*agents, "other"):
        for turn, mood in enumerate(("gay", "sad")):
            body = prompt(turn, *["So.", "Go on."] * turn)
            body["messages"][0]["content"] += f" mood {mood}"
            stage.send(body, agent)
    breaks = {view.agent: view.breaks for view in stage.shown()}
    assert breaks == {"wild": 1, "tidy": 1, "moody": 0, "other": 1}


async def test_other_settings_count_from_the_next_request_on() -> None:
    """Conversations that are held stay so under the same patterns; what is taken back holds nothing."""
    stage = Stage(PrefixSettings(stabilise="all"))

    def turn(number: int) -> bytes:
        body = prompt(number, *["So.", "Go on."] * number)
        return bytes(json.loads(stage.send(body).request.body)["messages"][0]["content"], "ascii")[:60]

    first = turn(0)
    tidy: dict[str, Any] = {"x": {"stabilise": "tools"}}
    stage.mender.follow(PrefixSettings(stabilise="all", agents=tidy))
    assert turn(1) == turn(2) == first
    assert (stage.mender.mode("hermes"), stage.mender.mode("x")) == ("all", "tools")
    stage.mender.follow(PrefixSettings())
    assert turn(3) != first
    assert not stage.mender.works
    stage.mender.follow(PrefixSettings(stabilise="all", patterns=("mood [a-z]+",)))
    assert turn(4) == turn(5)


async def test_a_session_that_the_client_names_is_its_own() -> None:
    """The same words in two of them do not share an identifier."""
    stage = Stage(PrefixSettings(stabilise="all"))
    for session in ("a81kq7zp", "x9c2m4bd"):
        body = prompt(1)
        body["messages"][0]["content"] += f" Session {session}."
        live = stage.send(body, x_session_id=session)
        assert f"Session {session}." in live.request.body.decode()


# -- the table ---------------------------------------------------------------------------------------


async def test_the_table_says_what_to_change(stage: Stage) -> None:
    """One line for each agent and kind, names as text; and how many are well."""
    for turn in range(2):
        stage.send(prompt(turn, *["So.", "Go on."] * turn), "[bold]x")
        stage.send(prompt(0, *["So.", "Go on."] * turn), "well")
    found = [view.model_dump(mode="json") for view in stage.shown()]
    text = shown(page(found, 20))
    (line,) = [line for line in text.splitlines() if "[bold]x" in line]
    for part in ("time", "messages[0].content, byte ", ADVICE[Kind.TIME], "[all]"):
        assert part in line
    assert "turns compared: 4; agents: 2, of which 1 break no prefix" in text
    assert "and 1 more agents" in shown(page([*found, *found], 1))
    assert shown(page([], 20)).startswith("no turns compared yet")


def shown(what: RenderableType) -> str:
    """As it is printed."""
    out = io.StringIO()
    Console(file=out, width=250).print(what)
    return out.getvalue()


def test_every_kind_has_advice() -> None:
    """None is only named."""
    assert set(ADVICE) == set(Kind)
