"""The page of all hooks agrees with the hook specs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from flow_core.plugins import hookspecs
from flow_core.plugins.hookspecs import hook_arguments, signature
from flow_core.plugins.kinds import KINDS, STAGES

PAGE = (Path(__file__).parent.parent / "docs" / "plugins" / "hooks.md").read_text()
SECTIONS = dict(re.findall(r"^### `([^`]+)`\n\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_has_exactly_the_hooks_with_their_arguments() -> None:
    differing = set(SECTIONS) ^ set(map(signature, hook_arguments()))
    assert not differing, f"docs/plugins/hooks.md: a section '### `SIGNATURE`' each: {differing}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.hook)
def test_sections_name_what_the_hook_returns(kind: object) -> None:
    assert f"Return `{kind.spec.__name__}` records" in SECTIONS[signature(kind.hook)]  # type: ignore[attr-defined]


def test_the_page_mentions_no_other_hook() -> None:
    mentioned = set(re.findall(r"\bflow_(?:register|choose|describe|plan|step|doctor)\w*", PAGE))
    assert mentioned == set(hook_arguments())


def test_the_page_has_all_stages_and_settings() -> None:
    for word in (*STAGES, "FLOW_PLUGINS", "FLOW_DISABLE_PLUGINS", "FLOW_TRACE_PLUGINS"):
        assert f"`{word}" in PAGE


def test_the_page_speaks_of_this_version() -> None:
    major, minor = hookspecs.API_VERSION
    assert f'FLOW_PLUGIN_API = "{major}.{minor}"' in PAGE
    assert f'entry-points."{hookspecs.GROUP}"' in PAGE


@pytest.mark.parametrize("hook", hook_arguments())
def test_every_hook_says_what_when_and_how(hook: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    assert "Returns" in text
    assert re.search(r"\bCalled\b", text)
    example = text.partition("Example::")[2]
    assert hook in example
    compile(inspect.cleandoc(example), hook, "exec")
