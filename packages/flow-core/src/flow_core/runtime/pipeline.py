"""The actors of a session: feed (the caller), compute and callback, joined by registers.

A step enters at `Pipeline.submit` when its job has a token, waits in ``fed`` for the compute
actor and in ``results`` for the callback actor, whose acknowledgement gives the token back.  A
synchronous step on an idle pipeline acts in the caller's thread: same tokens, no hand-over
between threads.

An interrupt (Ctrl-C) may strike the feeding thread anywhere.  So waits and `Pipeline.close` go by
what the registers hold, which only actors change, and not by the number of tokens in use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from flow_core.base.arrays import Array
from flow_core.base.changes import Changes
from flow_core.base.errors import JobError, user_line
from flow_core.base.forks import refusal
from flow_core.base.thread_pools import grant, settled
from flow_core.runtime.registers import Register

COMPUTE, CALLBACK = "compute", "callback"


class Runnable(Protocol):
    """What a step runs: an executable."""

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """One step."""


class Credit:
    """The tokens of one job, which bound its steps in flight.

    Attributes:
        width: the number of tokens.
        holders: the steps in flight.
        peak: the largest number of steps that were in flight at the same time.
    """

    __slots__ = ("holders", "peak", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.holders: set[Step] = set()
        self.peak = 0

    @property
    def free(self) -> bool:
        """Whether there is a token left."""
        return len(self.holders) < self.width

    def take(self, step: Step) -> None:
        """Take a token; `Step.slot` is unique among the holders."""
        slots = {holder.slot for holder in self.holders}
        step.slot = next(slot for slot in range(self.width) if slot not in slots)
        self.holders.add(step)
        self.peak = max(self.peak, len(self.holders))

    def give_back(self, step: Step) -> None:
        """Gives the token of a step back; once is enough."""
        self.holders.discard(step)


class Step:
    """One step of one job on its way through the actors.

    Attributes:
        executable: what to run.
        feeds: arrays that nobody changes until the step has run.
        credit: the job's tokens.
        deliver: called in order with the step, in the callback actor.
        release: makes `deliver` stop waiting for its user, when that holds up somebody.
        slot: number of its token, from 0; staging buffers of that number are its own.
        results: the results, once computed.
        error: what went wrong in compute or callback.
        fed: whether it is on its way; a step that is not can be given up.
        done: whether it is delivered.
    """

    __slots__ = (
        "credit", "deliver", "done", "error", "executable", "fed", "feeds", "release", "results",
        "slot",
    )  # fmt: skip

    def __init__(
        self,
        executable: Runnable,
        feeds: Sequence[Array],
        credit: Credit,
        deliver: Callable[[Step], None] | None = None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.executable = executable
        self.feeds = feeds
        self.credit = credit
        self.deliver = deliver
        self.release = release
        self.results: tuple[Any, ...] | None = None
        self.error: BaseException | None = None
        self.fed = False
        self.done = False
        self.slot = 0

    def compute(self) -> None:
        """Runs the step and keeps results or error."""
        try:
            self.results = self.executable.run(self.feeds)
        except BaseException as error:  # noqa: BLE001 - raised where the user waits for it
            self.error = error
        self.feeds = ()

    def finish(self) -> None:
        """Delivers the results, unless there is an error."""
        try:
            if self.deliver is not None and self.error is None:
                self.deliver(self)
        except BaseException as error:  # noqa: BLE001 - raised where the user waits for it
            self.error = error


class Pipeline:
    """Moves the steps of a session's jobs through compute and callback, in order.

    Attributes:
        process: the number of the process that has its threads.
    """

    def __init__(self) -> None:
        self._fed = Register("fed", [COMPUTE], 1)
        self._results = Register("results", [CALLBACK], 1)
        self._credits: set[Credit] = set()
        self._delivering: Step | None = None
        self._inline: threading.Thread | None = None
        self._device = threading.Lock()
        self._changes = Changes()
        self._threads: dict[str, threading.Thread] = {}
        self._errors: list[BaseException] = []
        self._closed = False
        self.process = os.getpid()
        self._left = False

    def leave_to_parent(self) -> None:
        """In a forked process: the actors, and all steps that are in flight, are the parent's."""
        self._closed = self._left = True
        self._changes, self._device = Changes(), threading.Lock()
        self._threads = {}

    def check_process(self) -> None:
        """Refuse what could only wait for ever.

        Raises:
            ForkError: this is a forked process, and the actors are its parent's.
        """
        if self._left:
            raise refusal("using results and sessions of another process", self.process)

    @property
    def in_flight(self) -> int:
        """Steps that hold a token: between their call and the end of their callback."""
        return sum(len(credit.holders) for credit in self._credits)

    @property
    def _actors_idle(self) -> bool:
        return self._fed.empty and self._results.empty

    @property
    def in_callback(self) -> bool:
        """Whether the caller is a callback, for which the callback actor waits."""
        return threading.current_thread() is self._threads.get(CALLBACK)

    @property
    def _in_handler(self) -> bool:
        """Whether the caller sees (``flow.watch``) a synchronous step that is not over yet."""
        return threading.current_thread() is self._inline

    # ------------------------------------------------------------------- calling

    def run(self, step: Step) -> None:
        """Runs a step to its end: in the caller's thread when nothing is in flight.

        Inside a callback, too: the steps that are already fed run before or after it.
        """
        if self.in_callback or self._in_handler:
            self._run_now(step)
        elif self._enter_inline(step):
            self._run_inline(step)
        else:
            self.submit(step)
            self.wait_for(step)
        if step.error is not None:
            self.forget(step.error)
            raise step.error

    def _enter_inline(self, step: Step) -> bool:
        with self._changes.lock:
            if self._inline is not None or not self._actors_idle:
                return False
            self._take_token(step)
            self._inline = threading.current_thread()
            return True

    def _run_inline(self, step: Step) -> None:
        try:
            self._run_now(step)
        finally:
            with self._changes.lock:  # who sees that it is over sees its token free
                self._inline = None
                self.give_back(step)

    def _run_now(self, step: Step) -> None:
        with self._device:
            step.compute()
        step.finish()
        step.done = True

    def submit(self, step: Step) -> None:
        """Feeds a step; blocks while its job has no token left."""
        self.reserve(step)
        self.enter(step)

    def reserve(self, step: Step) -> None:
        """Takes a token for a step; blocks while its job has none left.

        The step that last held a token of this number no longer reads its staging buffers.
        """

        def attempt() -> bool:
            if step.credit.free:
                self._take_token(step)
                return True
            self._refuse_deadlock(step.credit)
            return False

        self._wait_until(attempt)

    def enter(self, step: Step) -> None:
        """Feeds a step whose token is taken."""
        with self._changes.lock:
            self._start()
            step.fed = True
            if not self._fed.try_put(step):
                step.fed = False
                raise JobError("feeding a step", found="no free slot", allowed="one per token")
            self._changes.tell()

    def give_up(self, step: Step) -> None:
        """Gives back the token of a step unless it is on its way."""
        if not step.fed:
            self.give_back(step)

    def _take_token(self, step: Step) -> None:
        """Takes a token; registers get a slot for each token that there may be."""
        credit = step.credit
        if credit not in self._credits:
            self._credits.add(credit)
            slots = sum(c.width for c in self._credits)
            self._fed.widen(slots)
            self._results.widen(slots)
        credit.take(step)

    def give_back(self, step: Step) -> None:
        """Gives back the token of a step that has ended, or was never fed."""
        with self._changes.lock:
            step.credit.give_back(step)
            self._changes.tell()

    def _refuse_deadlock(self, credit: Credit) -> None:
        if self.in_callback:
            raise JobError(
                "calling a job inside a callback",
                at=user_line(2),
                found=f"{len(credit.holders)} steps in flight, which only this callback's end "
                "can free",
                allowed="fewer steps in flight than concurrency_width",
                hint="raise function_config.concurrency_width, or call the job outside",
            )

    # ------------------------------------------------------------------- waiting

    def wait_for(self, step: Step) -> None:
        """Blocks until a step is delivered.

        Raises:
            JobError: called by the callback of an earlier step, which is in the way.
        """
        if self.in_callback and not step.done:
            raise JobError(
                "waiting for a step inside a callback",
                at=user_line(2),
                found="a step that comes after this callback",
                allowed="steps that are delivered",
                hint="give it a callback of its own",
            )
        if not (self._left and step.done):
            self._wait_until(lambda: step.done)

    def _wait_until(self, attempt: Callable[[], bool]) -> None:
        """Waits as `Changes.until`; a delivery that waits for its user must not hold this up."""
        self.check_process()

        def hurry() -> bool:
            if attempt():
                return True
            step = self._delivering
            if step is not None and step.release is not None:
                step.release()
            return False

        with self._changes.lock:
            self._changes.tell()  # an interrupt may have kept somebody from saying so
        self._changes.until(hurry)

    def sync(self) -> None:
        """Blocks until nothing else is in flight; raises what callbacks raised.

        Inside a callback it does not wait: later steps cannot end before it.
        """
        if self.in_callback:
            return
        self._drain()
        self.raise_pending()

    def _drain(self) -> None:
        self._wait_until(lambda: self._actors_idle and (self._inline is None or self._in_handler))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Delivers what is pending, then keeps the device idle for a ``with`` block.

        Inside a callback, steps that are fed already wait for the end of the block.
        """
        self.sync()
        with self._device:
            yield

    def raise_pending(self) -> None:
        """Raises the first error of an asynchronous step that nobody has seen yet."""
        if not self._errors:
            return
        with self._changes.lock:
            error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error

    def forget(self, error: BaseException) -> None:
        """Takes note that somebody has seen an error."""
        with self._changes.lock:
            self._errors = [e for e in self._errors if e is not error]

    def close(self) -> tuple[BaseException, ...]:
        """Delivers what is pending, ends the threads, and gives the errors that nobody has seen.

        Raises:
            JobError: called by a callback.
        """
        if self.in_callback or self._in_handler:
            raise JobError(
                "clearing the session inside a callback",
                at=user_line(2),
                found="a step in flight: this callback's",
                allowed="outside of callbacks",
            )
        self._drain()
        with self._changes.lock:
            self._closed = True
            self._changes.tell()
        for thread in self._threads.values():
            thread.join()
        self._threads = {}
        return tuple(self._errors)

    # -------------------------------------------------------------------- actors

    def _start(self) -> None:
        if self._closed:
            raise JobError("calling a job", at=user_line(2), found="a session that is closed")
        for name, act in ((COMPUTE, self._compute), (CALLBACK, self._callback)):
            if name not in self._threads:
                thread = threading.Thread(target=act, name=f"flow-{name}", daemon=True)
                thread.start()
                self._threads[name] = thread

    def _take(self, register: Register, actor: str) -> Any:
        """The actor's next step; None when the pipeline is closed."""
        self._changes.until(lambda: register.readable(actor) or self._closed)
        with self._changes.lock:
            is_there = register.readable(actor) and not self._left
            return register.try_take(actor) if is_there else None

    def _compute(self) -> None:
        grant(settled().count)  # a new thread has what OpenMP's runtime was loaded with
        while (step := self._take(self._fed, COMPUTE)) is not None:
            with self._device:
                step.compute()
            self._changes.until(partial(self._pass_on, step))

    def _pass_on(self, step: Step) -> bool:
        """Hands a computed step over; its slot is free before its callback may free its token."""
        if not self._results.try_put(step):
            return False
        self._fed.acknowledge(COMPUTE)
        self._changes.tell()
        return True

    def _callback(self) -> None:
        while (step := self._take(self._results, CALLBACK)) is not None:
            with self._changes.lock:
                self._delivering = step
                self._changes.tell()
            step.finish()
            with self._changes.lock:
                self._delivering = None
                if step.error is not None:
                    self._errors.append(step.error)
                step.done = True  # now: who waits for it has the error forgotten
                self._results.acknowledge(CALLBACK)
                self.give_back(step)  # now: who sees that the actors are idle sees no token taken
