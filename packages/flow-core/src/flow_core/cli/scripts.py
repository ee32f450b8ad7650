"""Running a user's script, and getting a job out of one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from flow_core.base.errors import FlowError, JobError, nearest
from flow_core.base.planning import ScriptEnd, planning
from flow_core.base.programs import enter_script, interpreter_options, leave_own_folder

if TYPE_CHECKING:  # the compiler is loaded when a plan is asked for
    from flow_core.observe.document import PlanDocument


def run_script(script: str, args: Sequence[str], emulate_gpus: int | None) -> NoReturn:
    """Runs a script in place of this process, with the environment that the options ask for.

    A new interpreter gives the script its own ``__main__``, ``sys.argv``, ``sys.path``, exit
    status and signals; nothing that this command imported is in its way.
    """
    environment = dict(os.environ)
    if emulate_gpus is not None:
        environment["ONEFLOW_EMULATE_GPUS"] = str(emulate_gpus)
    command = [sys.executable, *interpreter_options(), script, *args]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    sys.exit(subprocess.call(command, env=environment))  # Windows cannot replace a process


def job_of(target: str, args: Sequence[str] = ()) -> Any:
    """The job that ``script.py:job`` names, or the only one of ``script.py``.

    The script is imported for it, until it first calls a job, saves or loads a checkpoint, or
    writes a file by a function of flow: no step runs, and flow writes nothing.

    Args:
        target: script and job.
        args: what the script finds in ``sys.argv`` behind its own name.

    Raises:
        JobError: there is no such script or job, or no name where the script has several jobs.
    """
    path, name = _parts(target)
    with planning():
        module, end = _import_file(path, args)
    jobs = _jobs_of(module)
    if not name and len(jobs) == 1:
        return next(iter(jobs.values()))
    found = jobs.get(name) or _inner_job(name)
    if found is None:
        raise _no_job(path, name, module, list(jobs), end)
    return found


def _parts(target: str) -> tuple[Path, str]:
    """The file of a target, and the name of a job or nothing."""
    path, separator, name = target.rpartition(":")
    if separator and Path(path).is_file():
        return Path(path), name
    if not Path(target).is_file():
        found = "a folder" if Path(target).is_dir() else "no such file"
        raise JobError(f"looking for job {target!r}", found=found, allowed=TARGET)
    return Path(target), ""


TARGET = "script.py:job, a file and the name of a job function in it"


def _jobs_of(module: ModuleType) -> dict[str, Any]:
    """The job functions at the top level of a script, each by its first name."""
    from flow_core.frontend.job.function import JobFunction

    jobs = {id(v): (n, v) for n, v in reversed(vars(module).items()) if isinstance(v, JobFunction)}
    return dict(reversed(jobs.values()))


def _inner_job(name: str) -> Any:
    """The last job of a name that the script has defined inside a function; None without one."""
    from flow_core.frontend.job.function import defined_jobs

    return next((job for job in reversed([*defined_jobs()]) if job.name == name), None)


def _no_job(
    path: Path, name: str, module: ModuleType, jobs: list[str], end: ScriptEnd | None
) -> JobError:
    found = "nothing of that name"
    if not name:
        found = "no name of a job"
    elif hasattr(module, name):
        found = f"{getattr(module, name)!r:.60}, which is no job function"
    hint = nearest(name, jobs)
    if not jobs:
        hint = (
            "a job under `if __name__`, or in a function that is not called, is not seen: define "
            "it above that"
        )
    if end is not None:
        hint = f"planning ends a script before {end}: define the job above that line"
    return JobError(
        f"looking for job {name!r} in {path}" if name else f"looking for a job in {path}",
        found=found,
        allowed=" or ".join(f"{path}:{job}" for job in jobs)
        or "script.py:job; this script defines no job at its top level",
        hint=hint or None,
    )


def document_of(target: str, hints: int = 0, args: Sequence[str] = ()) -> PlanDocument:
    """The plan of ``script.py:job``, or one that ``flow plan --json`` has written.

    Raises:
        JobError: there is no such script or job.
        PlanError: the file is no saved plan.
    """
    from flow_core.frontend.session.session import (
        ResourceConfig,
        clear_default_session,
        default_session,
    )
    from flow_core.observe.document import PlanDocument, document

    if target.endswith(".json") and Path(target).is_file():
        return PlanDocument.read(Path(target))
    found = document(job_of(target, args), hints)
    clear_default_session()  # the next script may have jobs and variables of the same names
    default_session().resources = ResourceConfig()
    return found


def write_page(target: str, file: str, hints: int, args: Sequence[str] = ()) -> None:
    """Writes the page of ``script.py:job``, with a step measured now, or of a saved plan.

    Raises:
        JobError: there is no such script or job.
        PlanError: the target is no saved plan.
    """
    from flow_core.observe.document import PlanDocument, document
    from flow_core.observe.measure import measure
    from flow_core.observe.page import page

    if target.endswith(".json") and Path(target).is_file():
        text = page(PlanDocument.read(Path(target)))
    else:
        job = job_of(target, args)
        text = page(document(job, hints), measure(job))
    Path(file).write_text(text, encoding="utf-8")


def _import_file(path: Path, args: Sequence[str]) -> tuple[ModuleType, ScriptEnd | None]:
    """Imports a script with the ``sys.argv`` and ``sys.path`` that it would have as a program.

    Gives the module, and where planning has ended the script, None where it has come to its end.
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
    except FlowError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's own: shown as python shows it
        traceback.print_exception(error.with_traceback(_within(error, path)))
        sys.exit(1)
    return module, None


def _within(error: BaseException, path: Path) -> TracebackType | None:
    """The traceback of an error from a script's first frame on; none for one of its syntax."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename != str(path):
        found = found.tb_next
    return found
