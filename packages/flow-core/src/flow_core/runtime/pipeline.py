"""The actors of a session: feed (the caller), compute and callback, joined by registers.

A step enters at `Pipeline.submit` when its job has a token, waits in ``fed`` for the compute
actor and in ``results`` for the callback actor, whose acknowledgement gives the token back.  A synchronous step on an idle pipeline acts in the caller's thread: same
registers, no hand-over between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flow_core.errors import JobError
from flow_core.runtime.registers import Register

COMPUTE, CALLBACK = "compute", "callback"


class Runnable(Protocol):
    """What a step runs: an executable."""

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        """One step."""


class Credit:
    """The tokens of one job: how many of its steps may be, and are, in flight.

    Attributes:
        width: how many may be in flight.
        used: how many are.
        peak: the most that ever were.
    """

    __slots__ = ("peak", "used", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.used = 0
        self.peak = 0

    def take(self) -> None:
        """Takes a token."""
        self.used += 1
        self.peak = max(self.peak, self.used)


class Step:
    """One step of one job on its way through the actors.

    Attributes:
        executable: what to run.
        feeds: arrays that nobody changes until the step has run.
        credit: the job's tokens.
        deliver: called in order with the step, in the callback actor.
        release: makes `deliver` stop waiting for its user, when that holds up somebody.
        results: the results, once computed.
        error: what went wrong in compute or callback.
    """

    __slots__ = ("_done", "credit", "deliver", "error", "executable", "feeds", "release", "results")

    def __init__(
        self,
        executable: Runnable,
        feeds: Sequence[Any],
        credit: Credit,
        deliver: Callable[[Step], None] | None = None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.executable = executable
        self.feeds: Sequence[Any] = feeds
        self.credit = credit
        self.deliver = deliver
        self.release = release
        self.results: tuple[Any, ...] | None = None
        self.error: BaseException | None = None
        self._done = threading.Event()

    def compute(self) -> None:
        """Runs the step and keeps results or error."""
        try:
            self.results = self.executable.run(self.feeds)
        except BaseException as error:
            self.error = error
        self.feeds = ()

    def finish(self) -> None:
        """Delivers the results and wakes who waits."""
        try:
            if self.deliver is not None and self.error is None:
                self.deliver(self)
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        """Blocks until the step is delivered."""
        self._done.wait()

    @property
    def done(self) -> bool:
        """Whether the step is delivered."""
        return self._done.is_set()


class Pipeline:
    """Moves the steps of a session's jobs through compute and callback, in order."""

    def __init__(self) -> None:
        self._fed = Register("fed", [COMPUTE], 1)
        self._results = Register("results", [CALLBACK], 1)
        self._in_flight = 0
        self._delivering: Step | None = None
        self._device = threading.Lock()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Steps between their call and the end of their callback."""
        return self._in_flight

    def run(self, step: Step) -> None:
        """Runs a step to its end: in the caller's thread when nothing is in flight."""
        with self._changed:
            inline = self._in_flight == 0
            if inline:
                self._take_token(step.credit)
        if inline:
            self._run_here(step)
        else:
            self.submit(step)
            step.wait()
        if step.error is not None:
            self._forget(step.error)
            raise step.error

    def _run_here(self, step: Step) -> None:
        try:
            with self._device:
                step.compute()
            step.finish()
        finally:
            self.give_back(step.credit)

    def submit(self, step: Step) -> None:
        """Feeds a step; blocks while its job has no token left."""
        self.reserve(step.credit)
        self.enter(step)

    def reserve(self, credit: Credit) -> None:
        """Takes a token of a job; blocks while it has none left.

        With the token the job's feeds of ``credit.width`` steps ago are free to be overwritten.
        """
        self._refuse_deadlock(credit)
        with self._changed:
            while credit.used >= credit.width:
                self._wait()
            self._take_token(credit)

    def enter(self, step: Step) -> None:
        """Feeds a step whose token is taken."""
        with self._changed:
            self._start(step.credit.width)
            while not self._fed.try_put(step):
                self._wait()
            self._changed.notify_all()

    def _wait(self) -> None:
        """Waits for a change; a delivery that waits for its user must not hold this up."""
        step = self._delivering
        if step is not None and step.release is not None:
            step.release()
        self._changed.wait()

    def _take_token(self, credit: Credit) -> None:
        credit.take()
        self._in_flight += 1

    def give_back(self, credit: Credit) -> None:
        """Gives back the token of a step that has ended, or was never fed."""
        with self._changed:
            credit.used -= 1
            self._in_flight -= 1
            self._changed.notify_all()

    def _refuse_deadlock(self, credit: Credit) -> None:
        inside = threading.current_thread() in self._threads
        if inside and (credit.used >= credit.width or self._fed.free == 0):
            raise JobError(
                "calling a job inside a callback",
                found=f"{credit.used} steps in flight, which only this callback's end can free",
                allowed="fewer steps in flight than concurrency_width",
                hint="raise function_config.concurrency_width, or call the job outside",
            )

    def sync(self) -> None:
        """Blocks until nothing is in flight; raises what callbacks raised."""
        if threading.current_thread() in self._threads:
            return
        with self._changed:
            while self._in_flight:
                self._wait()
        self.raise_pending()

    def raise_pending(self) -> None:
        """Raises the first error of an asynchronous step that nobody has seen yet."""
        if not self._errors:
            return
        with self._changed:
            error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error

    def close(self) -> None:
        """Delivers what is pending, then ends the threads."""
        with self._changed:
            while self._in_flight:
                self._wait()
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads = []

    def _forget(self, error: BaseException) -> None:
        with self._changed:
            self._errors = [e for e in self._errors if e is not error]

    def _start(self, width: int) -> None:
        self._fed.widen(width)
        self._results.widen(width)
        if self._threads:
            return
        for name, act in ((COMPUTE, self._compute), (CALLBACK, self._callback)):
            thread = threading.Thread(target=act, name=f"flow-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _take(self, register: Register, actor: str) -> Any:
        """The actor's next step; None when the pipeline is closed."""
        with self._changed:
            while not register.readable(actor):
                if self._closed:
                    return None
                self._changed.wait()
            return register.try_take(actor)

    def _compute(self) -> None:
        while (step := self._take(self._fed, COMPUTE)) is not None:
            with self._device:
                step.compute()
            with self._changed:
                while not self._results.try_put(step):
                    self._changed.wait()
                self._fed.acknowledge(COMPUTE)
                self._changed.notify_all()

    def _callback(self) -> None:
        while (step := self._take(self._results, CALLBACK)) is not None:
            with self._changed:
                self._delivering = step
                self._changed.notify_all()
            step.finish()
            with self._changed:
                self._delivering = None
                if step.error is not None:
                    self._errors.append(step.error)
                self._results.acknowledge(CALLBACK)
            self.give_back(step.credit)
