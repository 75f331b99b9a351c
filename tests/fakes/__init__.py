"""Engines that are not real but count like judges."""
