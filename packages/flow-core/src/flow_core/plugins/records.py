"""What the host remembers about plugins: where they come from and how loading went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something was registered from.

    Attributes:
        plugin: name of the plugin (of its entry point).
        distribution: name of the installed distribution, empty when there is none.
        version: version of the distribution.

    >>> str(Origin("cuda", "flow-cuda", "0.1.0")), str(Origin("local"))
    ("plugin 'cuda' of flow-cuda 0.1.0", "plugin 'local'")
    """

    plugin: str
    distribution: str = ""
    version: str = ""

    def __str__(self) -> str:
        owner = f" of {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"plugin {self.plugin!r}{owner}"

    def is_family(self, other: Origin) -> bool:
        """Whether both are one plugin or come from one distribution."""
        same = bool(self.distribution) and self.distribution == other.distribution
        return same or self.plugin == other.plugin


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """Why a plugin is not registered.

    Attributes:
        plugin: its name.
        distribution: its distribution, empty when unknown.
        version: the distribution's version.
        stage: "find", "import", "api", "validate" or the name of the hook that failed.
        error: what was raised.
        traceback: the traceback as text.
    """

    plugin: str
    distribution: str
    version: str
    stage: str
    error: BaseException = field(compare=False)
    traceback: str = field(default="", compare=False, repr=False)

    @property
    def origin(self) -> Origin:
        """The plugin as an `Origin`."""
        return Origin(self.plugin, self.distribution, self.version)

    def __str__(self) -> str:
        text = " ".join(str(self.error).split())
        return f"{self.origin} failed ({self.stage}): {type(self.error).__name__}: {text}"


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """How loading one plugin went.

    Attributes:
        origin: the plugin.
        state: "loaded", "failed", "disabled" (FLOW_DISABLE_PLUGINS) or "not allowed"
            (FLOW_PLUGINS).
        counts: what it registered, per kind.
        failure: why it failed, if it did.
    """

    origin: Origin
    state: str
    counts: Mapping[str, int] = field(default_factory=dict)
    failure: PluginFailure | None = None
