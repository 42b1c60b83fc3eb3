"""The engine's invariants: what must hold between any two events."""

from typing import TYPE_CHECKING

from agentsched.errors import InvariantBroken

if TYPE_CHECKING:
    from agentsched.engine.engine import Engine


def check(engine: "Engine") -> None:
    """Raise `InvariantBroken` at the first contradiction; its message carries the request's story."""
    _check_requests(engine)
    _check_fleet(engine)
    _check_backends(engine)
    _check_queue(engine)
    _check_queries(engine)


def _check_requests(engine: "Engine") -> None:
    for request_id, row in engine.requests.items():
        attempt = row.attempt
        if any(name not in engine.backends for name in row.tried):
            _broken(engine, request_id, f"tried {row.tried}, not all of which are in the fleet")
        if attempt is None:
            continue
        if engine.attempts.get(attempt.id) is not attempt or attempt.request_id != request_id:
            _broken(engine, request_id, "runs as an attempt that the engine does not know")
        if attempt.backend.running.get(attempt.id) is not attempt:
            _broken(engine, request_id, f"runs at {attempt.backend.name}, which does not know of it")
        if engine.backends.get(attempt.backend.name) is not attempt.backend:
            _broken(engine, request_id, f"runs at {attempt.backend.name}, which has left the fleet")
        if attempt.backend.name in row.tried:
            _broken(engine, request_id, f"runs again at {attempt.backend.name}, which failed it")
    for attempt_id, attempt in engine.attempts.items():
        row = engine.requests.get(attempt.request_id)
        if row is None or row.attempt is not attempt:
            _broken(engine, attempt.request_id, f"has a stray attempt {attempt_id}")


def _check_fleet(engine: "Engine") -> None:
    open_to_calls = [name for name, row in engine.backends.items() if not row.draining]
    if list(engine.directory) != open_to_calls:
        raise InvariantBroken(f"{open_to_calls} take calls, the directory knows {list(engine.directory)}")
    for name, row in engine.backends.items():
        if row.draining and not row.running:
            raise InvariantBroken(f"{name} drains, nothing runs there, and it is not gone")
        if row.name != name or row.spec.name != name:
            raise InvariantBroken(f"the backend {row.spec.name} is known as {name} and {row.name}")
    for attribute, values in (
        ("index", [row.index for row in engine.backends.values()]),
        ("address", [row.spec.base_url for row in engine.backends.values()]),
    ):
        if len(set(values)) != len(values):
            raise InvariantBroken(f"two backends have the same {attribute}: {values}")


def _check_backends(engine: "Engine") -> None:
    held = 0
    for name, row in engine.backends.items():
        held += len(row.running)
        if row.spec.max_concurrency is not None and len(row.running) > row.spec.max_concurrency:
            raise InvariantBroken(
                f"{name} runs {len(row.running)} calls, its limit is {row.spec.max_concurrency}"
            )
        limit = row.spec.max_concurrency
        if row.has_slot != (limit is None or len(row.running) < limit):
            raise InvariantBroken(f"{name} runs {len(row.running)} calls of {limit}, its flag says otherwise")
        reading = sum(a.unread_tokens for a in row.running.values() if a.first_at is None)
        if reading != row.unread_tokens:
            raise InvariantBroken(f"{name} counts {row.unread_tokens} tokens to read, its calls {reading}")
        holding = sum(a.held_tokens for a in row.running.values())
        if abs(holding - row.held_tokens) > 1e-6 * max(holding, 1.0):
            raise InvariantBroken(f"{name} counts {row.held_tokens} tokens committed, its calls {holding}")
        homed = [r for r in engine.requests.values() if r.home is row]
        if len(homed) != row.homed or any(r.attempt is not None for r in homed):
            raise InvariantBroken(
                f"{name} counts {row.homed} waiting calls as its own, they are {len(homed)}"
            )
        for what, window in (("requests", row.rpm), ("tokens", row.tpm)):
            if window is not None and window.used < -1e-6:
                raise InvariantBroken(f"{name} has {window.used} {what} in its rate window")
    if held != len(engine.attempts):
        raise InvariantBroken(f"backends hold {held} attempts, the engine {len(engine.attempts)}")


def _check_queue(engine: "Engine") -> None:
    queued: dict[str, object] = {}
    for choice, lane in engine.queue.lanes.items():
        if any(name not in engine.directory for name in choice):
            raise InvariantBroken(f"calls wait in the lane {choice}, not all of which take calls")
        if not len(lane):
            raise InvariantBroken(f"the lane {choice} is empty and was not removed")
        for key, request_id in lane:
            row = engine.requests.get(request_id)
            if row is None or row.attempt is not None or request_id in queued:
                _broken(engine, request_id, "is queued but ended, running or queued twice")
            elif row.key != key or row.choice != choice:
                _broken(
                    engine,
                    request_id,
                    f"is queued as {key} in {choice}, its row says {row.key}, {row.choice}",
                )
            queued[request_id] = key
    if len(queued) != len(engine.queue):
        raise InvariantBroken(f"the queue counts {len(engine.queue)} calls and holds {len(queued)}")
    for request_id, row in engine.requests.items():
        if row.attempt is None and request_id not in queued:
            _broken(engine, request_id, "neither runs nor waits: it is lost")
        if row.home is not None and row.home.name not in row.choice:
            _broken(engine, request_id, f"has its home at {row.home.name}, where it cannot go")


def _check_queries(engine: "Engine") -> None:
    for row in engine.queries.rows:
        limit = row.query.max_calls
        if row.calls < 0 or (limit is not None and row.calls > limit):
            raise InvariantBroken(f"query {row.query.id} counts {row.calls} calls of {limit}")


def _broken(engine: "Engine", request_id: str, what: str) -> None:
    story = "\n  ".join(map(str, engine.story(request_id)))
    raise InvariantBroken(f"request {request_id} {what}\n  {story}", request_id=request_id)
