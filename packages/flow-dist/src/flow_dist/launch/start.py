"""``python start.py alone|guarded SCRIPT ARGS``: the command of each rank of ``flow-dist run``.

Python runs this file by its path: with ``-m``, the working directory would be on ``sys.path``, and
a file ``json.py`` there would shadow the standard library's module.
"""

import sys


def main() -> None:
    """Hand over to the module that runs the rank, as if Python had been started with the script."""
    loaded = frozenset(sys.modules)
    if not sys.flags.safe_path:
        del sys.path[0]  # this folder's modules must not shadow others of the same name
    _, how, *argv = sys.argv
    own = len(sys.orig_argv) - len(sys.argv)
    del sys.orig_argv[own : own + 2]
    if how == "guarded":
        from flow_dist.launch.guard import guard

        guard()
    from flow_dist.launch.rank import run_rank

    run_rank(argv, loaded)


if __name__ == "__main__":
    main()
