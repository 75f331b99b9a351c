"""slotgate: one OpenAI-compatible URL in front of all inference engines."""

from importlib.metadata import version

__version__ = version("slotgate")
