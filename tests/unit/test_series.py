"""Totals and histograms say what prometheus_client's own would say of the same figures."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.families import QUEUE_WAIT, RETRIES, SECONDS
from gateway.series import Series

FIGURES = st.one_of(st.floats(0, 2000), st.sampled_from(SECONDS))  # also on the bounds themselves


class Shown(Collector):
    """What a scrape would collect."""

    def __init__(self, series: Series) -> None:
        self._read = series.read()

    def collect(self) -> Iterable[Metric]:
        return self._read()


def text(series: Series) -> list[str]:
    """The lines of a scrape."""
    return generate_latest(Shown(series)).decode().splitlines()


@given(st.lists(FIGURES, min_size=1), st.lists(FIGURES))
def test_a_histogram_reads_as_the_library_s_own(agents: list[float], batch: list[float]) -> None:
    """Bounds, counts and sums of two classes; a figure on a bound belongs below it."""
    series, registry = Series([QUEUE_WAIT]), CollectorRegistry()
    own = Histogram(QUEUE_WAIT.name, QUEUE_WAIT.help, QUEUE_WAIT.labels, registry=registry, buckets=SECONDS)
    for label, figures in (("agent", agents), ("batch", batch)):
        for figure in figures:
            series.histogram(QUEUE_WAIT, label).observe([figure])
            own.labels(label).observe(figure)
    expected = generate_latest(registry).decode().splitlines()
    assert text(series) == [line for line in expected if "_created" not in line]


def test_what_nothing_fed_is_not_shown() -> None:
    """A label that a request might have had is no series; a total that was fed 0 is one."""
    series = Series([QUEUE_WAIT, RETRIES])
    series.histogram(QUEUE_WAIT, "agent")
    series.total(RETRIES, "connect")
    shown = [line for line in text(series) if not line.startswith("#")]
    assert shown == ['slotgate_retries_total{reason="connect"} 0.0']


def test_a_copy_stays_as_it_was() -> None:
    """A scrape is rendered in a thread while requests end."""
    series = Series([QUEUE_WAIT, RETRIES])
    series.histogram(QUEUE_WAIT, "agent").observe([1.0])
    series.total(RETRIES, "connect").value += 1
    shown = Shown(series)
    before = text(series)
    series.histogram(QUEUE_WAIT, "agent").observe([1.0])
    series.histogram(QUEUE_WAIT, "batch").observe([1.0])
    series.total(RETRIES, "connect").value += 1
    assert generate_latest(shown).decode().splitlines() == before
    assert text(series) != before
