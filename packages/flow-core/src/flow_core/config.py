"""Process-wide settings, read from the environment once and then frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flow_core.cores import Budget, asked
from flow_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that the environment gives to a process.

    Attributes:
        emulate_gpus: number of "gpu" devices to emulate on the CPU (ONEFLOW_EMULATE_GPUS).
        plugins: allow-list of plugins, None for all (FLOW_PLUGINS).
        disabled_plugins: plugins not to load (FLOW_DISABLE_PLUGINS).
        plugin_strict: raise a plugin's failure at once (FLOW_PLUGIN_STRICT).
        trace_plugins: report each hook call on standard error (FLOW_TRACE_PLUGINS).
        verify_passes: verify the graph after every pass (FLOW_VERIFY_PASSES).
        stream_threads: threads for the streams of a plan, None for as many as pay
            (FLOW_STREAM_THREADS: "auto" or a number).
        cores: how many cores the process may keep busy (ONEFLOW_CPU_THREADS, else
            OMP_NUM_THREADS), None for as many as there are.
    """

    emulate_gpus: int = 0
    plugins: tuple[str, ...] | None = None
    disabled_plugins: tuple[str, ...] = ()
    plugin_strict: bool = False
    trace_plugins: bool = False
    verify_passes: bool = False
    stream_threads: int | None = None
    cores: Budget | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Settings of an environment (default: the process's own).

        >>> Settings.from_env({"ONEFLOW_EMULATE_GPUS": "4"}).emulate_gpus
        4
        """
        env = os.environ if env is None else env
        return cls(
            emulate_gpus=_count(env, "ONEFLOW_EMULATE_GPUS"),
            plugins=_names(env["FLOW_PLUGINS"]) if "FLOW_PLUGINS" in env else None,
            disabled_plugins=_names(env.get("FLOW_DISABLE_PLUGINS", "")),
            plugin_strict=_flag(env, "FLOW_PLUGIN_STRICT"),
            trace_plugins=_flag(env, "FLOW_TRACE_PLUGINS"),
            verify_passes=_flag(env, "FLOW_VERIFY_PASSES"),
            stream_threads=_count(env, "FLOW_STREAM_THREADS", "auto") or None,
            cores=asked(env),
        )


def _count(env: Mapping[str, str], name: str, word: str = "0") -> int:
    """A number, 0 when it is not set or is ``word``."""
    text = env.get(name, "0") or "0"
    if text == word:
        return 0
    if not text.isdigit():
        raise ConfigError(f"setting {name}", found=repr(text), allowed="a non-negative integer")
    return int(text)


def _flag(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "0") not in ("", "0", "false", "no")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
