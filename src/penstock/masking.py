"""Remove credentials from texts before they are shown: addresses of stores and lakes, log lines, error texts."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
_NAME: Final = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key|signature|credential|sas)[\w.-]*|sig"
)
#: The text between a user's name and the last @ of a word. Digits and a slash after the colon are a port, not a password.
#: PASSWORD is the placeholder in our own texts.
_USERINFO: Final = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://[^\s'\"<>\\@/:?#]*):(?!\d+[/?#])(?!(?-i:PASSWORD)@)[^\s'\"<>\\]*@", re.IGNORECASE
)
_PARAMETER: Final = re.compile(rf"((?:^|[?&;\s])(?:{_NAME})=)[^\s&;'\"<>\\]+", re.IGNORECASE)
_MEMBER: Final = re.compile(rf"((['\"])(?:{_NAME})\2\s*:\s*(['\"])).*?\3", re.IGNORECASE)
_AWS_KEY: Final = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b")
_HOSTS: Final = re.compile(r"(?:[\w.-]*|\[[0-9a-f:.]+\])(?::\d+)?", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return an address without its password and its query. Characters that should be percent-encoded are accepted.

    A text without a scheme (``://``) is a path, and is returned unchanged.
    """
    scheme, colon, rest = url.partition("://")
    if not colon:
        return url
    head, _, query = rest.partition("?")
    credentials, at, place = head.rpartition("@")
    if not at and "@" in query:  # the question mark may be part of a password
        return f"{scheme}://{MASK}"
    hosts = re.split(r"[/#]", place, maxsplit=1)[0]
    if not all(_HOSTS.fullmatch(each) for each in hosts.split(",")):
        return f"{scheme}://{MASK}"
    user, _, _ = credentials.partition(":")
    user = _AWS_KEY.sub(rf"\1{MASK}", user)
    return f"{scheme}://{user}@{place}" if re.fullmatch(r"[\w.%+*-]+", user) else f"{scheme}://{place}"


def masked(text: str) -> str:
    """Return a text with the credentials in its addresses, parameters (``password=…``) and AWS keys replaced by ``***``."""
    text = _USERINFO.sub(rf"\1:{MASK}@", text)
    text = _PARAMETER.sub(rf"\1{MASK}", text)
    text = _MEMBER.sub(rf"\1{MASK}\3", text)
    return _AWS_KEY.sub(rf"\1{MASK}", text)
