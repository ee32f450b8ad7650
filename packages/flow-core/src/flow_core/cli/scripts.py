"""Run a user's script, or import it to get one of its jobs."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from flow_core.base.errors import (
    FlowError,
    FlowWarning,
    JobError,
    SourceLine,
    nearest,
    raising_line,
)
from flow_core.base.planning import ScriptEnd, planning
from flow_core.base.programs import enter_script, interpreter_options, leave_own_folder
from flow_core.cli.progress import Progress, silent

if TYPE_CHECKING:  # load the compiler only if needed
    from flow_core.observe.document import PlanDocument
    from flow_core.observe.measure import Measured


def run_script(
    script: str,  # the script and its arguments
    args: Sequence[str],
    emulate_gpus: int | None,  # number of devices to emulate, None for no setting
    settings: Mapping[str, str] = MappingProxyType({}),  # other environment variables to set
) -> NoReturn:
    """Replace this process with one that runs a script in the environment that the options set.

    In a new interpreter, the script has its own ``__main__``, ``sys.argv``, ``sys.path``, exit
    status and signals, and none of the modules that this command imported.
    """
    environment = {**os.environ, **settings}
    if emulate_gpus is not None:
        environment["ONEFLOW_EMULATE_GPUS"] = str(emulate_gpus)
    command = [sys.executable, *interpreter_options(), script, *args]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    sys.exit(subprocess.call(command, env=environment))  # Windows cannot replace a process


def job_of(target: str, args: Sequence[str] = ()) -> Any:
    """Return the job that ``script.py:job`` names, or the only job of ``script.py``.

    The script is imported up to its first call of a job, or of a function of flow that reads or
    writes files.  No step runs, and flow writes nothing.

    Raises:
        JobError: the script or the job does not exist, or the name is missing and the script has
            several jobs.
    """
    jobs = jobs_of(target, args)
    if len(jobs) > 1:
        raise _no_job(*_parts(target), None, list(jobs), None)
    return next(iter(jobs.values()))


def jobs_of(target: str, args: Sequence[str] = ()) -> dict[str, Any]:
    """Return the job that ``script.py:job`` names, or all jobs at the top level of ``script.py``.

    The script is imported as by `job_of`.  Raises `JobError` if the script, or a job in it, does
    not exist.
    """
    path, name = _parts(target)
    with planning():
        module, end = _import_file(path, args)
    jobs = _top_level_jobs(module)
    if not name and jobs:
        return jobs
    found = jobs.get(name) or _inner_job(name)
    if found is None:
        raise _no_job(path, name, module, list(jobs), end)
    return {name: found}


def _parts(target: str) -> tuple[Path, str]:
    """Split a target into the file and the name of a job, or an empty name."""
    path, separator, name = target.rpartition(":")
    if separator and Path(path).is_file():
        return Path(path), name
    if not Path(target).is_file():
        found = "a folder" if Path(target).is_dir() else "no such file"
        raise JobError(f"looking for job {target!r}", found=found, allowed=TARGET)
    return Path(target), ""


TARGET = "script.py:job, a file and the name of a job function in it"


def _top_level_jobs(module: ModuleType) -> dict[str, Any]:
    """Return the job functions at the top level of a script, by the first name of each."""
    from flow_core.frontend.job.function import JobFunction

    jobs = {id(v): (n, v) for n, v in reversed(vars(module).items()) if isinstance(v, JobFunction)}
    return dict(reversed(jobs.values()))


def _inner_job(name: str) -> Any:
    """Return the last job with a name that the script defined inside a function, or None."""
    from flow_core.frontend.job.function import defined_jobs

    return next((job for job in reversed([*defined_jobs()]) if job.name == name), None)


def _no_job(
    path: Path, name: str, module: ModuleType | None, jobs: list[str], end: ScriptEnd | None
) -> JobError:
    found = "nothing of that name"
    if not name:
        found = "no job name"
    elif hasattr(module, name):
        found = f"{getattr(module, name)!r:.60}, which is not a job function"
    hint = nearest(name, jobs)
    if not jobs:
        hint = (
            "a job under `if __name__`, or in a function that is not called, is not found: define "
            "it at the top level"
        )
    if end is not None:
        hint = f"planning stops a script before {end}: define the job above that line"
    return JobError(
        f"looking for job {name!r} in {path}" if name else f"looking for a job in {path}",
        found=found,
        allowed=" or ".join(f"{path}:{job}" for job in jobs)
        or "script.py:job; this script defines no job at its top level",
        hint=hint or None,
    )


def document_of(
    target: str, hints: int = 0, args: Sequence[str] = (), show: Progress = silent
) -> PlanDocument:
    """Return the plan of ``script.py:job``, or a plan that ``flow plan --json`` wrote.

    Raises:
        JobError: the script or the job does not exist.
        PlanError: the file is not a saved plan.
    """
    return measured_of(target, hints, args, show, measures=False)[0]


def measured_of(
    target: str, hints: int, args: Sequence[str], show: Progress, measures: bool = True
) -> tuple[PlanDocument, Measured]:
    """Return a plan as `document_of` does, and the times of measured steps of a job.

    The steps run on random inputs and separate variables.  A saved plan is not measured.
    """
    from flow_core.frontend.session.default import clear_default_session
    from flow_core.frontend.session.resource_config import ResourceConfig
    from flow_core.frontend.session.session import default_session
    from flow_core.observe.document import PlanDocument, document
    from flow_core.observe.measure import NOT_MEASURED, measure

    if target.endswith(".json") and Path(target).is_file():
        return PlanDocument.read(Path(target)), NOT_MEASURED
    job = job_of(target, args)
    show(f"tracing and compiling job {job.name!r}")
    with _warnings() as texts:
        job.compile()
    if hints:
        show("evaluating SBP hints")
    found = replace(document(job, hints), warnings=tuple(texts))
    measured = measure(job, progress=show) if measures else NOT_MEASURED
    clear_default_session()  # the next script may use the same names for jobs and variables
    default_session().resources = ResourceConfig()
    return found, measured


def documents_of(target: str, args: Sequence[str], show: Progress) -> list[PlanDocument]:
    """Return the plan of ``script.py:job``, or the plans of all jobs of ``script.py``.

    Simulated devices do not share replicas: what they can share depends on the processor.  Raises
    `JobError` if the script, or a job in it, does not exist.
    """
    from flow_core.observe.document import document

    jobs = jobs_of(target, args).values()
    for job in jobs:
        show(f"tracing and compiling job {job.name!r}")
        job.config.share_replicas(False)
        job.compile()
    return [document(job) for job in jobs]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the texts of warnings of flow in a ``with`` block; show other warnings as usual."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FlowWarning)
        yield found
    for item in caught:
        if issubclass(item.category, FlowWarning):
            found.append(str(item.message))
        else:
            warnings.showwarning(item.message, item.category, item.filename, item.lineno)


def write_page(target: str, file: str, hints: int, args: Sequence[str], show: Progress) -> None:
    """Write the HTML page of ``script.py:job``, with measured steps, or of a saved plan.

    Raises:
        JobError: the script or the job does not exist.
        PlanError: the target is not a saved plan.
    """
    from flow_core.observe.page import page

    text = page(*measured_of(target, hints, args, show))
    Path(file).write_text(text, encoding="utf-8")


def _import_file(path: Path, args: Sequence[str]) -> tuple[ModuleType, ScriptEnd | None]:
    """Import a script with the ``sys.argv`` and ``sys.path`` that it would have as a program.

    Returns the module, and the place where planning stopped the script (None if it ran to its end).
    """
    name = f"flow_plan_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobError(f"importing {path}", found="not a Python file", allowed="script.py:job")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    leave_own_folder()
    enter_script(str(path), args)
    try:
        spec.loader.exec_module(module)
    except ScriptEnd as end:
        return module, end
    except SystemExit as end:
        if end.code:
            shown = shlex.join(("python", str(path), *args))
            raise JobError(
                f"importing {path}",
                at=raising_line(end),
                found=f"the script ends with status {end.code}",
                allowed="a script that defines its jobs before it ends",
                hint=f"arguments of the script follow --; {shown} runs it",
            ) from end
    except FlowError:
        raise
    except Exception as error:
        shown = shlex.join(("python", str(path), *args))
        raise program_error(error, f"importing {path}", shown) from error
    return module, None


def program_error(
    error: Exception, attempted: str, command: str = "the program itself"
) -> JobError:
    """Return an error of flow for an exception that the user's program raised."""
    line = raising_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        line = SourceLine(error.filename, error.lineno or 1)
    return JobError(
        attempted,
        at=line,
        found=f"{type(error).__name__}: {error}",
        allowed="a program that defines its jobs without errors",
        hint=f"{command} shows where the error comes from",
    )
