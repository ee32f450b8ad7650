"""Print the digests of the jobs that scripts define up to their first call of a job.

Each request is compiled again after the jobs of all scripts, and must give the same plan.
"""

import contextlib
import importlib.util
import json
import runpy
import sys
import types
from typing import Any

import oneflow as flow
from flow_core.base.planning import planning
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.digest import plan_digest, request_digest
from flow_core.frontend.job.function import defined_jobs


def compiled_jobs(script: str) -> list[Any]:
    """Return the compiled jobs of a script, which stops before its first step."""
    flow.clear_default_session()
    sys.argv = [script]
    with planning(), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    return [job.compile() for job in defined_jobs()]


def provide_drawing() -> None:
    """Let scripts import matplotlib where it is not installed: they draw after their last step."""
    if importlib.util.find_spec("matplotlib") is None:
        sys.modules["matplotlib"] = types.ModuleType("matplotlib")


def main() -> None:
    """Write {script: [[job, digest of the request, digest of the plan]]} to the first argument."""
    provide_drawing()
    target, *scripts = sys.argv[1:]
    compiled = {script: compiled_jobs(script) for script in scripts}
    found = {
        script: [[c.request.job, request_digest(c.request), plan_digest(c)] for c in jobs]
        for script, jobs in compiled.items()
    }
    for script, jobs in compiled.items():
        for one, (job, _, digest) in zip(jobs, found[script], strict=True):
            again = plan_digest(compile_plan(one.request))
            assert again == digest, f"another plan of job {job!r} of {script}"
    with open(target, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
