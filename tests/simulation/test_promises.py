"""What the scheduler promises, held against engines in virtual time with workloads made to break it."""

from __future__ import annotations

from collections import Counter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policies.fairness import QUANTUM_SECONDS
from policies.order import OVERDUE_SECONDS, OVERDUE_SERVICES
from policies.output_length import UNKNOWN
from policies.simulation.engine import Mode
from policies.simulation.profile import PROFILES, Profile, fleet
from policies.simulation.workload import Digests, Program, Workload, conversation
from policies.simulation.world import Record, Run
from policies.simulator import simulate
from policies.types import Limits, Priority

# A failure is not made smaller: each example is a whole run, and that would take minutes.
EXAMPLES = settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
TICK_SECONDS = 0.25

engines = st.lists(st.sampled_from(sorted(PROFILES)), min_size=1, max_size=3)
modes = st.sampled_from(Mode)
sizes = st.tuples(st.integers(50, 20_000), st.integers(1, 600))
short = st.tuples(st.integers(50, 400), st.integers(20, 600))  # no prompt of which is long anywhere


def asked(
    rows: list[tuple[str, Priority, float, tuple[int, int]]], *, background: frozenset[str] = frozenset()
) -> Workload:
    """Single requests: (tenant, class, arrival, (tokens of the prompt, of the answer))."""
    digests = Digests()
    return Workload(
        [
            Program(
                f"{tenant}-{number}",
                tenant,
                priority,
                at,
                tuple(conversation((), [(tokens, output, 0.0)], digests)),
                foreground=tenant not in background,
            )
            for number, (tenant, priority, at, (tokens, output)) in enumerate(rows)
        ]
    )


def longest(records: list[Record]) -> float:
    """Seconds for which the longest of these held its slot."""
    return max((record.ended - record.started for record in records), default=0.0)


@EXAMPLES
@given(engines, modes, sizes, st.sampled_from((Priority.AGENT, Priority.BATCH)), st.integers(1, 4))
def test_nobody_starves(
    names: list[str], mode: Mode, size: tuple[int, int], priority: Priority, rate: int
) -> None:
    """Against a flood of people that would take every slot for ever, one call of a lower class starts within
    a minute (or four times as long as it was expected to take) and what may be in its way then."""
    flood = [("people", Priority.INTERACTIVE, number / rate, (300, 200)) for number in range(400)]
    victim = ("victim", priority, 5.0, size)
    profiles = fleet(names)
    run = simulate(profiles, asked([victim, *flood], background=frozenset({"people"})), "slotgate", mode)
    (record,) = [record for record in run.records if record.program.tenant == "victim"]
    service = min(
        profile.prefill_seconds(size[0], 0) + UNKNOWN.mean * profile.token_seconds(profile.slots, sum(size))
        for profile in profiles
    )
    bound = max(OVERDUE_SECONDS, OVERDUE_SERVICES * service) + 2 * longest(run.records) + TICK_SECONDS
    assert record.started - record.arrived <= bound


@EXAMPLES
@given(engines, modes, short, short, st.integers(20, 40))
def test_seconds_are_shared_fairly(
    names: list[str], mode: Mode, size: tuple[int, int], other: tuple[int, int], calls: int
) -> None:
    """While two agents both have calls that wait, what they were served differs by a quantum and what runs:
    however much longer the answers of one are, or how many more it sends. (The gate may keep an agent of
    long prompts from its share, and lets others have it.)"""
    rows = [("a", Priority.AGENT, 0.0, size)] * (3 * calls) + [("b", Priority.AGENT, 0.01, other)] * calls
    profiles = fleet(names)
    run = simulate(profiles, asked(rows), "slotgate", mode)
    slots = sum(profile.slots for profile in profiles)
    bound = QUANTUM_SECONDS + 2 * longest(run.records) * slots
    until = min(max(r.started for r in run.records if r.program.tenant == tenant) for tenant in "ab")
    until = min(until, Limits().wait_seconds_max)  # then those that wait are refused, and ask again later
    served: Counter[str] = Counter()
    for record in sorted(run.records, key=lambda record: record.ended):
        if record.ended > until:
            break
        served[record.program.tenant] += record.ended - record.started  # type: ignore[assignment]
        assert abs(served["a"] - served["b"]) <= bound


@EXAMPLES
@given(engines, modes, st.lists(st.tuples(st.sampled_from(Priority), st.floats(0, 60), sizes), max_size=60))
def test_no_engine_ever_has_to_queue(
    names: list[str], mode: Mode, calls: list[tuple[Priority, float, tuple[int, int]]]
) -> None:
    """However calls come: what is sent has a slot; and all are answered, once."""
    rows = [(f"agent-{number % 5}", *call) for number, call in enumerate(calls)]
    run = simulate(fleet(names), asked([*rows, ("last", Priority.AGENT, 0.0, (100, 1))]), "slotgate", mode)
    assert (run.oversubscribed, run.refused, len(run.records)) == (0, 0, len(calls) + 1)


@EXAMPLES
@given(st.sampled_from(sorted(PROFILES)), st.integers(2, 5), st.integers(8_000, 40_000))
def test_people_wait_for_one_long_prompt_at_most(name: str, agents: int, tokens: int) -> None:
    """Where prompts are read first come first served, a question that comes in the middle of a crowd of long
    ones waits for what is left of one of them, and not for all."""
    (profile,) = fleet([name])
    rows = [(f"agent-{number}", Priority.AGENT, 0.0, (tokens, 50)) for number in range(agents)]
    first = ("people", Priority.INTERACTIVE, 0.0, (100, 20))
    question = ("person", Priority.INTERACTIVE, 3.0, (100, 20))
    run = simulate([profile], asked([first, *rows, question]), "slotgate")
    (record,) = [record for record in run.records if record.program.tenant == "person"]
    own = profile.latency_seconds + profile.prefill_seconds(100, 0)
    assert record.first - record.arrived <= slot_seconds(profile, run) + long_seconds(profile, tokens) + own


def slot_seconds(profile: Profile, run: Run) -> float:
    """A question may have to wait for a slot where none is reserved for it."""
    reserved = Limits().interactive_reserve_slots if profile.slots > 2 else 0
    return 0.0 if reserved else longest(run.records)


def long_seconds(profile: Profile, tokens: int) -> float:
    """One prompt of the crowd, beside streams that decode."""
    return profile.prefill_seconds(tokens, 0) * (1 + profile.prefill_slowdown * profile.slots)
