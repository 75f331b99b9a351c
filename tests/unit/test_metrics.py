"""What Prometheus reads: names, labels, bounds on series, and figures that are true."""

from __future__ import annotations

import math
import random
import threading
import timeit
from collections.abc import Callable, Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.accounting import Record, TokenSource
from gateway.api import exposition
from gateway.families import SECONDS, table
from gateway.metrics import MODELS_MAX, Metrics
from policies.admission import Admission
from policies.prefix import PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Limits, Priority, State

Labels = dict[str, str]
KINDS = ("predicted", "observed")


def fleet(models: Iterable[str] = ("m",)) -> Admission:
    """One ready backend with three slots."""
    admission = Admission(Limits())
    admission.add(
        Backend(
            name="spark",
            service=ServiceModel(),
            shadow=PrefixShadow(3),
            state=State.READY,
            slots=3,
            models=frozenset(models),
            routes=frozenset({"/v1/chat/completions"}),
        ),
        0.0,
    )
    return admission


def meter(admission: Admission | None = None, running: Iterable[Record] = (), now: float = 30.0) -> Metrics:
    """Metrics with a registry of their own and a clock that stands still."""
    return Metrics(admission or fleet(), "0.1.0", running=lambda: running, clock=lambda: now)


def record(**given: object) -> Record:
    """A streamed request: arrived at 1 s, dispatched at 4 s, tokens from 10 s to 20 s."""
    plain = Record(id="r", route="/v1/chat/completions", arrived=1.0)
    for name, value in {
        "model": "m",
        "backend": "spark",
        "priority": Priority.AGENT,
        "streamed": True,
        "dispatched": 4.0,
        "first_token": 10.0,
        "last_token": 20.0,
        "ended": 21.0,
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 101,
        "prompt_tokens_estimated": 900,
        "cached_tokens_predicted": 450,
        "source": TokenSource.REPORTED,
        "events": 50,
        "answer_bytes": 12000,
        "outcome": "completed",
        **given,
    }.items():
        setattr(plain, name, value)
    return plain


def series(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every series of a scrape, as Prometheus's own parser reads it."""
    text = metrics.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One series of a scrape; None if it is not there. `class_` stands for class."""
    wanted = frozenset((key.rstrip("_"), label) for key, label in labels.items())
    return series(metrics).get((f"slotgate_{name}", wanted))


def test_the_scrape_has_the_metrics_of_the_table_and_no_others() -> None:
    """Each family is there from the start with its help, and every label is declared."""
    metrics = meter()
    metrics.observe(record(reasoning_tokens=5, spec_drafted=10, spec_accepted=5, prepare_seconds=0.0001))
    metrics.retry("connect")
    declared = {name: (set(labels), help) for name, labels, help in table()}
    text = metrics.render().decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    named = {name.removesuffix("_total"): given for name, given in declared.items()}
    assert set(families) == set(named)
    for name, family in families.items():
        labels, help = named[name]
        assert family.documentation == help
        assert all(set(sample.labels) - {"le"} == labels for sample in family.samples)
    assert all(f"# HELP {name} " in text for name in declared)
    assert "_created" not in text


def test_the_error_of_predictions_is_told_once_there_is_one() -> None:
    """It is the health of all that is learnt; a backend of which nothing was predicted has none."""
    admission = fleet()
    metrics = meter(admission)
    assert value(metrics, "predicted_ttft_error_ratio", backend="spark") is None
    admission.backends["spark"].calibration.predicted(3.0, 2.0)
    assert value(metrics, "predicted_ttft_error_ratio", backend="spark") == 0.5


def test_predictions_stand_beside_what_came() -> None:
    """As sums with their count, so that means over any time can be compared."""
    admission = fleet()
    metrics = meter(admission)
    assert value(metrics, "prefill_seconds_count", backend="spark", kind="observed") == 0
    admission.backends["spark"].calibration.predicted(3.0, 2.0)
    admission.backends["spark"].calibration.predicted(4.0, 4.5)
    sums = {kind: value(metrics, "prefill_seconds_sum", backend="spark", kind=kind) for kind in KINDS}
    assert sums == {"predicted": 7.0, "observed": 6.5}
    assert {value(metrics, "prefill_seconds_count", backend="spark", kind=kind) for kind in KINDS} == {2}


def test_learnt_rates_are_those_of_the_batch_of_now() -> None:
    """A stream is slower among others, those of other clients of the engine included."""
    admission = fleet()
    metrics = meter(admission)
    service = admission.backends["spark"].service
    assert value(metrics, "learnt_tokens_per_second", backend="spark", phase="prefill") == 1000.0
    alone = value(metrics, "learnt_tokens_per_second", backend="spark", phase="decode")
    assert alone == 1 / service.token_seconds(1)
    admission.observe("spark", foreign=3, now=1.0)
    among = value(metrics, "learnt_tokens_per_second", backend="spark", phase="decode")
    assert among == 1 / service.token_seconds(3)


def test_slots_are_counted_by_this_gateway_alone() -> None:
    """Dashboards can tell one gateway from several that share."""
    metrics = meter()
    states = {state: value(metrics, "shared_state", state=state) for state in ("local", "shared", "degraded")}
    assert states == {"local": 1, "shared": 0, "degraded": 0}


async def test_the_text_is_made_off_the_event_loop() -> None:
    """Sixteen backends take some 50 ms of it: streams go on meanwhile."""
    made: list[int] = []

    class Told(Metrics):
        def snapshot(self) -> Callable[[], bytes]:
            assert threading.get_ident() == here
            text = super().snapshot()
            return lambda: made.append(threading.get_ident()) or text()

    here = threading.get_ident()
    text = await exposition(Told(fleet(), "0.1.0"))
    assert b"slotgate_slots" in text
    assert made
    assert made[0] != here


def test_a_request_is_counted_and_timed() -> None:
    """Each figure of a record arrives in its metric."""
    metrics = meter()
    metrics.observe(record())
    at = {"model": "m", "backend": "spark"}
    assert value(metrics, "requests_total", **at, outcome="completed") == 1
    assert value(metrics, "queue_wait_seconds_sum", class_="agent") == 3.0
    assert value(metrics, "ttft_seconds_sum", **at, class_="agent") == 9.0
    assert value(metrics, "backend_ttft_seconds_sum", **at) == 6.0
    assert value(metrics, "tpot_seconds_sum", **at) == pytest.approx(0.1)
    assert value(metrics, "request_seconds_sum", **at, outcome="completed") == 20.0
    for kind, tokens in (("prompt", 1000), ("cached", 400), ("completion", 101)):
        assert value(metrics, "tokens_total", **at, kind=kind, source="reported") == tokens
    assert value(metrics, "tokens_total", **at, kind="reasoning", source="reported") is None
    assert value(metrics, "tokens_per_event", backend="spark") == 101 / 50
    assert value(metrics, "spec_accept_ratio", backend="spark") is None
    assert value(metrics, "prefix_hit_ratio", backend="spark", source="reported") == 0.4
    assert value(metrics, "prefix_hit_ratio", backend="spark", source="predicted") == 0.5


def test_acceptance_is_that_of_requests_else_the_engines_own() -> None:
    """An engine's figure is also of others' requests: it stands until answers tell what was drafted."""
    metrics = Metrics(fleet(), "0.1.0", accepted=lambda: {"spark": 0.75})
    assert value(metrics, "spec_accept_ratio", backend="spark") == 0.75
    metrics.observe(record(spec_drafted=10, spec_accepted=4))
    assert value(metrics, "spec_accept_ratio", backend="spark") == 0.4


def test_ttft_is_of_streams_that_gave_a_token() -> None:
    """A client that does not stream sees no first token; the backend's is known all the same (B-103)."""
    metrics = meter()
    metrics.observe(record(streamed=False))
    metrics.observe(record(first_token=None, last_token=None, outcome="backend_failed"))
    at = {"model": "m", "backend": "spark"}
    assert value(metrics, "ttft_seconds_count", **at, class_="agent") is None
    assert value(metrics, "backend_ttft_seconds_count", **at) == 1
    assert value(metrics, "request_seconds_count", **at, outcome="backend_failed") == 1


def test_estimates_enter_no_rate() -> None:
    """An estimate is counted as such and feeds neither time per token nor ratios."""
    metrics = meter()
    metrics.observe(record(source=TokenSource.ESTIMATED, cached_tokens=None, outcome="client_gone"))
    at = {"model": "m", "backend": "spark"}
    assert value(metrics, "tokens_total", **at, kind="completion", source="estimated") == 101
    assert value(metrics, "tpot_seconds_count", **at) is None
    assert value(metrics, "tokens_per_event", backend="spark") is None


def test_a_request_without_a_backend_has_an_empty_backend() -> None:
    """Refused requests are counted too."""
    metrics = meter()
    metrics.observe(
        record(model="", backend="", priority=None, dispatched=None, first_token=None, source=None)
    )
    assert value(metrics, "requests_total", model="other", backend="", outcome="completed") == 1


def test_what_clients_send_makes_no_series() -> None:
    """10,000 invented models, agents, keys, conversations and backends add at most 50 series."""
    metrics = meter()
    metrics.observe(record())
    before = len(series(metrics))
    chance = random.Random(1)
    for _ in range(10_000):
        words = ["".join(chance.choices('abc"\\\n\u00e9', k=chance.randrange(40))) for _ in range(5)]
        metrics.observe(
            record(
                model=words[0],
                agent=words[1],
                key=words[2],
                conversation=words[3],
                backend=words[4],
                dispatched=None,
                first_token=None,
                last_token=None,
                source=None,
                outcome=chance.choice(["invalid", "rejected"]),
            )
        )
    assert len(series(metrics)) - before <= 50


def test_an_alias_is_a_label_as_it_was_asked_for() -> None:
    """It comes from the configuration; a request for one of its targets is another series."""
    metrics = Metrics(fleet(["t"]), "0.1.0", aliases={"agent": "t"})
    for model in ("agent", "t", "agen"):
        metrics.observe(record(model=model))
    at = {"backend": "spark", "outcome": "completed"}
    for model in ("agent", "t", "other"):
        assert value(metrics, "requests_total", model=model, **at) == 1


def test_an_engine_that_renames_its_model_makes_a_bounded_number_of_series() -> None:
    """Beyond 200 names of models the next ones are other."""
    admission = fleet([])
    metrics = meter(admission)
    for i in range(MODELS_MAX + 100):
        admission.serve_models("spark", [f"m{i}"], 0.0)
        metrics.observe(record(model=f"m{i}"))
        metrics.output_rates()  # somebody looks, before the next name
    models = {dict(labels).get("model") for _, labels in series(metrics)} - {None}
    assert len(models) == MODELS_MAX + 1
    assert value(metrics, "requests_total", model="other", backend="spark", outcome="completed") == 100


def test_waits_of_many_minutes_have_buckets() -> None:
    """0.02 s to 900 s fall into different buckets, and 20 minutes are still inside (B-102)."""
    metrics = meter()
    for seconds in (0.02, 3.0, 45.0, 290.0, 900.0, 1199.0):
        metrics.observe(record(dispatched=1.0 + seconds, first_token=None, last_token=None))
    counts = [
        value(metrics, "queue_wait_seconds_bucket", class_="agent", le=repr(float(bound)))
        for bound in SECONDS
    ]
    assert counts == [1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 5, 6]


def test_what_admission_holds_is_read_at_the_scrape() -> None:
    """Slots, queue, states, contexts, gate waits and ejections follow Admission without being told."""
    admission = fleet()
    metrics = meter(admission)
    for i in range(5):
        admission.submit(
            Call(f"c{i}", "m", "/v1/chat/completions", Priority.AGENT, "a", 0.0, prompt_tokens=10), 0.0
        )
    admission.leave("c0", 1.0)
    admission.gate_waits["spark"] += 2
    admission.ejections["spark", "connect"] += 1
    slots = {
        state: value(metrics, "slots", backend="spark", state=state)
        for state in ("total", "in_use", "leaving", "foreign")
    }
    assert slots == {"total": 3, "in_use": 2, "leaving": 1, "foreign": 0}
    assert value(metrics, "queue_length", class_="agent") == 2
    assert value(metrics, "queue_length", class_="batch") == 0
    assert value(metrics, "backend_state", backend="spark", state="ready") == 1
    assert sum(v for (name, _), v in series(metrics).items() if name == "slotgate_backend_state") == 1
    assert value(metrics, "backend_context_tokens", backend="spark") is None
    admission.backends["spark"].context_tokens = 4096
    assert value(metrics, "backend_context_tokens", backend="spark") == 4096
    assert value(metrics, "prefill_gate_waits_total", backend="spark") == 2
    assert value(metrics, "ejections_total", backend="spark", reason="connect") == 1


def test_a_snapshot_is_of_the_instant_it_was_taken() -> None:
    """What the event loop owns is read by `snapshot`; rendering it later, in any thread, touches no more
    of it. A scrape that iterated in a thread met a dict that changed its size."""
    admission = fleet()
    running = [record()]
    metrics = meter(admission, running)
    text = metrics.snapshot()
    expected = metrics.render()
    admission.backends.clear()
    running.clear()
    assert text() == expected
    assert metrics.render() != expected


def test_the_output_rate_is_that_of_the_last_ten_seconds() -> None:
    """Ended answers count with the part inside the window, running ones with what they gave so far."""
    running = record(
        first_token=26.0, last_token=30.0, ended=None, completion_tokens=None, source=None, events=20
    )
    metrics = meter(running=[running])
    metrics.observe(record(first_token=0.0, last_token=10.0, ended=10.0, completion_tokens=500, events=250))
    metrics.observe(record(first_token=15.0, last_token=25.0, ended=25.0, completion_tokens=100, events=50))
    rate = value(metrics, "output_tokens_per_second", backend="spark")
    assert rate == pytest.approx((100 * 0.5 + 20 * 2) / 10)
    assert (
        value(meter(running=[record(first_token=None)]), "output_tokens_per_second", backend="spark") is None
    )


def test_an_answer_without_a_first_token_counts_from_its_dispatch() -> None:
    """A whole document's tokens are spread over the time its backend worked on it."""
    metrics = meter()
    metrics.observe(
        record(dispatched=10.0, first_token=None, last_token=None, ended=30.0, completion_tokens=200)
    )
    assert value(metrics, "output_tokens_per_second", backend="spark") == pytest.approx(10.0)


def test_ratios_are_of_late() -> None:
    """After a hundred requests that hit, those that missed before are forgotten."""
    metrics = meter()
    for cached in [0] * 100 + [1000] * 100:
        metrics.observe(record(cached_tokens=cached))
    ratio = value(metrics, "prefix_hit_ratio", backend="spark", source="reported")
    assert ratio is not None
    assert 0.98 < ratio < 1.0


def test_retries_overhead_build_and_configuration() -> None:
    """What the parts report by hand arrives."""
    metrics = meter()
    metrics.retry("connect")
    metrics.retry("connect")
    metrics.observe(record(prepare_seconds=0.00008))
    assert value(metrics, "retries_total", reason="connect") == 2
    assert value(metrics, "overhead_seconds_bucket", stage="prepare", le="0.0001") == 1
    assert value(metrics, "config_invalid") == 0
    metrics.config_invalid(True)
    assert value(metrics, "config_invalid") == 1
    assert value(metrics, "build_info", version="0.1.0") == 1


def test_two_gateways_in_one_process_do_not_mix() -> None:
    """There is no global registry."""
    one, two = meter(), meter()
    one.retry("connect")
    assert value(two, "retries_total", reason="connect") is None


def test_observing_is_cheap() -> None:
    """A request costs some 4 us of metrics; 100 us would be a fault of design."""
    metrics, request = meter(), record(reasoning_tokens=5, spec_drafted=10, spec_accepted=5)
    metrics.observe(request)
    best = min(timeit.repeat(lambda: metrics.observe(request), number=500, repeat=5)) / 500
    assert best < 100e-6


def test_no_figure_is_not_a_number() -> None:
    """A scrape of a fresh gateway has no NaN and no infinity."""
    assert all(math.isfinite(figure) for figure in series(meter()).values())


def test_a_removed_backend_leaves_no_series() -> None:
    """Nor one of its own requests that ended before; the sums of the others stay as they are."""
    admission = fleet()
    admission.add(
        Backend(name="gone", service=ServiceModel(), shadow=PrefixShadow(3), models=frozenset({"m"})), 0.0
    )
    admission.ejections["gone", "failures"] = admission.gate_waits["gone"] = 1
    metrics = meter(admission)
    for backend in ("spark", "gone"):
        metrics.observe(record(backend=backend, ended=25.0, last_token=24.0))
    assert 'backend="gone"' in metrics.render().decode()
    admission.remove("gone")
    assert 'backend="gone"' not in metrics.render().decode()
    assert value(metrics, "requests_total", model="m", backend="spark", outcome="completed") == 1
    assert metrics.output_rates().keys() == {"spark"}
