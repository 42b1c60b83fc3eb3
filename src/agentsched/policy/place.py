"""Prices of backends, in expected seconds until the call is done there."""

from agentsched.model import BackendLoad, Job


def finish_time(job: Job, load: BackendLoad) -> float:
    """Least expected finish time: read what is ahead, read the prompt, write the answer.

    An engine reads prompts in the order they came, so the call waits for every prompt that was released
    there and has not shown a first token.
    """
    prefill_s = (load.prefill_tokens + job.input_tokens) * load.prefill_s_per_token
    return prefill_s + job.output_tokens * load.decode_s_per_token
