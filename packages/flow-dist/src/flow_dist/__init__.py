"""Several processes and hosts: launchers, control channel, comms over shared memory, MPI, NCCL.

In: the environment of a launcher.  Out: a `World` and comms that connect its processes. This
package must not depend on packages other than flow-core.
"""

__version__ = "0.1.0"
