"""Measurements: of engines through the gateway, and of the gateway itself."""
