"""Models of a fleet in model seconds: pure and deterministic, without loop, clock, thread or dice."""
