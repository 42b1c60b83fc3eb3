"""Orders of waiting calls. Lower first; ties are served by arrival."""

from agentsched.model import Job


def arrival(job: Job) -> float:
    """First come, first served."""
    return job.submitted_at
