"""The decisions of slotgate: pure, synchronous, and the same in production and in simulation."""
