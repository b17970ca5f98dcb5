"""Show the settings: those in use, and an example file with all of them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.config import parsers
from penstock.config.settings import ADDRESSES, NOTHING, SECRETS, SETTINGS, SPELLED, Config, flag_of
from penstock.masking import MASK, without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Values in the example file for settings without a default.
_EXAMPLES: Final = {
    "stores": "[postgresql://penstock@db.example/penstock]",
    "redis": "[redis://127.0.0.1:6379/0]",
    "wal_dir": "/var/lib/penstock/wal",
    "auth_tokens": "[secret-token-1, secret-token-2]",
    "api_key": "secret-key",
    "jwt_secret": "a secret of 32 bytes, or of more than that",
    "jwt_key_file": "/etc/penstock/issuer.pem",
    "jwt_jwks": "https://id.example/keys",
    "jwt_audience": "penstock",
    "jwt_issuer": "https://id.example",
    "namespace_quotas": "{acme: 1000, other: 100}",
    "tls_cert_file": "/etc/penstock/cert.pem",
    "tls_key_file": "/etc/penstock/key.pem",
    "tls_client_ca_file": "/etc/penstock/client-ca.pem",
    "lake": "/var/lib/penstock/lake",
    "allowed_hosts": "[queue.corp.example]",
    "metrics_auth": "true",
    "rate_limit_max_requests": "Infinity",
    "webhook_allowed_hosts": "[hooks.corp.example, 10.0.0.1]",
    "push_allowed_hosts": "[hooks.corp.example, 10.0.0.1]",
}
#: The longest line of help in the example, in characters.
_WIDTH: Final = 130
#: Settings that are listeners when they are on.
_LISTENERS: Final = frozenset({"tcp", "resp", "resp_plain", "metrics", "batches", "topics", "messages"})


def spell(name: str, value: Any) -> str | None:
    """Return the value of a setting in the form of a file; None if it is not set."""
    if name in _LISTENERS and value is None:
        return "off"
    if value is None or value in ("", ()):
        return NOTHING.get(name)
    if name in ADDRESSES:
        return _without_passwords(value)
    if name in SECRETS:
        return f"'{MASK}'"
    return parsers.spell_duration(value) if name in SPELLED else _plain(name, value)


def _without_passwords(value: str | tuple[str, ...]) -> str:
    return _yaml(without_password(value) if isinstance(value, str) else [without_password(each) for each in value])


def _plain(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "namespace_quotas":
        return _yaml(dict(value))
    if isinstance(value, tuple) and not isinstance(value, parsers.Listener):
        return _yaml(list(value))
    return str(value) if isinstance(value, int) else _yaml(str(value))


def _yaml(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def lines_of(config: Config, *, origin: bool) -> Iterator[str]:
    """Yield the settings in use as lines of a file, with secrets hidden; ``origin``: with the source of each."""
    rows: list[tuple[str, str]] = []
    for name in SETTINGS:
        text = spell(name, getattr(config, name))
        line = f"# {name} is not set" if text is None else f"{name}: {text}"
        rows.append((line, config.origins.get(name, "default")))
    width = max(len(line) for line, _ in rows if len(line) <= 60)
    for line, where in rows:
        yield f"{line:<{width}}  # {where}" if origin else line
    for note in config.notes:
        yield f"# {note}"


def example(flags: frozenset[str]) -> Iterator[str]:
    """Yield a file with every setting and its default, as comments. ``flags``: the settings that have a flag."""
    yield "# The settings of Penstock, each with its default, or with an example where there is none. Take the number sign"
    yield "# away from a setting to change it. Variables override this file, and flags override variables."
    yield "# Which value is in force, and why: penstock config show --origin"
    defaults = Config()
    for name, setting in SETTINGS.items():
        yield ""
        yield from textwrap.wrap(setting.help, _WIDTH, initial_indent="## ", subsequent_indent="## ", break_on_hyphens=False)
        ways = [f"${variable}" for variable in setting.env] + ([flag_of(name)] if name in flags else [])
        default = spell(name, getattr(defaults, name))
        yield f"## Default: {'none' if default is None else default}." + (f" Also: {', '.join(ways)}." if ways else "")
        yield f"# {name}: {_EXAMPLES[name] if default is None else default}"
