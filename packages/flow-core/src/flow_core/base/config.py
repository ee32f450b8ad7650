"""Process-wide settings, read once from environment variables and then frozen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.errors import ConfigError
from flow_core.base.thread_budget import Budget, asked

HOST_FALLBACK = ("off", "warn", "silent")
"""What to do with ops without a kernel for their devices: fail, or run on the CPU with or without a
warning."""

CHECK_FEEDS = ("sometimes", "always", "never")
"""How often processes compare their feeds; the first value is the default."""

CHECK_FINITE = ("off", "nan", "all")
"""Which numbers to check for: none, NaN, or NaN and infinities; the first value is the default."""

PROBE_SECONDS = 30
"""Default time limit of a device's probe, in seconds."""

URL_SECONDS = 60
"""Default time in seconds that a transfer from or to a URL may make no progress."""


PLAN_CACHE = 256 * 1024**2
"""Default maximum size of the plans kept on disk, in bytes."""

REPLAY_STEPS = 8
"""Default number of recorded steps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a process, from its environment variables, whose names are in parentheses.

    Attributes:
        emulate_gpus: number of "gpu" devices to emulate on the CPU (ONEFLOW_EMULATE_GPUS).
        emulate_gpu_memory: memory of each emulated device in bytes (ONEFLOW_EMULATE_GPU_MEMORY,
            such as 2GiB), None for no limit.  Emulated devices with a limit share no memory, like
            the devices of a cluster.
        plugins: names of the plugins that may be loaded, None for all (FLOW_PLUGINS).
        disabled_plugins: names of the plugins not to load (FLOW_DISABLE_PLUGINS).
        plugin_strict: whether to raise a plugin's failure at once (FLOW_PLUGIN_STRICT).
        probe_seconds: time limit of a device's probe, and of the diagnostics of a plugin, in
            seconds (FLOW_PROBE_SECONDS).
        url_seconds: how long a request to a URL may take, and a transfer may make no progress, in
            seconds (FLOW_URL_SECONDS).
        trace_plugins: whether to report each hook call on standard error (FLOW_TRACE_PLUGINS).
        stream_threads: number of threads for the streams of a plan, None for as many as are
            profitable (FLOW_STREAM_THREADS: "auto" or a number).
        check_feeds: how often the processes of a program compare their feeds, one of
            `CHECK_FEEDS` (FLOW_CHECK_FEEDS).
        host_fallback: whether ops without a kernel for their devices run on the CPU, one of
            `HOST_FALLBACK`, None for what the type of their device declares (FLOW_HOST_FALLBACK).
        sync_launches: whether each launch on an asynchronous device is followed by a wait for its
            work, so that an error names its op (FLOW_SYNC_LAUNCHES).
        trace: the file to which a trace of all steps is written, empty for no trace (FLOW_TRACE).
        check_finite: which numbers end a step as soon as a task computes them, one of
            `CHECK_FINITE` (FLOW_CHECK_FINITE).
        check_finite_file: the file to which such a number is reported as JSON, empty for none
            (FLOW_CHECK_FINITE_FILE).
        replay: the file to which the last steps are recorded, empty for none (FLOW_REPLAY).
        replay_steps: the number of steps that it has (FLOW_REPLAY_STEPS).
        stragglers: the file to which slow processes are reported, empty for none
            (FLOW_STRAGGLERS).
        cores: number of cores that the process may keep busy (ONEFLOW_CPU_THREADS or, if that is
            not set, OMP_NUM_THREADS), None for all cores.
        plan_cache: maximum size of the plans kept on disk in bytes (FLOW_PLAN_CACHE, such as
            64MiB), 0 to keep none.
        topology: file that describes links and devices, empty for the default cost model
            (FLOW_TOPOLOGY).
    """

    emulate_gpus: int = 0
    emulate_gpu_memory: int | None = None
    plugins: tuple[str, ...] | None = None
    disabled_plugins: tuple[str, ...] = ()
    plugin_strict: bool = False
    probe_seconds: int = PROBE_SECONDS
    url_seconds: float = URL_SECONDS
    trace_plugins: bool = False
    stream_threads: int | None = None
    check_feeds: str = "sometimes"
    host_fallback: str | None = None
    sync_launches: bool = False
    trace: str = ""
    check_finite: str = "off"
    check_finite_file: str = ""
    replay: str = ""
    replay_steps: int = REPLAY_STEPS
    stragglers: str = ""
    cores: Budget | None = None
    plan_cache: int = 0
    topology: str = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables, by default those of the process.

        >>> Settings.from_env({"ONEFLOW_EMULATE_GPUS": "4"}).emulate_gpus
        4
        """
        env = os.environ if env is None else env
        return cls(
            emulate_gpus=_count(env, "ONEFLOW_EMULATE_GPUS"),
            emulate_gpu_memory=_bytes(env, "ONEFLOW_EMULATE_GPU_MEMORY"),
            plugins=_names(env["FLOW_PLUGINS"]) if "FLOW_PLUGINS" in env else None,
            disabled_plugins=_names(env.get("FLOW_DISABLE_PLUGINS", "")),
            plugin_strict=_flag(env, "FLOW_PLUGIN_STRICT"),
            probe_seconds=_count(env, "FLOW_PROBE_SECONDS") or PROBE_SECONDS,
            url_seconds=_count(env, "FLOW_URL_SECONDS") or URL_SECONDS,
            trace_plugins=_flag(env, "FLOW_TRACE_PLUGINS"),
            stream_threads=_count(env, "FLOW_STREAM_THREADS", "auto") or None,
            check_feeds=_word(env, "FLOW_CHECK_FEEDS", CHECK_FEEDS),
            host_fallback=_word(env, "FLOW_HOST_FALLBACK", HOST_FALLBACK)
            if env.get("FLOW_HOST_FALLBACK")
            else None,
            sync_launches=_flag(env, "FLOW_SYNC_LAUNCHES"),
            trace=env.get("FLOW_TRACE", ""),
            check_finite=_word(env, "FLOW_CHECK_FINITE", CHECK_FINITE),
            check_finite_file=env.get("FLOW_CHECK_FINITE_FILE", ""),
            replay=env.get("FLOW_REPLAY", ""),
            replay_steps=_count(env, "FLOW_REPLAY_STEPS") or REPLAY_STEPS,
            stragglers=env.get("FLOW_STRAGGLERS", ""),
            cores=asked(env),
            plan_cache=PLAN_CACHE if (size := _bytes(env, "FLOW_PLAN_CACHE")) is None else size,
            topology=env.get("FLOW_TOPOLOGY", ""),
        )


def _count(env: Mapping[str, str], name: str, word: str = "0") -> int:
    """Read a number; 0 if the environment variable is unset or holds ``word``."""
    text = env.get(name, "0") or "0"
    if text == word:
        return 0
    if not text.isdigit():
        raise ConfigError(f"setting {name}", found=repr(text), allowed="a non-negative integer")
    return int(text)


def _word(env: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """Read one of several words; the first one if the environment variable is unset."""
    text = env.get(name) or words[0]
    if text not in words:
        raise ConfigError(f"setting {name}", found=repr(text), allowed=" or ".join(words))
    return text


UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
UNITS |= {f"{unit}i": 1024 ** (i + 1) for i, unit in enumerate("kmgt")}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def _bytes(env: Mapping[str, str], name: str) -> int | None:
    """Read a number of bytes; None if the environment variable is unset."""
    text = env.get(name, "").strip()
    return read_bytes(text, f"setting {name}") if text else None


def read_bytes(text: str, attempted: str) -> int:
    """Return the number of bytes that a text such as "2GiB" names.

    Raises:
        ConfigError: the text names no number of bytes; ``attempted`` says what it was read for.

    >>> read_bytes("1.5 kB", "reading a size")
    1500
    """
    match = _BYTES.fullmatch(text)
    unit = None if match is None else UNITS.get(match[2].lower())
    if match is None or unit is None:
        allowed = "a number of bytes, such as 800MB or 2GiB"
        raise ConfigError(attempted, found=repr(text), allowed=allowed)
    return int(float(match[1]) * unit)


def _flag(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "0") not in ("", "0", "false", "no")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
