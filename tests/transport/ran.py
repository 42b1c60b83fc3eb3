"""One attempt over a scripted wire, and what it came to."""

import json
from types import ModuleType
from typing import Any

from agentsched import Backend, Limits
from agentsched.model import FailureKind
from agentsched.testing import VirtualClock
from agentsched.transport import sse
from agentsched.transport.exchange import Ended, Exchange
from agentsched.transport.incoming import Incoming
from agentsched.transport.outgoing import Addressing
from tests.doubles import Answer, Sink, incoming, upstream


class Ran:
    """What one attempt came to."""

    def __init__(self, ended: Ended | None, sink: Sink, seen: Any, at: float) -> None:
        self.ended = ended
        self.sink = sink
        self.seen = seen
        self.at = at

    @property
    def kind(self) -> FailureKind:
        assert self.ended is not None, "it did not fail"
        return self.ended.failure.kind

    @property
    def answer(self) -> Any:
        assert self.ended is None, self.ended
        return json.loads(self.sink.content)

    @property
    def payloads(self) -> list[Any]:
        decoder = sse.Decoder()
        found = decoder.feed(self.sink.content) + decoder.flush()
        return [data.decode() if data == b"[DONE]" else json.loads(data or b"") for _, data in found]


def run(
    stack: ModuleType,
    answer: Answer,
    call: Incoming | None = None,
    backend: Backend | None = None,
    *,
    limits: Limits | None = None,
    sink: Sink | None = None,
    priority: int = 0,
) -> Ran:
    """Run one attempt in virtual time."""
    sink = sink if sink is not None else Sink()
    clock, transport = VirtualClock(), upstream(stack, answer)
    call = call if call is not None else incoming()
    outgoing = Addressing(stack).address(call, backend or Backend("http://b:1/v1"), priority)

    async def main() -> Ran:
        ended = await Exchange(stack, transport, call, outgoing, sink, limits=limits).run()
        at = clock()
        assert transport.seen.open == 0, "the connection is closed"
        return Ran(ended, sink, transport.seen, at)

    ran = clock.run(main())
    assert (ran.ended is None) == (sink.usage is not None), "it finishes or fails, not both, not neither"
    assert [what for what in sink.log if what != "signalled"][:1] in ([], ["begin"])
    return ran
