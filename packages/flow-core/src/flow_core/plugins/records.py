"""Records of plugins: their origin and the result of loading them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flow_core.base.errors import PluginError, SourceLine


@dataclass(frozen=True, slots=True)
class Origin:
    """The plugin that registered a record.

    Attributes:
        plugin: name of the plugin, which is the name of its entry point.
        distribution: name of the installed distribution, or empty.
        version: version of the distribution.
        module: name of the plugin's module, or empty.

    >>> str(Origin("cuda", "flow-cuda", "0.1.0")), str(Origin("local"))
    ("plugin 'cuda' of flow-cuda 0.1.0", "plugin 'local'")
    """

    plugin: str
    distribution: str = ""
    version: str = ""
    module: str = field(default="", compare=False)

    def __str__(self) -> str:
        owner = f" of {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"plugin {self.plugin!r}{owner}"

    @property
    def remedy(self) -> str:
        """The next step for the user if the plugin fails."""
        if self.plugin.startswith("core."):
            return f"report this as an error of {self.distribution}"
        return f"fix the plugin, or disable it: FLOW_DISABLE_PLUGINS={self.plugin}"

    def is_named_in(self, names: Iterable[str]) -> bool:
        """Return whether one of the names is that of the plugin or of its distribution.

        >>> Origin("onednn", "flow-onednn").is_named_in(["Flow_oneDNN"])
        True
        """
        own = {_normal(self.plugin), _normal(self.distribution)}
        return any(_normal(name) in own for name in names)

    def is_family(self, other: Origin) -> bool:
        """Return whether both are the same plugin or come from the same distribution."""
        same = bool(self.distribution) and self.distribution == other.distribution
        return same or self.plugin == other.plugin


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """The reason why a plugin is not registered.

    Attributes:
        plugin: name of the plugin.
        distribution: the plugin's distribution, or empty.
        version: the distribution's version.
        stage: "find", "import", "api", "validate", "conflict" or the name of the hook that failed.
        error: the exception.
        traceback: the traceback as text.
        at: the line of the plugin that raised the exception, if known.
    """

    plugin: str
    distribution: str
    version: str
    stage: str
    error: BaseException = field(compare=False)
    traceback: str = field(default="", compare=False, repr=False)
    at: SourceLine | None = None

    @property
    def origin(self) -> Origin:
        """The plugin as an `Origin`."""
        return Origin(self.plugin, self.distribution, self.version)

    def __str__(self) -> str:
        return f"{self.origin} failed ({self.stage}): {self.reason}"

    @property
    def reason(self) -> str:
        """The exception and the line that raised it, as one line of text."""
        text = " ".join(str(self.error).split())
        where = "" if self.at is None else f" (at {self.at})"
        return f"{type(self.error).__name__}: {text}{where}"


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """The result of loading one plugin.

    Attributes:
        origin: the plugin.
        state: "loaded", "failed", "disabled" (FLOW_DISABLE_PLUGINS) or "not allowed"
            (FLOW_PLUGINS).
        counts: number of the plugin's records of each kind.
        failure: the reason if the plugin failed.
        api: the version of the plugin API that the plugin declares, empty if unknown.
        refused: one error for each single record that is not used.
    """

    origin: Origin
    state: str
    counts: Mapping[str, int] = field(default_factory=dict)
    failure: PluginFailure | None = None
    api: str = ""
    refused: tuple[PluginError, ...] = ()
