"""Prices of backends, in expected seconds."""

from agentsched.model import BackendLoad, Job


def finish_time(job: Job, load: BackendLoad) -> float:
    """Least expected finish time, and what the call costs those who run there.

    An engine reads prompts in the order they came, so the call waits for every prompt that was released there and
    has not shown a first token; then its own is read as far as it is not cached, and the answer is written in the
    batch that it joins. Meanwhile each call that runs there waits for that reading, and its steps grow.
    """
    unread = job.input_tokens - load.cached_tokens
    own_s = load.entry_s + (load.unread_tokens + unread) * load.prefill_s + job.output_tokens * load.decode_s
    return own_s + load.running * (unread * load.read_s + job.output_tokens * load.batch_s)
