"""What is particular to each engine: what to ask it, and how to read its answers. No I/O."""
