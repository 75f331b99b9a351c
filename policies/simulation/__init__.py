"""Engines in virtual time: what `policies.simulator` is made of."""
