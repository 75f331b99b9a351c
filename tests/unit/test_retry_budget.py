"""Repeats are a share of the requests."""

from policies.retry_budget import LEAST, WINDOW_SECONDS, RetryBudget


def test_the_least_is_always_there() -> None:
    """A few repeats are allowed without any traffic, and no more."""
    budget = RetryBudget()
    assert [budget.allows(0.0) for _ in range(LEAST + 1)] == [True] * LEAST + [False]


def test_the_share_grows_with_the_requests() -> None:
    """Of a hundred requests twenty may be repeated; a new window starts anew."""
    budget = RetryBudget()
    for _ in range(100):
        budget.request(1.0)
    assert sum(budget.allows(1.0) for _ in range(100)) == 20
    assert budget.allows(1.0 + WINDOW_SECONDS)
