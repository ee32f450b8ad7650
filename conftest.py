"""What all tests need of the process that they run in."""

import signal

# Where tests are a job in the background, shells have them ignore Ctrl-C, and programs that tests
# start inherit that; a handler of our own is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
