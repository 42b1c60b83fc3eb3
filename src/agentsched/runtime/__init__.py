"""The asyncio shell around the engine: threads, loops, tasks, timers and futures end here."""
