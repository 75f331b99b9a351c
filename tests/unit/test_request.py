"""Reading a request body, editing it in place, and its chain of links."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidJson, InvalidRequest
from gateway.request import Request, parse
from gateway.routes.chat import Chat
from gateway.routes.completions import Completions
from policies.prompt_length import MEDIA_BYTES
from tests.fuzzing import examples

CHAT, COMPLETIONS = Chat(), Completions()

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Request:
    """A parsed chat request with these fields beside model and messages."""
    return parse(json.dumps({"model": "m", "messages": MESSAGES} | fields).encode(), CHAT)


# --- what is known of a body -----------------------------------------------------------------------------


def test_all_that_admission_needs_is_read() -> None:
    """Model, stream, usage, limit, tools, user and session come out of an ordinary agent's request."""
    request = chat(
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=65536,
        tools=[{"type": "function", "function": {"name": "terminal"}}],
        user="hermes",
        prompt_cache_key="conversation-1",
    )
    assert (request.model, request.stream, request.include_usage) == ("m", True, True)
    assert (request.output_tokens_max, request.has_tools) == (65536, True)
    assert (request.user, request.session) == ("hermes", "conversation-1")


def test_absent_fields_have_no_value() -> None:
    """A request with model and messages only streams nothing, limits nothing and names nobody."""
    request = chat()
    assert (request.stream, request.include_usage, request.has_tools) == (False, False, False)
    assert (request.output_tokens_max, request.user, request.session) == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": None}, None),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "7"}, None),
        ({"max_tokens": 7.0}, None),
        ({"max_tokens": 10**300}, None),
    ],
)
def test_output_limit(fields: dict[str, Any], limit: int | None) -> None:
    """The first limit that is a usable number counts; anything else is the engine's to judge."""
    assert chat(**fields).output_tokens_max == limit


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"prompt_cache_key": "a", "metadata": {"session_id": "b"}}, "a"),
        ({"prompt_cache_key": 5, "metadata": {"session_id": "b"}}, "b"),
        ({"prompt_cache_key": "", "metadata": {"x": 1, "session_id": "b"}}, "b"),
        ({"metadata": {"session_id": ["b"]}}, None),
        ({"metadata": {}}, None),
        ({"metadata": "session_id"}, None),
    ],
)
def test_session(fields: dict[str, Any], session: str | None) -> None:
    """The session is prompt_cache_key, else metadata.session_id, if a string."""
    assert chat(**fields).session == session


@pytest.mark.parametrize("ascii_only", [True, False])
def test_names_are_utf8(ascii_only: bool) -> None:
    """Model, user and session keep their characters, sent raw or escaped."""
    fields = {"model": "größe-模型-😀", "user": "zoë", "metadata": {"é": 0, "session_id": "séance"}}
    body = json.dumps({"messages": MESSAGES} | fields, ensure_ascii=ascii_only).encode()
    request = parse(body, CHAT)
    assert (request.model, request.user, request.session) == ("größe-模型-😀", "zoë", "séance")


def test_half_a_surrogate_pair_becomes_text() -> None:
    """A lone surrogate, which JSON allows, never reaches code that encodes names."""
    assert parse(b'{"model":"m\\ud800","messages":[1]}', CHAT).model == "m?"


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": MESSAGES}, "model"),
        ({"model": "", "messages": MESSAGES}, "model"),
        ({"model": None, "messages": MESSAGES}, "model"),
        ({"model": "m", "messages": MESSAGES, "stream": "true"}, "stream"),
        ({"model": "m", "messages": MESSAGES, "stream": 1}, "stream"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": "hi"}, "messages"),
        ({"model": "m", "messages": None}, "messages"),
    ],
)
def test_invalid_chat_requests_name_the_parameter(body: dict[str, Any], param: str) -> None:
    """What the gateway itself acts upon must be usable, and the error says what is not."""
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(body).encode(), CHAT)
    assert caught.value.param == param


def test_completions_need_a_prompt() -> None:
    """A completion without a prompt is refused, one with an empty prompt is the engine's to judge."""
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"model":"m"}', COMPLETIONS)
    assert caught.value.param == "prompt"
    assert parse(b'{"model":"m","prompt":""}', COMPLETIONS).model == "m"


@pytest.mark.parametrize("body", [b"[]", b'"model"', b"7", b"null", b" {} "])
def test_a_body_that_is_no_object_is_an_invalid_request(body: bytes) -> None:
    """JSON of another shape is told apart from what is no JSON."""
    with pytest.raises(InvalidRequest, match="object"):
        parse(body, CHAT)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"m","messages":[NaN]}', "NaN"),
        (b'{"model":"m","messages":[1],"x":-Infinity}', "-Infinity"),
        (b'{"model":"m","messages":[1]} tru', "Extra data"),
        (b'{"model":"m"}{"model":"m"}', "Extra data"),
        (b'{"model":"m",}', "byte 13"),
        (b'{"model":"m","messages":[1,]}', "byte 27"),
        (b"{'model':'m'}", "byte 1"),
        (b'{"model":"m\n"}', "control character"),
        (b'{"model":"\\x"}', "escape"),
        (b'{"model":"\xff"}', "byte 10"),
        ('{"model":"m"}'.encode("utf-16"), "UTF-8"),
        ('{"model":"m"}'.encode("utf-16-le"), "not JSON"),
        (b'{"model":"m","messages":' + b"[" * 100_000, "nested"),
        (b'{"model":' + b"[" * 100_000 + b"!", "nested"),
        (b'{"model":"m","seed":' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_what_is_not_json_is_told_in_a_sentence(body: bytes, words: str) -> None:
    """Each way of not being JSON in UTF-8 has its own words."""
    with pytest.raises(InvalidJson) as caught:
        parse(body, CHAT)
    assert words in caught.value.message


def test_every_beginning_of_a_body_is_an_incomplete_one() -> None:
    """A body that was cut off, at whichever byte, is called incomplete, not wrong."""
    body = (
        '{"model": "mö\\u00e9\\ud83d\\ude00\\n", "messages": [{"role": "user", "content": null}, true], '
        '"a": false, "b": -1.5e+10, "c": [], "d": {"e": {}}, "ü": "x"} '
    ).encode()
    assert parse(body, CHAT).model
    for size in range(len(body) - 1):
        with pytest.raises(InvalidJson, match="ended early") as caught:
            parse(body[:size], CHAT)
        assert str(size) in caught.value.message


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"model":"m","messages":[1],"model":"n"}', "model"),
        (b'{"model":"m","messages":[1],"max_tokens":1,"max\\u005ftokens":2}', "max_tokens"),
        ('{"model":"m","messages":[1],"é":1,"\\u00e9":2}'.encode(), "é"),
    ],
)
def test_a_key_that_stands_twice_is_refused(body: bytes, key: str) -> None:
    """Engines differ in which of two values they obey, so neither is chosen here."""
    with pytest.raises(InvalidRequest, match="twice") as caught:
        parse(body, CHAT)
    assert caught.value.param == key


def test_keys_that_only_look_alike_as_bytes_are_two() -> None:
    """A raw key and an escaped one are the same only if their characters are."""
    assert parse('{"model":"m","messages":[1],"é":1,"\\u00c3\\u00a9":2}'.encode(), CHAT).model == "m"


def test_a_byte_order_mark_is_not_sent_on() -> None:
    """The mark is tolerated from a client, and the engine gets the body without it."""
    body = b'{"model":"m","messages":[1]}'
    request = parse(b"\xef\xbb\xbf" + body, CHAT)
    assert request.body == body
    assert request.edited(model="n") == body.replace(b'"m"', b'"n"')


@examples(500)
@given(st.binary(max_size=200) | st.text('{}[]":,\\ \nutrefalsn0123-.model', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Whatever comes in, nothing but the two errors comes out."""
    for route in (CHAT, COMPLETIONS):
        with suppress(InvalidJson, InvalidRequest):
            assert parse(body, route).body in body


# --- edits -----------------------------------------------------------------------------------------------


@dataclass
class Rendered:
    """An object as text, member by member, so that an expected edit can be spelt out."""

    head: str
    members: dict[str, tuple[str, str, str]]  # key -> text before the value, the value, text behind it
    tail: str

    def text(self, values: dict[str, str] | None = None, insert: str = "") -> bytes:
        """The body; with other values, and with text put in directly behind the opening brace."""
        values = values or {}
        members = [a + values.get(key, value) + z for key, (a, value, z) in self.members.items()]
        return (self.head + insert + ",".join(members) + self.tail).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KNOWN = ("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens")


@st.composite
def bodies(draw: st.DrawFn) -> Rendered:
    """Chat requests in any order and spacing, with fields nobody knows."""
    dice = Random(draw(st.integers(0, 2**32)))

    def render(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ",".join(space() + render(item) + space() for item in value) + space() + "]"
        if isinstance(value, dict):
            members = (space() + render(k) + space() + ":" + space() + render(v) for k, v in value.items())
            return "{" + ",".join(members) + space() + "}"
        return json.dumps(value, ensure_ascii=dice.random() < 0.5)

    def space() -> str:
        return dice.choice(["", "", " ", "\n", "\t", "\r\n", "  "])

    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    fields: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {
                "model": text.filter(bool),
                "messages": st.lists(st.dictionaries(text, json_values, max_size=3), min_size=1, max_size=3),
            },
            optional={
                "stream": st.none() | st.booleans(),
                "stream_options": st.none()
                | st.dictionaries(
                    st.sampled_from(["include_usage", "continuous_usage_stats", "é"]),
                    st.booleans() | st.none(),
                ),
                "max_tokens": st.none() | st.integers(-1, 10**6),
                "max_completion_tokens": st.none() | st.integers(-1, 10**6),
                "tools": st.lists(json_values, max_size=2),
                "user": text,
                "metadata": json_values,
            },
        )
    )
    fields |= draw(st.dictionaries(text.filter(lambda key: key not in KNOWN), json_values, max_size=3))
    keys = draw(st.permutations(list(fields)))
    members = {
        key: (space() + render(key) + space() + ":" + space(), render(fields[key]), space()) for key in keys
    }
    return Rendered(space() + "{", members, "}" + space())


surrogate_free = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@examples(60)
@given(bodies(), surrogate_free)
def test_model_edit_replaces_its_value_only(body: Rendered, model: str) -> None:
    """An alias is mapped by putting another value in the place of the model's."""
    request = parse(body.text(), CHAT)
    value = body.members["model"][1] if model == request.model else json.dumps(model)
    assert request.edited(model=model) == body.text({"model": value})


@examples(60)
@given(bodies(), st.booleans())
def test_stream_edit_replaces_or_inserts_the_member(body: Rendered, stream: bool) -> None:
    """`stream` is replaced where it stands, or inserted behind the opening brace."""
    value = json.dumps(stream)
    if "stream" in body.members:
        expected = body.text({"stream": value})
    else:
        expected = body.text(insert=f'"stream":{value},')
    assert parse(body.text(), CHAT).edited(stream=stream) == expected


@examples(60)
@given(bodies(), st.integers(0, 10**6))
def test_limit_edit_goes_to_the_keys_the_client_used(body: Rendered, limit: int) -> None:
    """Every limit that the client gave gets the new value; without one, `max_tokens` is inserted."""
    given_keys = {"max_tokens", "max_completion_tokens"} & set(body.members)
    expected = (
        body.text(dict.fromkeys(given_keys, str(limit)))
        if given_keys
        else body.text(insert=f'"max_tokens":{limit},')
    )
    assert parse(body.text(), CHAT).edited(max_tokens=limit) == expected


@examples(60)
@given(bodies())
def test_usage_edit_adds_the_option_and_keeps_the_others(body: Rendered) -> None:
    """Usage is asked for beside the client's own stream options, and nothing around them moves."""
    original = body.text()
    edited = parse(original, CHAT).edited(include_usage=True)
    fields = json.loads(original)
    options = (fields.get("stream_options") or {}) | {"include_usage": True}
    assert json.loads(edited) == fields | {"stream_options": options}
    if "stream_options" in body.members:
        head, tail = body.text({"stream_options": "\0"}).split(b"\0")
        assert edited.startswith(head)
        assert edited.endswith(tail)
    else:
        assert edited == body.text(insert='"stream_options":{"include_usage":true},')


@examples(60)
@given(bodies(), surrogate_free, st.booleans(), st.integers(0, 10**6))
def test_edits_together_and_twice(body: Rendered, model: str, stream: bool, limit: int) -> None:
    """All edits at once change what they say, and applied again change nothing more."""
    original = body.text()
    once = parse(original, CHAT).edited(model=model, stream=stream, include_usage=True, max_tokens=limit)
    again = parse(once, CHAT)
    assert again.edited(model=model, stream=stream, include_usage=True, max_tokens=limit) is again.body
    fields, edited = json.loads(original), json.loads(once)
    changed = {key for key in edited if key not in fields or edited[key] != fields[key]}
    assert changed <= {"model", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
    assert (edited["model"], edited["stream"]) == (model, stream)


def test_no_edit_is_the_very_same_body() -> None:
    """Without an edit, or with one that changes nothing, no copy is made."""
    body = (
        b'{"model":"m","messages":[1],"stream":true,"stream_options":{"include_usage":true},"max_tokens":5}'
    )
    request = parse(body, CHAT)
    assert request.edited() is body
    assert request.edited(model="m", stream=True, include_usage=True, max_tokens=5) is body


@pytest.mark.parametrize("limit", ['"7"', "7.5", "true", "[]"])
def test_a_limit_of_a_wrong_type_is_left_to_the_engine(limit: str) -> None:
    """The engine refuses such a request; an edit must not turn it into a valid one."""
    body = b'{"model":"m","messages":[1],"max_tokens":%s}' % limit.encode()
    assert parse(body, CHAT).edited(max_tokens=5) is body


@pytest.mark.parametrize("options", ['"x"', "[]", "true"])
def test_stream_options_of_a_wrong_type_are_left_to_the_engine(options: str) -> None:
    """Likewise for stream options that are no object."""
    body = b'{"model":"m","messages":[1],"stream_options":%s}' % options.encode()
    assert parse(body, CHAT).edited(include_usage=True) is body


# --- the chain -------------------------------------------------------------------------------------------


def conversation() -> list[dict[str, Any]]:
    """Two turns in the shape in which Hermes sends them."""
    return [
        {"role": "system", "content": "You mend things.\n\nConversation started: Monday"},
        {"role": "user", "content": "Say hello using the terminal"},
        {
            "role": "assistant",
            "content": "I will run a command.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "terminal", "arguments": '{"command":"echo hello"}'},
                }
            ],
        },
        {"role": "tool", "name": "terminal", "content": '{"output": "hello"}', "tool_call_id": "call_1"},
        {"role": "assistant", "content": "It said hello."},
        {"role": "user", "content": "Again, päivää"},
    ]


def agent(messages: list[Any], tools: str = "terminal", model: str = "m", **how: Any) -> Request:
    """A request with keys in Hermes' order: tools stand last."""
    fields = {"messages": messages, "model": model, "max_tokens": 9, "stream": True, "tools": [tools]}
    return parse(json.dumps(fields, **how).encode(), CHAT)


def digests(request: Request) -> list[int]:
    return [link.digest for link in request.chain()]


def test_a_longer_conversation_begins_with_the_chain_of_the_shorter() -> None:
    """Each turn of an agent extends the chain of the turn before."""
    messages = conversation()
    longest = agent(messages).chain()
    for size in range(1, len(messages)):
        assert agent(messages[:size]).chain() == longest[: size + 1]
    assert len(set(longest)) == len(messages) + 1


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_the_name_of_a_tool_result_does_not_count(separators: tuple[str, str], place: int) -> None:
    """Hermes drops `name` from tool results when it resumes; wherever it stood, the chain is the same."""
    messages = conversation()
    name = messages[3].pop("name")
    without = agent(messages, separators=separators)
    members = list(messages[3].items())
    messages[3] = dict([*members[:place], ("name", name), *members[place:]])
    assert agent(messages, separators=separators).chain() == without.chain()


def test_the_name_of_another_message_counts() -> None:
    """Only in tool results is `name` left out: a user's name is rendered into the prompt."""
    messages = conversation()
    plain = digests(agent(messages))
    messages[1]["name"] = "zoë"
    assert digests(agent(messages))[:2] == plain[:2]
    assert digests(agent(messages))[2] != plain[2]


def test_a_change_breaks_the_chain_from_there_on() -> None:
    """Model and tools are behind all links, a message behind its own and those after it."""
    messages = conversation()
    plain = digests(agent(messages))
    for changed in (agent(messages, tools="other"), agent(messages, model="n")):
        assert not set(digests(changed)) & set(plain)
    messages[0] = {"role": "system", "content": "You mend things.\n\nConversation started: Tuesday"}
    assert digests(agent(messages))[0] == plain[0]
    assert not set(digests(agent(messages))[1:]) & set(plain)


def test_a_long_last_message_has_places_inside() -> None:
    """In order, between the link before it and its own; the next turn does not have them. A short message,
    an image, and a prompt without text have none."""
    messages = [*conversation()[:1], {"role": "user", "content": "päivää " * 1000}]
    request = agent(messages)
    chain = request.chain()
    places = request.inside(chain)
    ends = [chain[1].end_bytes, *(link.end_bytes for link in places), chain[2].end_bytes]
    assert len(places) > 20 and ends == sorted(set(ends))
    other = agent([messages[0], {"role": "user", "content": "päivää " * 1000 + "?"}])
    assert other.inside(other.chain())[: len(places) - 1] == places[:-1]
    assert agent([{"role": "user", "content": "Hi"}]).inside(chain) == request.inside(()) == ()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    pictured = agent([{"role": "user", "content": [image]}])
    assert pictured.inside(pictured.chain()) == ()


def test_links_end_where_the_prompt_does() -> None:
    """Sizes add up to tools and messages, and the last link ends the prompt."""
    messages = conversation()
    del messages[3]["name"]
    request = agent(messages)
    sizes = [len(json.dumps(["terminal"])), *(len(json.dumps(message)) for message in messages)]
    assert [link.end_bytes for link in request.chain()] == [sum(sizes[: n + 1]) for n in range(len(sizes))]
    assert request.prompt_bytes == sum(sizes) == request.chain()[-1].end_bytes


def test_an_inline_image_counts_for_a_fixed_size() -> None:
    """Screenshots are no millions of tokens, but two of them are still two prompts."""

    def picture(data: str) -> Request:
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
        sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        return chat(messages=[{"role": "user", "content": [part, {"type": "text", "text": "?"}, sound]}])

    one, other = picture("A" * 3_000_000), picture("B" * 3_000_000)
    assert 2 * MEDIA_BYTES < one.prompt_bytes < 2 * MEDIA_BYTES + 500
    assert digests(one)[-1] != digests(other)[-1]
    assert one.chain()[-1].end_bytes == one.prompt_bytes


@pytest.mark.parametrize(
    "message", [None, 7, "hi", [], {}, {"role": "tool"}, {"content": [None, {"a": "b"}]}]
)
def test_messages_of_any_shape_have_a_link(message: object) -> None:
    """What a message must be is the engine's business; the chain takes it as bytes."""
    assert len(chat(messages=[message]).chain()) == 2


def test_a_bare_prompt_has_a_link_per_block() -> None:
    """Completions whose prompts begin alike share links, though they have no messages."""

    def chain(prompt: object) -> list[int]:
        return digests(parse(json.dumps({"model": "m", "prompt": prompt}).encode(), COMPLETIONS))

    short, long = chain("a" * 3000), chain("a" * 5000)
    assert len(short) == 1 + 3
    assert short[:3] == long[:3]
    assert short[3] not in long
    assert len(chain(["a" * 3000])) == len(chain([1, 2, 3])) == 2
