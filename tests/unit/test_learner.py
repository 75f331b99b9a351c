"""What ended requests teach, through the Admission that granted them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import Admission
from policies.learner import SAMPLE_SECONDS, Counts, Learner
from policies.output_length import LEARNT, OutputLength
from policies.service_model import ServiceModel
from policies.types import Backend, Lease, Priority
from tests.unit.fleet import a_backend, a_call, a_chain, an_admission, granted

# Four times as slow as what nothing is known of.
TRUTH = ServiceModel(
    setup_seconds=0.4,
    prefill_tokens_per_second=250.0,
    decode_base_seconds=0.12,
    decode_step_seconds=0.032,
)


class Stage:
    """One backend that is as fast as TRUTH, and who learns from it."""

    def __init__(self, **fields: Any) -> None:
        self.backend: Backend = a_backend(slots=4, **fields)
        self.admission: Admission = an_admission(self.backend, prefill_gate_seconds=1e9)
        self.outputs = OutputLength()
        self.learner = Learner(self.admission.backends, self.outputs)
        self.now = 0.0
        self.number = 0

    def grant(self, **fields: object) -> Lease:
        self.number += 1
        call = a_call(str(self.number), arrived=self.now, **fields)
        assert call.id in granted(self.admission.submit(call, self.now))
        lease = self.admission.lease(call.id)
        assert lease is not None
        return lease

    def serve(
        self, prompt: int, tokens: int, *, cached: int | None = 0, truly: int = 0, **fields: object
    ) -> Lease:
        """One request alone; `truly` of its tokens are cached, `cached` is what the engine tells."""
        lease = self.grant(prompt_tokens=prompt, **fields)
        self.now += TRUTH.first_token(prompt, truly)
        self.admission.first_token(lease.call.id, self.now)
        self.now += TRUTH.decode_seconds(tokens - 1, 1, prompt)
        self.admission.finish(lease.call.id, self.now)
        self.learner.ended(lease, Counts(prompt, cached, tokens), streamed=True, completed=True)
        self.now += 1.0
        return lease


def test_requests_alone_teach_the_rates() -> None:
    """After thirty of them, first token and pace are predicted within a tenth; the error is on record."""
    stage = Stage()
    for turn in range(30):
        stage.serve(100 + 97 * turn, 20 + turn)
    service = stage.backend.service
    assert service.first_token(2000) == pytest.approx(TRUTH.first_token(2000), rel=0.1)
    assert service.token_seconds(1, 1000) == pytest.approx(TRUTH.token_seconds(1), rel=0.1)
    error = stage.backend.calibration.error_ratio
    assert error is not None and error < 0.5


def test_the_way_to_the_first_token_counts_for_one_that_waited_too() -> None:
    """The engine came to it while the first token of the one before was on its way."""
    stage = Stage()
    stage.backend.service = replace(stage.backend.service, first_token_seconds=0.5)
    first, second = stage.grant(prompt_tokens=1000), stage.grant(prompt_tokens=1000)
    observed = []
    for lease, at in ((first, 2.0), (second, 3.5)):
        stage.admission.first_token(lease.call.id, at)
        before = stage.backend.calibration.observed_seconds
        stage.learner.ended(lease, Counts(1000, 0, 8), streamed=True, completed=True)
        observed.append(stage.backend.calibration.observed_seconds - before)
        stage.backend.service = replace(stage.backend.service, first_token_seconds=0.5)
    assert observed == [pytest.approx(2.0), pytest.approx(1.5 + 0.5)]


def test_a_prompt_behind_another_is_timed_from_its_turn() -> None:
    """Prompts are read one by one: its own prefill began with the other one's first token. One that
    overtakes shares its steps with it, and tells nothing."""
    stage = Stage()
    for _ in range(30):
        first, second = stage.grant(prompt_tokens=1000), stage.grant(prompt_tokens=1000)
        assert (first.work.alone, second.work.alone) == (True, False)
        for lease in (first, second):
            stage.now += TRUTH.first_token(1000)
            stage.admission.first_token(lease.call.id, stage.now)
        for lease in (first, second):
            stage.admission.finish(lease.call.id, stage.now)
            stage.learner.ended(lease, Counts(1000, 0, 1), streamed=True, completed=True)
        assert (first.work.begun, second.work.begun) == (
            first.granted,
            first.granted + TRUTH.first_token(1000),
        )
    assert stage.backend.service.first_token(1000) == pytest.approx(TRUTH.first_token(1000), rel=0.1)
    long, short = stage.grant(prompt_tokens=9000), stage.grant(prompt_tokens=10)
    stage.admission.first_token(short.call.id, stage.now + 1.0)
    assert (long.work.begun, short.work.begun) == (long.granted, None)


def test_the_load_of_others_makes_a_sample_unclean() -> None:
    """Nobody knows whether a foreign request is being read."""
    stage = Stage(foreign=1)
    assert stage.grant().work.alone is False


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_without_first_token_teaches_no_rates(streamed: bool) -> None:
    """Of a whole document nobody knows when its first token was made; its length counts all the same."""
    stage = Stage()
    for turn in range(LEARNT + 10):
        lease = stage.grant(prompt_tokens=1000)
        stage.now += 50.0
        stage.admission.first_token(lease.call.id, stage.now)
        stage.admission.finish(lease.call.id, stage.now)
        stage.learner.ended(lease, Counts(1000, 0, 100 + turn), streamed=streamed, completed=True)
    assert (stage.backend.service != ServiceModel()) == streamed
    assert stage.outputs.of("m", Priority.AGENT).mean == pytest.approx(115, abs=2)


def test_an_answer_that_was_cut_short_teaches_no_length() -> None:
    """A client that leaves after ten tokens did not want ten."""
    stage = Stage()
    for _ in range(2 * LEARNT):
        lease = stage.grant(prompt_tokens=1000)
        stage.now += 5.0
        stage.admission.first_token(lease.call.id, stage.now)
        stage.admission.leave(lease.call.id, stage.now)
        stage.learner.ended(lease, Counts(1000, 0, 10), streamed=True, completed=False)
        stage.admission.finish(lease.call.id, stage.now)
    assert stage.outputs.of("m", Priority.AGENT).p90 == 2048


def test_lessons_of_one_backend_have_a_pause() -> None:
    """Thousands of requests a second must not be slowed by what none of them adds."""
    stage = Stage()
    for _ in range(3 * LEARNT):
        lease = stage.grant()
        stage.now += SAMPLE_SECONDS / 2 - 1e-6
        stage.admission.first_token(lease.call.id, stage.now)
        stage.admission.finish(lease.call.id, stage.now)
        stage.learner.ended(lease, Counts(100, 0, 10), streamed=True, completed=True)
    assert stage.outputs.of("m", Priority.AGENT).p90 == 10
    lease = stage.grant()
    stage.admission.first_token(lease.call.id, stage.now + 1.0)
    stage.learner.ended(lease, Counts(100, 0, 9999), streamed=True, completed=True)
    other = stage.grant()
    stage.admission.first_token(other.call.id, stage.now + 1.0 + SAMPLE_SECONDS / 2)
    samples = stage.backend.calibration.samples
    stage.learner.ended(other, Counts(100, 0, 9999), streamed=True, completed=True)
    assert stage.backend.calibration.samples == samples


def test_a_prefix_that_was_evicted_is_no_longer_believed_in() -> None:
    """The engine says that it found nothing of what should have been there: whoever was idle longer is gone
    too, and the cost says so."""
    stage = Stage()
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=None)
    old, ours = a_chain(1, 2), a_chain(3, 4)
    stage.serve(2000, 10, chain=old)
    stage.serve(2000, 10, chain=ours)
    lease = stage.serve(3000, 10, chain=a_chain(3, 4, 5), cached=0)
    assert lease.cached_tokens == 2000
    assert stage.backend.shadow.matched_bytes(old) == 0
    assert stage.backend.shadow.matched_bytes(a_chain(3, 4, 5)) == 3000


def test_times_tell_of_an_eviction_that_nobody_reports() -> None:
    """An engine that does not tell cached tokens, and whose warm prompt takes as long as a cold one."""
    stage = Stage()
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=None)
    for turn in range(20):
        stage.serve(3000, 10, chain=a_chain(100 + turn), cached=None)
    old = a_chain(1, 2)
    stage.serve(3000, 10, chain=old, cached=None)
    stage.serve(2000, 10, chain=a_chain(3, 4), cached=None)
    stage.serve(3000, 10, chain=a_chain(3, 4, 5), cached=None, truly=2000)
    assert stage.backend.shadow.matched_bytes(old) == 2000
    stage.serve(4000, 10, chain=a_chain(3, 4, 5, 6), cached=None)
    assert stage.backend.shadow.matched_bytes(old) == 0


def test_an_engine_that_never_finds_much_is_no_surprise() -> None:
    """A fifth of what matches, each time: that is its efficiency, and nothing was evicted."""
    stage = Stage()
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=None)
    for turn in range(40):
        stage.serve(2000, 10, chain=a_chain(1, 10 + turn), cached=200, truly=200)
    stage.serve(2000, 10, chain=a_chain(2, 3))
    stage.serve(2000, 10, chain=a_chain(1, 99), cached=200, truly=200)
    assert stage.backend.service.cache_efficiency == pytest.approx(0.2, abs=0.05)
    assert stage.backend.shadow.matched_bytes(a_chain(2, 3)) == 2000
    assert stage.backend.shadow.matched_bytes(a_chain(1, 48)) == 2000


def test_another_context_is_another_process() -> None:
    """An engine that nobody saw restart: its cache is empty, its speed to be learnt anew."""
    stage = Stage(context_tokens=8192)
    for turn in range(10):
        stage.serve(500, 10, chain=a_chain(1, turn + 2))
    assert stage.backend.calibration.samples > 0
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=8192)
    assert stage.backend.calibration.samples > 0
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=4096)
    assert stage.backend.calibration.samples == len(stage.backend.shadow) == 0


def test_a_prefix_that_was_found_is_confirmed() -> None:
    """Nothing is dropped, and the warm prompt teaches the same rates as a cold one."""
    stage = Stage()
    stage.admission.resize("backend", 0.0, slots=4, source=stage.backend.slots_source, context_tokens=None)
    stage.serve(2000, 10, chain=a_chain(1, 2))
    for turn in range(20):
        stage.serve(2000, 10, chain=a_chain(3, turn + 10), cached=0, truly=0)
        stage.serve(3000, 10, chain=a_chain(3, turn + 10, 50), cached=1990, truly=1990)
    assert stage.backend.service.first_token(3000, 1990) == pytest.approx(
        TRUTH.first_token(3000, 1990), rel=0.15
    )


def test_a_backend_that_has_left_teaches_nothing() -> None:
    """Its last requests end after it was removed."""
    stage = Stage()
    lease = stage.serve(100, 10)
    del stage.admission.backends["backend"]
    stage.learner.ended(lease, Counts(100, 0, 10), streamed=True, completed=True)


def test_a_restart_keeps_the_rates_as_a_guess() -> None:
    """And the cache is empty; what of it is found is to be seen anew."""
    stage = Stage()
    for turn in range(30):
        stage.serve(100 + 97 * turn, 20, chain=a_chain(1, turn + 2))
    known = stage.backend.service
    assert known.cache_efficiency == 0.0
    stage.admission.restarted("backend")
    assert stage.backend.service == replace(known, cache_efficiency=1.0)
    assert stage.backend.calibration.samples == 0
    assert stage.backend.shadow.matched_bytes(a_chain(1)) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "first", "prefilled", "leave", "finish", "foreign"]),
        st.integers(0, 5),
        st.floats(0, 10),
    )
)


@given(STEPS)
def test_the_load_is_what_the_leases_say(steps: list[tuple[str, int, float]]) -> None:
    """Whatever happens in whatever order: sums run by what is at work now, and a prefill begins no earlier
    than it was granted and no later than its first token."""
    backend, now, leases = a_backend(slots=3), 0.0, dict[str, Lease]()
    admission = an_admission(backend, prefill_gate_seconds=1e9)
    for what, number, passed in steps:
        now += passed
        id = str(number)
        match what:
            case "submit" if admission.lease(id) is None and id not in admission.queue:
                admission.submit(a_call(id, arrived=now), now)
            case "first":
                admission.first_token(id, now)
            case "prefilled":
                admission.prefilled(id, now)
            case "leave":
                admission.leave(id, now)
            case "finish":
                admission.finish(id, now)
            case "foreign":
                admission.observe("backend", number % 3, now)
        leases |= backend.leases
        before, after = backend.load.read(now), backend.load.read(now + 1.0)
        decoding = len(backend.leases) - len(backend.prefilling) + backend.foreign
        assert after.sequence_seconds - before.sequence_seconds == pytest.approx(float(decoding))
        assert after.prefill_seconds - before.prefill_seconds == pytest.approx(
            float(bool(backend.prefilling))
        )
        now += 1.0
        for lease in leases.values():
            work = lease.work
            if work.begun is not None:
                assert work.begun >= lease.granted
                assert work.first_token is None or work.begun <= work.first_token.at
            if work.ended is not None and work.first_token is not None:
                assert work.first_token.at <= work.ended.at
