"""Engines and connections that fail in every way there is, and what the gateway makes of them."""
