"""The actors of a session: feed (the caller), compute and callback, joined by registers.

A step enters the pipeline in `Pipeline.submit` when its job has a free token.  The step waits in
the register ``fed`` for the compute actor, then in the register ``results`` for the callback actor,
which releases the token after the callback.  If the pipeline is idle, a synchronous step runs in
the caller's thread: it holds a token but is not passed between threads.

An interrupt (Ctrl-C) may hit the feeding thread anywhere.  Waits and `Pipeline.close` therefore
depend on the registers, which only actors change, and not on the number of tokens in use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol

from flow_core.base.arrays import Array
from flow_core.base.changes import Changes
from flow_core.base.errors import JobError, user_line_of_thread
from flow_core.base.forks import refusal
from flow_core.base.thread_pools import process_budget, set_kernel_threads
from flow_core.runtime.registers import Register

COMPUTE, CALLBACK = "compute", "callback"


class Runnable(Protocol):
    """The interface of an executable to the pipeline."""

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step."""


class Credit:
    """The tokens of one job, which limit its steps in flight."""

    __slots__ = ("holders", "peak", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.holders: set[Step] = set()  # the steps in flight
        self.peak = 0  # the largest number of steps that were in flight at the same time

    @property
    def free(self) -> bool:
        return len(self.holders) < self.width

    def take(self, step: Step) -> None:
        """Take a token; `Step.slot` is unique among the holders."""
        holders = self.holders
        if holders:
            slots = {holder.slot for holder in holders}
            step.slot = next(slot for slot in range(self.width) if slot not in slots)
        holders.add(step)
        if len(holders) > self.peak:
            self.peak = len(holders)

    def release(self, step: Step) -> None:
        """Release a step's token, if it holds one."""
        self.holders.discard(step)


class Step:
    """One step of one job in the pipeline."""

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
        self.feeds = feeds  # the fed arrays, which must not change until the step has run
        self.credit = credit  # the job's tokens
        # A function that the callback actor calls with the step; steps keep their order.
        self.deliver = deliver
        # A function that makes `deliver` stop waiting for a callback while another thread waits for
        # the pipeline.
        self.release = release
        self.results: tuple[Any, ...] | None = None
        self.error: BaseException | None = None  # the error of the computation or the callback
        # Whether the step has entered the pipeline; until then, it can be cancelled.
        self.fed = False
        self.done = False  # whether the step has been delivered
        # Number of the step's token, from 0, which is also that of its staging buffers.
        self.slot = 0

    def run(self, device: AbstractContextManager[object]) -> None:
        """Run and deliver the step in the caller's thread; raise its error.

        Args:
            device: is held while the step computes.
        """
        with device:
            self.results = self.executable.run(self.feeds)
        if self.deliver is not None:
            self.deliver(self)
        self.done = True

    def compute(self) -> None:
        """Run the step, and store its results or its error."""
        try:
            self.results = self.executable.run(self.feeds)
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self.error = error
        self.feeds = ()

    def finish(self) -> None:
        """Deliver the results unless the step failed."""
        try:
            if self.deliver is not None and self.error is None:
                self.deliver(self)
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self.error = error


class Pipeline:
    """The pipeline of a session, which computes and delivers the steps of all jobs in order."""

    def __init__(self) -> None:
        self._fed = Register("fed", [COMPUTE], 1)
        self._results = Register("results", [CALLBACK], 1)
        self._credits: set[Credit] = set()
        self._delivering: Step | None = None
        self._inline: tuple[threading.Thread, Step] | None = None  # what runs in a caller's thread
        self._device = threading.Lock()
        self._changes = Changes()
        self._threads: dict[str, threading.Thread] = {}
        self._errors: list[BaseException] = []
        self._closed = False
        self.process = os.getpid()  # the id of the process that owns the threads
        # Whether only one thread at a time may call jobs, because other processes must run the same
        # steps in the same order.
        self.one_caller = False
        self._left = False

    def leave_to_parent(self) -> None:
        """Abandon the actors and all steps in flight in a forked process."""
        self._closed = self._left = True
        self._changes, self._device = Changes(), threading.Lock()
        self._threads = {}

    def check_process(self) -> None:
        """Refuse to wait for actors that run in another process.

        Raises `ForkError` if this is a forked process, and the actors belong to its parent.
        """
        if self._left:
            raise refusal("using results and sessions of another process", self.process)

    @property
    def in_flight(self) -> int:
        """The number of steps that hold a token: from their call to the end of their callback."""
        return sum(len(credit.holders) for credit in self._credits)

    @property
    def _actors_idle(self) -> bool:
        return self._fed.empty and self._results.empty

    @property
    def in_callback(self) -> bool:
        """Whether the caller is a callback that the callback actor runs."""
        actor = self._threads.get(CALLBACK)
        return actor is not None and actor is threading.current_thread()

    @property
    def _in_handler(self) -> bool:
        """Whether the caller is a ``flow.watch`` handler of an unfinished synchronous step."""
        inline = self._inline
        return inline is not None and inline[0] is threading.current_thread()

    # ------------------------------------------------------------------- calling

    def run(self, step: Step) -> None:
        """Run a step to its end, in the caller's thread if nothing is in flight.

        This also works inside a callback; steps that were already fed run before or after the step.
        """
        is_alone = not self._threads and self._inline is None  # no callback, and no handler
        if is_alone and self._run_inline(step):
            return
        if self.in_callback or self._in_handler:
            step.run(self._device)
        elif not self._run_inline(step):
            self._refuse_second_caller()
            self.submit(step)
            self.wait_for(step)
        if step.error is not None:
            self.forget(step.error)
            raise step.error

    def _refuse_second_caller(self) -> None:
        inline = self._inline
        if self.one_caller and inline is not None:
            other, _ = inline
            line = user_line_of_thread(other)
            raise JobError.at_caller(
                f"calling a job in thread {threading.current_thread().name!r}",
                found=f"a step of thread {other.name!r}{f' (at {line})' if line else ''}, in a "
                "program of several processes, whose steps must have the same order everywhere",
                allowed="calls from one thread at a time",
                hint="call all jobs in one thread, or pass the turn between threads in an order "
                "that is the same in all processes",
            )

    def _run_inline(self, step: Step) -> bool:
        """Run a step in this thread if none is in flight; return whether it ran, raise its error.

        Ctrl-C may interrupt at any call: also the one that ends the step, which is then repeated.
        """
        try:
            with self._changes.lock:
                if self._inline is not None or (self._threads and not self._actors_idle):
                    return False
                self._inline = threading.current_thread(), step
                self._take_token(step)
            step.run(self._device)
            return True
        finally:
            try:
                self._leave_inline(step)
            finally:
                self._leave_inline(step)

    def _leave_inline(self, step: Step) -> None:
        inline = self._inline
        if inline is None or inline[1] is not step:
            return
        with self._changes.lock:  # other threads see `_inline` None only with the token free
            step.credit.release(step)
            self._inline = None
            self._changes.notify()

    def submit(self, step: Step) -> None:
        """Feed a step; block until its job has a free token."""
        self.reserve(step)
        self.enter(step)

    def reserve(self, step: Step) -> None:
        """Take a token for a step; block until the step's job has a free one.

        The step that last held this token no longer reads the token's staging buffers.
        """

        def attempt() -> bool:
            if step.credit.free:
                self._take_token(step)
                return True
            self._refuse_deadlock(step.credit)
            return False

        self._wait_until(attempt)

    def enter(self, step: Step) -> None:
        """Feed a step that holds a token."""
        with self._changes.lock:
            self._start()
            step.fed = True
            if not self._fed.try_put(step):
                step.fed = False
                raise JobError("feeding a step", found="no free slot", allowed="one slot per token")
            self._changes.notify()

    def give_up(self, step: Step) -> None:
        """Release the token of a step unless it has entered the pipeline."""
        if not step.fed:
            self.release_token(step)

    def _take_token(self, step: Step) -> None:
        """Take a token; widen the registers to one slot per token of all jobs."""
        credit = step.credit
        if credit not in self._credits:
            self._credits.add(credit)
            slots = sum(c.width for c in self._credits)
            self._fed.widen(slots)
            self._results.widen(slots)
        credit.take(step)

    def release_token(self, step: Step) -> None:
        """Release the token of a step that has ended or was never fed."""
        with self._changes.lock:
            step.credit.release(step)
            self._changes.notify()

    def _refuse_deadlock(self, credit: Credit) -> None:
        if self.in_callback:
            raise JobError.at_caller(
                "calling a job inside a callback",
                found=f"{len(credit.holders)} steps in flight, which cannot finish before this "
                "callback",
                allowed="fewer steps in flight than concurrency_width",
                hint="raise function_config.concurrency_width, or do not call jobs in callbacks",
            )

    # ------------------------------------------------------------------- waiting

    def wait_for(self, step: Step) -> None:
        """Block until a step is delivered.

        Raises `JobError` if the caller is the callback of an earlier step, which must end first.
        """
        if self.in_callback and not step.done:
            raise JobError.at_caller(
                "waiting for a step inside a callback",
                found="a later step, which starts its callbacks only after this one has returned",
                allowed="steps whose callbacks have returned",
                hint="pass a separate callback for that step instead of waiting for the step here",
            )
        if not (self._left and step.done):
            self._wait_until(lambda: step.done)

    def _wait_until(self, attempt: Callable[[], bool]) -> None:
        """Wait like `Changes.wait_until`, and call `Step.release` of the step under delivery."""
        self.check_process()

        def attempt_or_release() -> bool:
            if attempt():
                return True
            step = self._delivering
            if step is not None and step.release is not None:
                step.release()
            return False

        with self._changes.lock:
            self._changes.notify()  # an interrupt may have prevented a notification
        self._changes.wait_until(attempt_or_release)

    def sync(self) -> None:
        """Block until no other step is in flight; raise errors of asynchronous steps.

        Inside a callback, return at once, since later steps cannot end before the callback.
        """
        if self.in_callback:
            return
        self._drain()
        self.raise_pending()

    def _drain(self) -> None:
        self._wait_until(lambda: self._actors_idle and (self._inline is None or self._in_handler))

    @contextmanager
    def quiesced(self) -> Iterator[None]:
        """Deliver pending steps, then keep the devices idle during a ``with`` block.

        Inside a callback, steps that were already fed wait for the end of the block.
        """
        self.sync()
        with self._device:
            yield

    def raise_pending(self) -> None:
        """Raise the first error of an asynchronous step that has not been reported yet."""
        if not self._errors:
            return
        with self._changes.lock:
            error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error

    def forget(self, error: BaseException) -> None:
        with self._changes.lock:
            self._errors = [e for e in self._errors if e is not error]

    def close(self) -> tuple[BaseException, ...]:
        """Deliver pending steps, end the threads, and return the unreported errors.

        Raises `JobError` if the caller is a callback.
        """
        if self.in_callback or self._in_handler:
            raise JobError.at_caller(
                "clearing the session inside a callback",
                found="the step of this callback, which has not finished",
                allowed="a call from outside of callbacks",
            )
        self._drain()
        with self._changes.lock:
            self._closed = True
            self._changes.notify()
        for thread in self._threads.values():
            thread.join()
        self._threads = {}
        return tuple(self._errors)

    # -------------------------------------------------------------------- actors

    def _start(self) -> None:
        if self._closed:
            raise JobError.at_caller("calling a job", found="a session that is closed")
        for name, act in ((COMPUTE, self._compute), (CALLBACK, self._callback)):
            if name not in self._threads:
                thread = threading.Thread(target=act, name=f"flow-{name}", daemon=True)
                thread.start()
                self._threads[name] = thread

    def _take(self, register: Register, actor: str) -> Any:
        """Return the actor's next step; None if the pipeline is closed."""
        self._changes.wait_until(lambda: register.readable(actor) or self._closed)
        with self._changes.lock:
            available = register.readable(actor) and not self._left
            return register.try_take(actor) if available else None

    def _compute(self) -> None:
        set_kernel_threads(process_budget().count)
        while (step := self._take(self._fed, COMPUTE)) is not None:
            with self._device:
                step.compute()
            self._changes.wait_until(partial(self._pass_on, step))

    def _pass_on(self, step: Step) -> bool:
        """Pass a computed step to the callback actor; free its slot before its token is free."""
        if not self._results.try_put(step):
            return False
        self._fed.acknowledge(COMPUTE)
        self._changes.notify()
        return True

    def _callback(self) -> None:
        while (step := self._take(self._results, CALLBACK)) is not None:
            with self._changes.lock:
                self._delivering = step
                self._changes.notify()
            step.finish()
            with self._changes.lock:
                self._delivering = None
                if step.error is not None:
                    self._errors.append(step.error)
                step.done = True  # after the error is recorded: waiters remove it
                self._results.acknowledge(CALLBACK)
                self.release_token(step)  # under the same lock: idle actors imply free tokens
