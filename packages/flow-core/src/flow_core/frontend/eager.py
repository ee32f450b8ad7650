"""Values of blobs while a job function runs: what the eager mode's programs look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flow_core.errors import JobError, SourceLine
from flow_core.frontend.compile import STEP_VARIABLE, compile_graph
from flow_core.frontend.results import Fetched, LocalBlob
from flow_core.runtime.executable import Executable

if TYPE_CHECKING:
    from flow_core.frontend.blob import BlobDef
    from flow_core.frontend.jobs import JobBuild


def value_now(blob: BlobDef, line: SourceLine | None) -> LocalBlob:
    """What a blob is in the call that defines its job.

    What leads to the blob is compiled and run by itself, on the arrays of that call; variables
    have the values with which the call began.  The job's function runs anew at its next call.

    Raises:
        JobError: the session is not in the eager mode, or the job is not being called.
    """
    build: JobBuild = blob.job
    if build.fed is None:
        raise JobError(
            f"value of {blob!r}",
            at=line,
            found="a placeholder, which has no data while a job is defined",
            allowed="flow.enable_eager_execution() before, and a call of the job",
            hint="return the blob, or flow.watch(blob, handler)",
        )
    build.looked_at = True
    results = [*blob.parts, *(() if blob.rows is None else blob.rows.count.parts)]
    session, kept = build.session, build.builder.results
    compiled = compile_graph(build, results, build.inputs, effects=False)
    build.builder.results = kept
    executable = Executable(
        compiled.plan,
        session.registry,
        session.driver,
        session.variable,
        comm=session.registry.comm,
        step=np.array(_step(build), np.int64),
    )
    found = executable.run(build.fed)
    return LocalBlob(Fetched(slice(0, len(blob.parts)), blob).of(found))


def _step(build: JobBuild) -> int:
    """The number of the step: a train job that is defined anew goes on counting."""
    try:
        return int(build.session.value(STEP_VARIABLE.format(job=build.name))[0])
    except KeyError:
        return int(build.step)
