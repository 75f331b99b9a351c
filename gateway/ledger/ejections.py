"""What other gateways learnt of backends that fail: one that was ejected there is left alone here, too, and
tried once when it works again there. A hint: who sees it work, or hears nothing, goes by what it sees itself.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.dispatcher import Dispatcher
from gateway.ledger.notes import Kind, Note
from policies.types import State, StateChanged


class SharedEjections:
    """`url_of`: of a backend by its name, the same in all gateways; `tell`: leaves a note for the others."""

    def __init__(
        self, dispatcher: Dispatcher, url_of: Callable[[str], str], tell: Callable[[Note], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._url_of = url_of
        self._tell = tell
        self._ejected: set[str] = set()  # names
        self._follows = False  # what changes now is known to the others

    def state_changed(self, change: StateChanged) -> None:
        """A backend is in another state here."""
        name, kind = change.backend, None
        if change.state is State.EJECTED:
            self._ejected.add(name)
            kind = Kind.EJECTED
        elif name in self._ejected:
            self._ejected.remove(name)
            kind = Kind.RECOVERED if change.state is State.READY else None  # else it is gone: all see that
        if kind is not None and not self._follows and name in self._dispatcher.admission.backends:
            self._tell(Note(kind, self._url_of(name)))

    def heard(self, note: Note) -> None:
        """What another gateway says of an engine."""
        admission, now = self._dispatcher.admission, self._dispatcher.clock()
        follow = admission.ejected_elsewhere if note.kind is Kind.EJECTED else admission.recovered_elsewhere
        self._follows = True
        try:
            for name in [name for name in admission.backends if self._url_of(name) == note.url]:
                self._dispatcher.apply(follow(name, now))
        finally:
            self._follows = False
