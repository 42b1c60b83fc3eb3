"""How a request ends: once, in one of these ways."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request; few values, fit for a metrics label."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why a request was rejected or cancelled."""

    QUEUE_FULL = "queue full"
    CALL_LIMIT = "call limit of the query"
    UNKNOWN_MODEL = "no backend serves the model"
    NO_BACKEND = "the fleet is empty"
    CLOSED = "scheduler closed"
    CALLER_LEFT = "the caller left"
    READER_STALLED = "the reader stopped reading"
    LOOP_CLOSED = "the event loop of the caller closed"
