"""The models that clients may ask for: those that backends serve, and the aliases of the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gateway.auth import Key
from gateway.errors import ModelNotFound
from gateway.options import AliasSettings
from policies.admission import Admission
from policies.types import StateChanged

log = logging.getLogger("slotgate.models")


class Models:
    """All of them, as each key may see them. An alias hides a served model of the same name."""

    def __init__(self, aliases: Mapping[str, AliasSettings], admission: Admission) -> None:
        self.follow(aliases)
        self._admission = admission
        self._warned: set[tuple[str, str]] = set()  # backend and model

    def follow(self, aliases: Mapping[str, AliasSettings]) -> None:
        """These and no others are aliases from now on."""
        self._aliases = aliases

    def alias(self, model: str) -> AliasSettings | None:
        """What this name stands for; None: for the model of that name."""
        return self._aliases.get(model)

    def names(self, key: Key) -> tuple[str, ...]:
        """Those that this key may use, in order. A key for an alias need not name its targets."""
        names = {*self._admission.models(), *filter(self._may_exist, self._aliases)}
        return tuple(filter(key.allows, sorted(names)))

    def listed(self, key: Key) -> dict[str, Any]:
        """All that this key may use, in OpenAI's shape."""
        return {"object": "list", "data": [self._described(name) for name in self.names(key)]}

    def one(self, name: str, key: Key) -> dict[str, Any]:
        """One of them. Raises ModelNotFound, also for one that this key may not use."""
        names = self.names(key)
        if name not in names:
            raise ModelNotFound(name, names)
        return self._described(name)

    def look(self, change: StateChanged) -> None:
        """Warn once of each model that an alias hides: engines tell their models long after the
        configuration was read."""
        backend = self._admission.backends[change.backend]
        for model in sorted(self._aliases.keys() & (backend.models or frozenset())):
            if (backend.name, model) not in self._warned:
                self._warned.add((backend.name, model))
                log.warning(
                    "%s serves a model %r, which is also an alias: requests for it go to the alias's targets "
                    "(%s); give the alias another name",
                    backend.name,
                    model,
                    ", ".join(self._aliases[model].targets),
                )

    def _may_exist(self, alias: str) -> bool:
        """Whether a backend serves a model of the alias, or has not told yet what it serves."""
        models = self._models_of(alias)
        return any(backend.may_serve(models) for backend in self._admission.backends.values())

    def _models_of(self, name: str) -> set[str]:
        alias = self._aliases.get(name)
        return {name} if alias is None else {*alias.targets, *alias.fallbacks}

    def _described(self, name: str) -> dict[str, Any]:
        context = self._context(name)
        known = {} if context is None else {"context_length": context, "max_model_len": context}
        return {"id": name, "object": "model", "created": 0, "owned_by": "slotgate"} | known

    def _context(self, name: str) -> int | None:
        """Tokens that one request may hold, in the smallest slot that may serve it unless the operator
        chose otherwise: Hermes plans its compression by it, and a larger promise would fail on some backend.
        """
        alias = self._aliases.get(name)
        told = alias.advertise_context if alias is not None else "smallest"
        if isinstance(told, int):
            return told
        models, backends = self._models_of(name), self._admission.backends.values()
        windows = [b.window for b in backends if b.models and not b.models.isdisjoint(models)]
        known = [window for window in windows if window is not None]
        return (max if told == "largest" else min)(known, default=None)
