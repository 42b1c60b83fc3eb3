"""What may happen to one backend of a fleet in mid-run, and who knows what of it."""
