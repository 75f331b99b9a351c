"""What is learnt from the records of ended requests."""

from __future__ import annotations

import pytest

from gateway.accounting import Accounts, Record, TokenSource, Usage
from gateway.lessons import Lessons
from policies.fit import FIRST_SAMPLES
from policies.output_length import LEARNT
from policies.prompt_length import content
from policies.types import Priority
from tests.unit.fleet import a_backend, a_call, an_admission

BODY = b"word " * 2000


class Stage:
    """A backend, and accounts that teach."""

    def __init__(self) -> None:
        self.admission = an_admission(a_backend())
        self.lessons = Lessons(self.admission.backends)
        self.accounts = Accounts(self.lessons)
        self.now = 0.0

    def request(self, usage: Usage | None, *, outcome: str = "completed", granted: bool = True) -> None:
        """One request from its arrival to the end of its record, five seconds."""
        self.now += 5.0
        id = str(self.now)
        record = Record(id, "/v1/chat/completions", self.now)
        record.model, record.prompt, record.prompt_bytes = "m", content(BODY, len(BODY)), len(BODY)
        record.prompt_tokens_estimated = 2000
        if granted:
            self.admission.submit(a_call(id, prompt_tokens=2000), self.now)
            record.dispatched, record.lease = self.now, self.admission.lease(id)
            self.admission.first_token(id, self.now + 3.0)
            record.first_token = self.now + 3.0
            self.admission.finish(id, self.now + 4.0)
        if usage is not None:
            record.count(usage)
        record.outcome = outcome
        self.accounts.close(record, self.now + 4.0)

    @property
    def learnt(self) -> tuple[bool, bool, bool]:
        """Whether rates, lengths of answers and lengths of prompts differ from their priors."""
        return (
            self.admission.backends["backend"].calibration.learnt,
            self.lessons.outputs.of("m", Priority.AGENT).p90 != 2048,
            self.lessons.prompts.estimate("m", content(BODY, len(BODY))) != 2100,
        )


def test_a_record_teaches_rates_and_lengths() -> None:
    """An engine's own counts, of requests that were served to their end."""
    stage = Stage()
    assert stage.learnt == (False, False, False)
    for _ in range(LEARNT + FIRST_SAMPLES):
        stage.request(Usage(TokenSource.REPORTED, 4000, 0, 50))
    assert stage.learnt == (True, True, True)
    assert stage.lessons.prompts.estimate("m", content(BODY, len(BODY))) == pytest.approx(4000, rel=0.02)
    assert stage.lessons.outputs.of("m", Priority.AGENT).p90 == 50


def test_estimates_teach_nothing() -> None:
    """What the gateway itself guessed must not confirm its guesses."""
    stage = Stage()
    for _ in range(LEARNT + FIRST_SAMPLES):
        stage.request(None)
    assert stage.learnt == (False, False, False)


def test_a_request_that_no_engine_saw_teaches_nothing() -> None:
    """It has no lease."""
    stage = Stage()
    for _ in range(LEARNT + FIRST_SAMPLES):
        stage.request(Usage(TokenSource.REPORTED, 4000, 0, 50), granted=False, outcome="invalid")
    assert stage.learnt == (False, False, False)


def test_a_client_that_left_teaches_no_length_of_answers() -> None:
    """Its prompt was read to the end all the same."""
    stage = Stage()
    for _ in range(LEARNT + FIRST_SAMPLES):
        stage.request(Usage(TokenSource.REPORTED, 4000, 0, 50), outcome="client_gone")
    assert stage.learnt == (True, False, True)
