"""URLs: how to tell them from paths, and how to write them without passwords and tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from os import PathLike
from urllib.parse import unquote, unquote_plus

_URL = re.compile(r"(?P<start>[A-Za-z][\w+.-]*://)(?P<user>[^\s/?#]*@)?")
_QUERY = re.compile(r"(?P<url>[A-Za-z][\w+.-]*://[^\s?#'\"]*)\?(?P<query>[^\s#'\"<>]+)")
_HIDDEN = "..."
_SHORTEST = 3
"""The smallest length of a secret that is also hidden outside of URLs."""


def is_remote(path: object) -> bool:
    """Return whether a path is a URL.

    >>> is_remote("s3://bucket/model"), is_remote("model")
    (True, False)
    """
    return isinstance(path, str) and "://" in path


def local_path(path: str) -> str:
    """Return the path that a URL of the local file system names; other paths are unchanged.

    As in fsspec, percent signs have no special meaning.

    >>> local_path("file:///models/a%20b"), local_path("s3://bucket/model")
    ('/models/a%20b', 's3://bucket/model')
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme not in ("file", "local") or "::" in path:
        return path
    if os.name == "nt" and re.match("/[A-Za-z]:", rest):
        rest = rest[1:]
    return os.path.expanduser(rest)


def file_name(url: str) -> str:
    """Return the last component of the path of a URL, without its query.

    >>> file_name("https://host/model.safetensors?token=x")
    'model.safetensors'
    """
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


def shown_url(url: str | PathLike[str]) -> str:
    """Return a URL without its user info and the values of its query; paths are unchanged.

    >>> shown_url("https://me:secret@host/model?token=abc&v=2")
    'https://...@host/model?token=...&v=...'
    """
    text = os.fspath(url)
    return without_secrets(text, text) if is_remote(text) else text


def without_secrets(text: str, url: str) -> str:
    """Return a text without the secrets of URLs in it, and without those of another URL.

    >>> without_secrets("403 for abc: http://h/x?token=abc", "http://h/x?token=abc")
    '403 for ...: http://h/x?token=...'
    """
    text = _URL.sub(lambda m: m["start"] + (f"{_HIDDEN}@" if m["user"] else ""), text)
    text = _QUERY.sub(lambda m: f"{m['url']}?{_without_values(m['query'])}", text)
    for secret in sorted({*_secrets(url)}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _HIDDEN)
    return text


def _without_values(query: str) -> str:
    names = (part.partition("=")[0] if "=" in part else "" for part in query.split("&"))
    return "&".join(f"{name}={_HIDDEN}" if name else _HIDDEN for name in names)


def has_secrets(url: str) -> bool:
    """Return whether a URL has user info or a query."""
    return any(True for _ in _secrets(url))


def _secrets(url: str) -> Iterator[str]:
    """Yield the passwords and query values of a URL, also as they are decoded."""
    users = (m["user"].rstrip("@") for m in _URL.finditer(url) if m["user"])
    secrets = [user.partition(":")[2] or user for user in users]
    for part in url.partition("?")[2].partition("#")[0].split("&"):
        secrets.append(part.partition("=")[2] if "=" in part else part)
    for secret in filter(None, secrets):
        yield from (secret, unquote(secret), unquote_plus(secret))
