"""What finished calls say of the next ones: one place that is told of every answer and asked about every call."""

from agentsched.model import Job, Request
from agentsched.predict.lengths import MeanLengths
from agentsched.predict.profile import Profile
from agentsched.predict.prompts import PromptLengths


class Past:
    """The lengths of answers by step, and of prompts by model.

    Args:
        profile: what an earlier run says of them.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        self.lengths = MeanLengths()
        self.prompts = PromptLengths()
        if profile is not None:
            for row in profile.steps:
                self.lengths.resume(row.key, row.output_tokens.mean, row.calls)
            for ratio in profile.prompts:
                self.prompts.resume(ratio)

    def job(self, request: Request, now: float) -> Job:
        """Return what is to be expected of a call that was made now."""
        return Job(
            request,
            now,
            self.lengths.expected((request.model, request.workflow, request.step), request.max_tokens),
            self.prompts.expected(request.model, request.input_tokens),
        )

    def learn(self, request: Request, read: int | None, written: int, *, kept: int = 0) -> None:
        """Take how many tokens were read and written for it; None where the backend did not say.

        Args:
            kept: tokens of the answer that had been written before elsewhere, and were read here with the prompt.
        """
        written += kept
        if read is not None and not kept:
            self.prompts.observe(request.model, request.input_tokens, read)
        if written > 0:
            cap = request.max_tokens  # a backend's count may be wrong; a caller's cap is not
            if cap is not None and cap < written:
                written = cap
            self.lengths.observe((request.model, request.workflow, request.step), written)
