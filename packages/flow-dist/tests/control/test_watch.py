"""The report of a process's position."""

import sys
import textwrap

import processes


def test_garbage_does_not_stop_a_report() -> None:
    """Data of threads in cycles: where Python collects them while it looks, it hangs."""
    program = textwrap.dedent("""
        import gc, threading
        from flow_dist.control.watch import line_of_main

        class Ring:
            def __init__(self):
                self.own, self.local = self, threading.local()
                self.local.x = 1

        gc.set_threshold(1)
        for _ in range(200):
            gc.disable()
            Ring()
            gc.enable()
            line_of_main()
        assert gc.isenabled()
    """)
    done = processes.run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
