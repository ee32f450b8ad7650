"""Asynchronous jobs: order, back-pressure, errors, what is delivered when, Ctrl-C."""

import contextlib
import gc
import itertools
import os
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError, JobError, PlanError
from flow_core.frontend.session.session import default_session
from flow_core.plan import RegisterPlan
from flow_core.runtime.executable import Executable
from flow_data.namespace import OFRecordWriter

pytestmark = pytest.mark.timeout(processes.scaled(300))  # a deadlock is a failure, not a hang

ONE = tp.Numpy.Placeholder((1,))


def one(value: float) -> Any:
    return np.array([value], np.float32)


def make_job(width: int | None = None, name: str = "job") -> Any:
    """An asynchronous job that adds 1."""
    config = flow.function_config()
    if width is not None:
        config.concurrency_width(width)

    def job(x: ONE) -> tp.Callback[tp.Numpy]:
        return x + 1

    job.__name__ = name
    return flow.global_function(type="predict", function_config=config)(job)


def blocking_job() -> Any:
    @flow.global_function(type="predict")
    def blocking(x: ONE) -> tp.Numpy:
        return x * 2

    return blocking


# -------------------------------------------------------------------------- order and bounds


def test_callbacks_come_in_order_in_one_thread_of_their_own() -> None:
    job, got, threads = make_job(), [], set()

    def callback(y: Any) -> None:
        got.append(float(y[0]))
        threads.add(threading.current_thread())

    for i in range(200):
        job(one(i))(callback)
    flow.sync_default_session()
    assert got == [i + 1.0 for i in range(200)]
    assert len(threads) == 1
    assert threads != {threading.current_thread()}


def test_callbacks_of_several_jobs_come_in_the_order_of_the_calls() -> None:
    jobs = [make_job(width, f"job{width}") for width in (1, 2, 5)]
    got: list[float] = []
    for i in range(60):
        jobs[i % 3](one(i))(lambda y: got.append(float(y[0])))
    flow.sync_default_session()
    assert got == [i + 1.0 for i in range(60)]


@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_back_pressure_is_the_concurrency_width(width: int) -> None:
    job = make_job(width)
    lock, state = threading.Lock(), {"called": 0, "ended": 0, "most": 0}

    def callback(_: Any) -> None:
        time.sleep(0.002)
        with lock:
            state["ended"] += 1

    for i in range(5 * width):
        called = job(one(i))
        with lock:
            state["called"] += 1
            state["most"] = max(state["most"], state["called"] - state["ended"])
        called(callback)
    flow.sync_default_session()
    assert state["ended"] == 5 * width
    assert job.peak_in_flight == width
    assert state["most"] <= width + 1  # a callback has ended a moment before its step is over


def test_the_default_width_is_a_few() -> None:
    job, hold = make_job(), threading.Event()
    started = threading.Thread(
        target=lambda: [job(one(i))(lambda _: hold.wait(processes.scaled(50))) for i in range(9)]
    )
    started.start()
    while job.peak_in_flight < 2 and started.is_alive():
        time.sleep(0.01)
    time.sleep(0.05)
    assert 2 <= job.peak_in_flight <= 8
    assert started.is_alive()
    hold.set()
    started.join(processes.scaled(50))
    flow.sync_default_session()


def test_a_fed_array_may_be_changed_right_after_the_call() -> None:
    job, got, x = make_job(3), [], one(0)
    for i in range(50):
        x[0] = i
        job(x)(lambda y: got.append(float(y[0])))
        x[0] = -100
    flow.sync_default_session()
    assert got == [i + 1.0 for i in range(50)]


def test_results_stay_after_their_step() -> None:
    job, got = make_job(2), []
    for i in range(20):
        job(one(i))(got.append)
    flow.sync_default_session()
    assert [float(y[0]) for y in got] == [i + 1.0 for i in range(20)]


def test_synchronous_and_asynchronous_steps_run_in_the_order_of_the_calls() -> None:
    def update(result: Any) -> Any:
        def job() -> Any:
            w = flow.get_variable("w", shape=(1,), initializer=flow.zeros_initializer())
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
            flow.optimizer.SGD(rate, momentum=0).minimize(w)
            return w

        job.__name__ = str(result)
        job.__annotations__ = {"return": result}
        return flow.global_function(type="train")(job)

    now, later = update(tp.Numpy), update(tp.Callback[tp.Numpy])
    got: list[float] = []
    for _ in range(10):
        later()(lambda w: got.append(float(w[0])))
        got.append(float(now()[0]))
    assert got == [-float(i) for i in range(20)]


def test_calls_from_several_threads() -> None:
    job, blocking, got = make_job(3), blocking_job(), []
    wrong: list[Any] = []

    def caller(base: int) -> None:
        for i in range(base, base + 50):
            job(one(i))(lambda y: got.append(float(y[0])))
            if float(blocking(one(i))[0]) != 2 * i:
                wrong.append(i)

    threads = [threading.Thread(target=caller, args=(100 * t,)) for t in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(processes.scaled(30))
    flow.sync_default_session()
    assert not wrong
    assert sorted(got) == sorted(100 * t + i + 1.0 for t in range(3) for i in range(50))


# ------------------------------------------------------------------------------------- errors


def fails(_: Any) -> None:
    raise ValueError("in the callback")


@pytest.mark.parametrize("surface", ["sync", "call", "clear", "other job"])
def test_a_callback_error_surfaces_with_its_traceback(surface: str) -> None:
    job, other, got = make_job(), blocking_job(), []
    other(one(0))
    job(one(0))(fails)
    job(one(1))(got.append)
    while not got:
        time.sleep(0.001)
    surfaces = {
        "sync": flow.sync_default_session,
        "call": lambda: job(one(2)),
        "clear": flow.clear_default_session,
        "other job": lambda: other(one(2)),
    }
    with pytest.raises(ValueError, match="in the callback") as caught:
        surfaces[surface]()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].name, frames[-1].filename) == ("fails", __file__)
    flow.sync_default_session()  # seen once
    np.testing.assert_array_equal(other(one(4)), one(8))


def test_later_steps_go_on_after_a_callback_error() -> None:
    job, got = make_job(2), []
    job(one(0))(fails)
    errors = 0
    for i in range(1, 10):
        try:
            job(one(i))(lambda y: got.append(float(y[0])))
        except ValueError:
            errors += 1
            job(one(i))(lambda y: got.append(float(y[0])))
    try:
        flow.sync_default_session()
    except ValueError:
        errors += 1
    assert errors == 1
    assert got == [i + 1.0 for i in range(1, 10)]


def test_several_errors_surface_one_by_one() -> None:
    job = make_job(4)
    handles = [job(one(i)) for i in range(3)]
    for handle in handles:
        handle(fails)
    for _ in range(3):
        with pytest.raises(ValueError, match="in the callback"):
            flow.sync_default_session()
    flow.sync_default_session()


def test_the_error_of_a_step_is_raised_where_its_result_is_asked_for() -> None:
    seen: list[Any] = []

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2,), dtype=flow.int32)):
        hot = flow.one_hot(x, 3)
        flow.watch(hot, seen.append)
        return hot

    handle = job(np.array([0, 7], np.int32))
    with pytest.raises(DataError, match="7"):
        handle.get()
    flow.sync_default_session()  # and not again
    assert seen == []
    assert job(np.array([0, 2], np.int32)).numpy().shape == (2, 3)
    assert len(seen) == 1


def test_a_broken_watch_handler_surfaces_at_the_call() -> None:
    @flow.global_function(type="predict")
    def job(x: ONE) -> tp.Numpy:
        flow.watch(x, lambda x: fails(x))
        return x

    for _ in range(2):
        with pytest.raises(ValueError, match="in the callback"):
            job(one(0))
    flow.sync_default_session()


# ---------------------------------------------------------------------------- inside callbacks


def test_blocking_jobs_run_inside_callbacks() -> None:
    job, blocking, got = make_job(2), blocking_job(), []
    blocking(one(0))

    def callback(y: Any) -> None:
        got.append(float(blocking(y)[0]))

    for i in range(10):
        job(one(i))(callback)
    flow.sync_default_session()
    assert got == [2 * (i + 1.0) for i in range(10)]


def test_asynchronous_jobs_run_inside_callbacks_while_there_is_a_token() -> None:
    job, got = make_job(2), []

    def callback(y: Any) -> None:
        got.append(float(y[0]))
        if y[0] < 5:
            job(y)(callback)

    job(one(0))(callback)
    while len(got) < 5:
        time.sleep(0.001)
    flow.sync_default_session()
    assert got == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_could_never_end_inside_a_callback_is_refused() -> None:
    job = make_job(1)

    def again(y: Any) -> None:
        job(y)(fails)

    job(one(0))(again)
    with pytest.raises(JobError, match="concurrency_width") as caught:
        flow.sync_default_session()
    assert caught.value.at is not None
    assert caught.value.at.line == again.__code__.co_firstlineno + 1

    later = []
    wide = make_job(4, "wide")
    event = threading.Event()

    def waits(_: Any) -> None:
        event.wait(processes.scaled(10))
        later[0].get()

    wide(one(0))(waits)
    later.append(wide(one(1)))
    event.set()
    with pytest.raises(JobError, match="a later step"):
        flow.sync_default_session()
    np.testing.assert_array_equal(later[0].get(), one(2))

    wide(one(0))(lambda _: flow.clear_default_session())
    with pytest.raises(JobError, match="clearing the session inside a callback"):
        flow.sync_default_session()
    wide(one(0))(lambda _: flow.sync_default_session())
    flow.sync_default_session()


def test_handlers_of_synchronous_steps_may_use_the_session() -> None:
    blocking, job, got = blocking_job(), make_job(), []

    def handler(x: tp.Numpy) -> None:
        flow.sync_default_session()
        job(x)(got.append)
        got.append(blocking(x))

    @flow.global_function(type="predict")
    def watched(x: ONE) -> tp.Numpy:
        flow.watch(x, handler)
        return x

    watched(one(3))
    flow.sync_default_session()
    assert sorted(float(y[0]) for y in got) == [4.0, 6.0]


# --------------------------------------------------------------------------------- deliveries


def test_sync_and_clear_deliver_what_is_pending() -> None:
    for settle in (flow.sync_default_session, flow.clear_default_session):
        job, got = make_job(4), []
        for i in range(4):
            job(one(i))(lambda y, got=got: (time.sleep(0.01), got.append(float(y[0]))))
        settle()
        assert got == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.slow
def test_a_forgotten_call_delivers_nothing_and_holds_up_nobody() -> None:
    job, got = make_job(2), []
    for i in range(6):
        job(one(i))
    gc.collect()
    job(one(9))(got.append)
    flow.sync_default_session()
    assert [float(y[0]) for y in got] == [10.0]


def run(program: str, **env: str) -> processes.Completed[str]:
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(program)]
    return processes.run(command, env={**os.environ, **env})


PROLOGUE = textwrap.dedent("""
    import sys, time
    import numpy as np
    import oneflow as flow, oneflow.typing as tp

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    def show(y):
        time.sleep(0.05)
        print(float(y[0]), flush=True)

    def feed(i):
        return np.array([i], np.float32)
""")


@pytest.mark.slow
def test_everything_is_delivered_before_the_interpreter_exits() -> None:
    done = run("for i in range(4): job(feed(i))(show)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1.0\n2.0\n3.0\n4.0\n"


@pytest.mark.slow
def test_batches_are_made_for_steps_that_come_after_the_end_of_the_program(
    tmp_path: Path,
) -> None:
    with OFRecordWriter(tmp_path / "part-0") as file:
        file.write({"numbers": np.zeros(1 << 18, np.float32)})
    done = run(
        f"""
        @flow.global_function()
        def load() -> tp.Callback[tp.Numpy]:
            records = flow.data.ofrecord_reader({str(tmp_path)!r}, 8)
            rows = flow.data.OFRecordRawDecoder(records, "numbers", (1 << 18,), flow.float)
            return flow.math.reduce_sum(rows)
        for i in range(8): load()(lambda y: print(y.size, flush=True))
        print("end of the program", flush=True)
        """,
        FLOW_DATA_WORKERS="1",
        FLOW_DATA_PREFETCH="1",
    )
    assert (done.returncode, done.stderr) == (0, "")
    before, after = done.stdout.split("end of the program\n")
    assert (before + after).split() == ["1"] * 8
    assert after


@pytest.mark.slow
@pytest.mark.representative("sys.exit", "an exit; an uncaught error reaches the same exit handlers")
@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("1 / 0", 1)])
def test_everything_is_delivered_however_the_program_ends(end: str, code: int) -> None:
    done = run(f"for i in range(3): job(feed(i))(show)\n{end}")
    assert done.returncode == code
    assert done.stdout == "1.0\n2.0\n3.0\n"


def test_a_callback_error_at_exit_is_shown_and_makes_the_program_fail() -> None:
    done = run("""
        def fails(y):
            raise ValueError("in the callback")
        job(feed(0))(fails)
        job(feed(1))(show)
        print("end of the program")
    """)
    assert done.returncode == 1
    assert sorted(done.stdout.split("\n")) == ["", "2.0", "end of the program"]
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.rstrip().endswith("ValueError: in the callback")
    assert "in fails" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_an_error_that_was_seen_does_not_make_the_program_fail() -> None:
    done = run("""
        def fails(y):
            raise ValueError("in the callback")
        job(feed(0))(fails)
        try:
            flow.sync_default_session()
        except ValueError:
            print("seen")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "seen\n", "")


def interrupted(program: str, tmp_path: Path, delay: float = 0.3) -> tuple[int, str, str]:
    """Runs a program, sends SIGINT a while after its first line; status and outputs."""
    script = tmp_path / "program.py"
    script.write_text(PROLOGUE + textwrap.dedent(program))
    with processes.Program([sys.executable, script]) as process:
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


LOOPS = {
    "asynchronous": "for i in range(10**9): job(feed(i))(show)",
    "fast": "for i in range(10**9): job(feed(i))(lambda y: y[0] > 1 or print('go', flush=True))",
    "synchronous": """
        @flow.global_function()
        def blocking(x: tp.Numpy.Placeholder((300, 300))) -> tp.Numpy:
            for _ in range(20):
                x = flow.matmul(x, x)
            return x
        x = np.eye(300, dtype=np.float32)
        blocking(x)
        print("go", flush=True)
        while True:
            blocking(x)
    """,
    "waiting": """
        for i in range(3): job(feed(i))(show)
        handle = job(feed(9))
        handle.get()
        while True:
            flow.sync_default_session()
            job(feed(1)).get()
    """,
}


@pytest.mark.representative(
    r"0\.0-(asynchronous|synchronous)", "an interrupt at once, in each kind of loop"
)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("delay", [0.0, 0.31])
def test_ctrl_c_stops_cleanly(loop: str, delay: float, tmp_path: Path) -> None:
    code, _, err = interrupted(LOOPS[loop], tmp_path, delay)
    assert code in (-signal.SIGINT, 128 + signal.SIGINT), (code, err)
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    assert err.count("Traceback") == 1, err
    assert "Exception ignored" not in err
    assert "Error" not in err


def test_ctrl_c_at_any_call_of_the_pipeline_leaves_nothing_behind() -> None:
    """Where the interpreter looks for signals: at the start of functions and after calls into C."""
    job, file = blocking_job(), "pipeline.py"
    job(one(0))
    interrupted = 0
    for number in itertools.count():
        events = iter(range(number, -1, -1))

        def interrupt(frame: Any, event: str, _: object, events: Iterator[int] = events) -> None:
            own = frame.f_code.co_filename.endswith(file) and event in ("call", "c_return")
            if own and next(events, None) == 0:
                raise KeyboardInterrupt

        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            job(one(1))
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(before)
        assert default_session().pipeline.in_flight == 0
        assert job(one(2)) == 4.0
        if next(events, None) is not None:
            break
    assert interrupted > 5
    flow.clear_default_session()


@pytest.mark.slow
def test_ctrl_c_can_be_caught_and_the_session_goes_on(tmp_path: Path) -> None:
    code, out, err = interrupted(
        """
        try:
            for i in range(10**9): job(feed(i))(show)
        except KeyboardInterrupt:
            pass
        flow.sync_default_session()
        print("again", flush=True)
        for i in range(3): job(feed(i))(show)
        flow.sync_default_session()
        print("done")
        """,
        tmp_path,
    )
    assert (code, err) == (0, "")
    assert out.endswith("again\n1.0\n2.0\n3.0\ndone\n")


@pytest.mark.slow
def test_a_second_ctrl_c_gives_up_a_callback_that_does_not_end(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        PROLOGUE + "job(feed(0))(lambda y: (print('stuck', flush=True), time.sleep(1e4)))\n"
        "job(feed(1))(show)\nflow.sync_default_session()\n"
    )
    patience = processes.scaled(10)
    with processes.Program([sys.executable, script]) as process:
        process.stdout.readline()
        for pause in (0.4, 0.4, *[patience] * 3):  # two together on a busy machine are one
            with contextlib.suppress(processes.TimeoutExpired):
                process.wait(pause)
                break
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert err.count("Traceback") == 1


# ------------------------------------------------------------------------------------- plans


def test_a_plan_that_can_deadlock_is_refused_before_it_runs() -> None:
    job, session = blocking_job(), default_session()
    back = RegisterPlan("loop", "callback", ("feed",), 2)
    plan = replace(job.plan(), registers=(*job.plan().registers, back))
    with pytest.raises(PlanError, match=r"register 'loop'"):
        Executable(plan, session.registry, session.driver, session.variable)
