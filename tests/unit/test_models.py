"""What clients are told of models and aliases, each by what its key may use."""

from __future__ import annotations

import logging

import pytest

from gateway.auth import OPEN, Key
from gateway.errors import ModelNotFound
from gateway.models import Models
from gateway.options import AliasSettings
from policies.types import Backend, State, StateChanged
from tests.unit.fleet import a_backend, an_admission

AGENT = Key("team", models=frozenset({"agent"}))


def an_alias(*targets: str, **fields: object) -> AliasSettings:
    return AliasSettings.model_validate({"targets": targets} | fields)


def the_models(*backends: Backend, **aliases: AliasSettings) -> Models:
    return Models(aliases, an_admission(*backends))


def of(name: str, *models: str, context: int | None = None, **fields: object) -> Backend:
    return a_backend(name, **({"models": frozenset(models), "context_tokens": context} | fields))


def contexts(models: Models, key: Key = OPEN) -> dict[str, int | None]:
    """The context of each listed model, under both names that agents look for."""
    listed = models.listed(key)
    assert listed["object"] == "list"
    for one in listed["data"]:
        assert one.get("context_length") == one.get("max_model_len")
        assert models.one(one["id"], key) == one
    return {one["id"]: one.get("context_length") for one in listed["data"]}


def test_lists_what_backends_serve_and_aliases() -> None:
    """Each name once, in order, with the smallest slot that serves it; an unknown size is not told."""
    models = the_models(
        of("one", "a", "b", context=8192),
        of("two", "a", context=4096),
        of("three", "c"),
        agent=an_alias("b"),
        other=an_alias("c"),
    )
    assert contexts(models) == {"a": 4096, "agent": 8192, "b": 8192, "c": None, "other": None}
    assert models.one("a", OPEN) == {
        "id": "a",
        "object": "model",
        "created": 0,
        "owned_by": "slotgate",
        "context_length": 4096,
        "max_model_len": 4096,
    }


@pytest.mark.parametrize(
    ("advertised", "expected"), [("smallest", 4096), ("largest", 32768), (64_000, 64_000)]
)
def test_advertises_as_the_operator_chose(advertised: object, expected: int) -> None:
    """Of all slots that may serve the alias: targets', fallbacks' and backups'."""
    models = the_models(
        of("target", "t", context=8192),
        of("backup", "t", context=32768, backup=True),
        of("fallback", "f", context=4096, state=State.DOWN),
        of("stranger", "s", context=1),
        of("unknown", "t"),
        agent=an_alias("t", fallbacks=["f"], advertise_context=advertised),
    )
    assert contexts(models)["agent"] == expected


def test_a_number_is_told_while_nothing_is_known() -> None:
    """Engines that start have not told their context yet, and agents ask once."""
    models = the_models(of("one", "t"), agent=an_alias("t", advertise_context=64_000), bare=an_alias("t"))
    assert contexts(models) == {"agent": 64_000, "bare": None, "t": None}


def test_no_more_is_promised_than_the_engine_holds_in_all() -> None:
    """A token budget below the context of a slot bounds each request."""
    assert contexts(the_models(of("one", "t", context=8192, kv_tokens=6000))) == {"t": 6000}


def test_an_alias_is_listed_while_it_may_be_served() -> None:
    """By a fallback alone, too, or by a backend that has not told its models; else it would be refused."""
    agent = an_alias("t", fallbacks=["f"])
    assert contexts(the_models(of("one", "x"), agent=agent)) == {"x": None}
    assert contexts(the_models(of("one", "f"), agent=agent)) == {"agent": None, "f": None}
    starting = a_backend("starting", models=None, state=State.STARTING)
    assert contexts(the_models(of("one", "x"), starting, agent=agent)) == {"agent": None, "x": None}
    assert contexts(the_models(agent=agent)) == {}


def test_a_key_sees_what_it_may_use() -> None:
    """One for an alias need not name its targets, and does not learn of them."""
    models = the_models(of("one", "t", "x", context=4096), agent=an_alias("t"))
    assert contexts(models, AGENT) == {"agent": 4096}
    assert models.names(AGENT) == ("agent",)
    for hidden in ("t", "x", "nobody's"):
        with pytest.raises(ModelNotFound) as refused:
            models.one(hidden, AGENT)
        assert refused.value.models == ("agent",)
    assert contexts(models, Key("other", models=frozenset({"t"}))) == {"t": 4096}


def test_an_alias_hides_a_model_of_its_name_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Engines tell their models when the configuration was read long ago: the alias stands."""
    admission = an_admission(of("one"), of("two", "t", context=4096))
    models = Models({"agent": an_alias("t")}, admission)
    with caplog.at_level(logging.WARNING):
        for name in ("one", "two"):
            models.look(StateChanged(name, State.READY, ""))
        assert not caplog.messages
        admission.serve_models("one", ["agent", "x"], 0.0)
        for _ in range(3):
            models.look(StateChanged("one", State.READY, ""))
    (message,) = caplog.messages
    assert message == (
        "one serves a model 'agent', which is also an alias: requests for it go to the alias's targets (t); "
        "give the alias another name"
    )
    assert contexts(models) == {"agent": 4096, "t": 4096, "x": None}
    alias = models.alias("agent")
    assert alias is not None and alias.targets == ("t",) and models.alias("t") is None
