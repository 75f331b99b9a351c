"""ds4's `ds4-server`, as upstream and as the fork with batching (Entrpi/ds4).

Upstream has five routes and tells of itself only its list of models: its slots (`--batched-session`, else 1)
must be configured. The fork adds `/v1/stats`, which answers also while the engine is saturated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.engines.base import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, Report
from gateway.engines.fields import drafts, member, natural, positive, told
from gateway.engines.listing import MODELS, owned_by
from gateway.engines.openai import OpenAI
from policies.capacity import Division, Memory
from policies.service_model import ServiceModel

STATS = "/v1/stats"  # JSON where the request accepts it, else text for people

# What the fork counts when its memory does not hold a request: turned away, or sent to a lane beside the
# batch that is about 40 times slower.
_REFUSED = (
    ("serving", "requests_refused_deep_serial"),
    ("cache", "cont_admit_rejects"),
    ("cache", "graph_fit_refusals"),
)


class DS4(OpenAI):
    """ds4. Its slots are called banks; how many fit is measured anew at each start."""

    name = "ds4"
    paths = (STATS, MODELS)
    routes = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES})
    # Upstream before e9ded97 notices that a client left only when it writes: it must write all the time.
    streams_always = True
    reuses_connections = False  # every answer says `Connection: close`
    # The fork looks for its client between chunks of prefill (2,048 tokens) and at each token, and closes
    # when the request has ended. Upstream looks too since e9ded97, but on a Mac it takes a half-closed
    # connection for an open one, and before that commit it did so everywhere: there the abort after this
    # time stops it (antirez/ds4#786).
    cancel_seconds = 10.0
    close_is_stop = True
    prefix_kind = "bank"
    # The fork's start says so; its floor too. Upstream's slots are a setting.
    memory = Memory(Division.BANKS, slots_min=2, headroom_bytes=8 * 2**30)
    service = ServiceModel(
        setup_seconds=0.05,
        first_token_seconds=0.05,
        prefill_tokens_per_second=1435.0,
        prefill_head_tokens_per_second=1526.0,
        prefill_square_seconds=4e-9,
        decode_base_seconds=0.0462,
        decode_step_seconds=0.0111,
        starved_tokens_per_second=3.1,
    )

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """By the owner of its model, or the fork's own figures."""
        return natural(told(answers, STATS, "server", "max_seq")) is not None or owned_by(answers, "ds4.c")

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """Slots, context of each, model, load and uptime; of upstream only model and context.

        `max_seq` 0: no batch could be set up, the engine serves one request after the other.
        """
        report, stats = super().read(answers), told(answers, STATS)
        slots = natural(member(stats, "server", "max_seq"))
        busy = natural(member(stats, "server", "requests_inflight"))
        waiting = natural(member(stats, "backpressure", "queue_depth"))
        refused = [natural(member(stats, *keys)) for keys in _REFUSED]
        return replace(
            report,
            slots=None if slots is None else max(1, slots),
            context_tokens=positive(member(stats, "server", "context")) or report.context_tokens,
            busy=busy,
            running=None if busy is None or waiting is None else max(0, busy - waiting),
            waiting=waiting,
            refused=sum(count or 0 for count in refused) if any(c is not None for c in refused) else None,
            drafts=drafts(
                member(stats, "speculation", "spec_drafts"), member(stats, "speculation", "spec_hits")
            ),
            uptime_seconds=natural(member(stats, "server", "uptime_seconds")),
        )

    def max_tokens(
        self,
        asked: int | None,
        default: int | None,
        prompt_tokens: int,
        context_tokens: int | None,
        *,
        counted: bool,
    ) -> int | None:
        """The operator's default where the client gave no limit: the engine lets a request in only if
        memory holds all that it may write, by its own default 393,216 tokens until v0.6.0 and 32,768 since.
        A limit beyond the room is cut to it by the engine."""
        return default if asked is None else None
