"""A small model of what callers are promised, written from the contract and not from the code under test.

Time is virtual seconds. The numbers are chosen so that no sum of the steps that the machine takes comes near a limit:
the few real seconds that a run takes never decide anything.
"""

from dataclasses import dataclass, field

LEASE = 120.0
RETRY = 75.0
STEPS = (50.0, 130.0, 700.0)
LONGEST_TOKEN = 24 * 3600.0 - 300.0
TOKEN_SLACK = 300.0 - 20.0
"""A token lives five minutes longer than its attempt may; near that end both answers are right."""


@dataclass(frozen=True)
class Answer:
    """What a caller must see: a status, and the parts of the body that the contract fixes."""

    status: int
    says: dict[str, object] = field(default_factory=dict)


FENCED = "fenced"


def refused(status: int, code: str) -> Answer:
    return Answer(status, {"code": code})


@dataclass(eq=False)
class Attempt:
    task: "ModelTask"
    number: int
    lease_token: str
    token: str
    claim_id: str | None
    claimed_at: float
    lease_end: float
    word: str | None = None
    published: set[str] = field(default_factory=set)

    @property
    def current(self) -> bool:
        task = self.task
        return self is task.attempts[-1] and self.word is None and task.status not in ("Completed", "Canceled")

    def token_may_be_expired(self, now: float) -> bool:
        return now > self.claimed_at + min(self.task.timeout, LONGEST_TOKEN) + TOKEN_SLACK


@dataclass(eq=False)
class ModelTask:
    task_id: str
    timeout: float
    max_attempts: int
    status: str = "Queued"
    retry_at: float | None = None
    cancel_requested: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    events: set[int] = field(default_factory=set)
    results: int = 0
    """How often somebody was told that a completion of this task was taken as its result."""

    @property
    def final(self) -> bool:
        return self.status in ("Completed", "Canceled") or (self.status == "Failed" and self.retry_at is None)

    # What callers do

    def claim(self, claim_id: str | None) -> str | None:
        """None means that a new attempt starts (see `started`); otherwise the reason, or "same"."""
        if self.status == "Running":
            last = self.attempts[-1]
            return "same" if claim_id is not None and claim_id == last.claim_id else "AlreadyRunning"
        if self.status == "Failed":
            return "Failed" if self.final else "NotReady"
        return None if self.status == "Queued" else self.status

    def started(self, lease_token: str, token: str, claim_id: str | None, now: float) -> Attempt:
        attempt = Attempt(self, len(self.attempts) + 1, lease_token, token, claim_id, now, 0.0)
        self.attempts.append(attempt)
        self.status = "Running"
        self._lease(attempt, now)
        return attempt

    def heartbeat(self, attempt: Attempt, now: float) -> Answer:
        if not attempt.current:
            return refused(409, FENCED)
        if now >= attempt.claimed_at + self.timeout:
            return refused(409, "deadline_exceeded")
        self.status, self.retry_at = "Running", None
        self._lease(attempt, now)
        return Answer(200, {"cancel": self.cancel_requested, "pause": False})

    def complete(self, attempt: Attempt, word: str, retryable: bool, now: float) -> Answer:
        if attempt is self.attempts[-1]:
            if attempt.word is not None:
                recorded = self.status if self.final else attempt.word
                return Answer(200, {"status": recorded, "duplicate": True})
            if self.status == "Canceled" and word == "Canceled":
                return Answer(200, {"status": "Canceled", "duplicate": True})
        if not attempt.current:
            return refused(409, FENCED)
        if word == "Completed" and self.cancel_requested:
            return refused(422, "cancel_requested")
        attempt.word = word
        if word == "Completed":
            self.results += 1
        if word != "Completed" and not self.cancel_requested:
            self._failed(retryable and word == "Failed", now)
            return Answer(200, {"status": "Failed", "duplicate": False})
        self._over(word if word == "Completed" else "Canceled")
        return Answer(200, {"status": self.status, "duplicate": False})

    def say(self, attempt: Attempt, cursors: list[int]) -> Answer:
        if not attempt.current:
            return refused(409, FENCED)
        known = set(cursors) <= self.events
        self.events |= set(cursors)
        return Answer(200, {"accepted": len(cursors), "duplicate": known})

    def publish(self, attempt: Attempt, name: str) -> Answer:
        if not attempt.current:
            return refused(409, FENCED)
        known = name in attempt.published
        attempt.published.add(name)
        return Answer(200, {"duplicate": known})

    def cancel(self) -> Answer:
        before = (self.status, self.cancel_requested)
        if self.status != "Canceled":
            if self.final:
                return refused(422, "task_finished")
            if self.status == "Running":
                self.cancel_requested = True
            else:
                self._over("Canceled")
        duplicate = before == (self.status, self.cancel_requested)
        return Answer(200, {"status": self.status, "cancel_requested": self.cancel_requested, "duplicate": duplicate})

    # What time does

    def expire(self, now: float) -> bool:
        if self.status != "Running" or self.attempts[-1].lease_end > now:
            return False
        if self.cancel_requested:
            self._over("Canceled")
        else:
            self._failed(True, now)
        return True

    def requeue(self, now: float) -> bool:
        if self.retry_at is None or self.retry_at > now:
            return False
        self.status, self.retry_at = "Queued", None
        return True

    def _failed(self, retryable: bool, now: float) -> None:
        if not retryable or len(self.attempts) >= self.max_attempts:
            self._over("Failed")
        elif self.status == "Running":
            self.status, self.retry_at = "Failed", now + RETRY
        # else: the clock had scheduled the retry, which keeps its place

    def _over(self, status: str) -> None:
        self.status, self.retry_at = status, None

    def _lease(self, attempt: Attempt, now: float) -> None:
        attempt.lease_end = min(now + LEASE, attempt.claimed_at + self.timeout)
