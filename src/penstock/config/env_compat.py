"""Environment variables of mqueue, bunqueue and EpochQ that are not simply another name of one setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from penstock.config.epochq_compat import Given
from penstock.core import limits
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Variables of mqueue for the location of its data. If one of them is set, the others are read as mqueue's, too.
_MQUEUE: Final = ("DATABASE_URLS", "REDIS_ADDRS", "WAL_DIR")
#: The scopes of a token of mqueue, whose tokens have no scopes: every permission. And their origin, as messages show it.
MQUEUE_ORIGIN: Final = "the environment of mqueue"
_MQUEUE_SCOPES: Final = "*:read,*:write"
#: Variables of mqueue that are accepted and have no effect, and why.
_WITHOUT_MEANING: Final = {
    "WORKER_ID": "servers name themselves",
    "MQUEUE_NODE_ID": "servers find numbers of their own in their store",
    "WAL_RETENTION": "the log is deleted as soon as the database has what is in it",
}
#: Variables that are not supported, and what to use instead.
_REFUSED: Final = {
    "TCP_SOCKET_PATH": "there are no Unix sockets. Listen on an address: --tcp 127.0.0.1:6789",
    "HTTP_SOCKET_PATH": "there are no Unix sockets. Listen on an address: --http 127.0.0.1:6790",
}
#: Prefixes of variables that only EpochQ uses, and the endings that are accepted.
_EPOCHQ: Final = {"EPOCHQ_", "EPOCHQUEUE_"}
_EPOCHQ_NAMES: Final = ("AUTH_API_KEY", "DATA_DIR", "PORT")
_YES: Final = ("1", "true", "yes", "on")


class Originals(NamedTuple):
    """The settings that were found, and notes about the other variables."""

    texts: dict[str, Given]
    notes: tuple[str, ...] = ()


def from_originals(env: Mapping[str, str]) -> Originals:
    """Read the variables of other programs. Raises ConfigInvalid, with the replacement, for one that is not supported."""
    _refuse(env)
    texts: dict[str, Given] = {}
    secret = _secret(env, "JWT_SECRET")
    if secret is not None:
        texts["jwt_secret"] = secret._replace(key="jwt_secret")
    urls = _secret(env, "DATABASE_URLS")
    if urls is not None:
        texts["stores"] = urls._replace(key="stores")
    redis = _redis(env)
    if redis is not None:
        texts["redis"] = redis
    return Originals(texts, tuple(_notes(env)))


def scopes_of_mqueue(env: Mapping[str, str], texts: Mapping[str, Given]) -> dict[str, Given]:
    """Return the scopes of tokens that have none, if mqueue's own environment is used and no scopes are set.

    mqueue's tokens are signed with its only secret. Issuers with their own keys may sign tokens for any purpose.
    """
    if not _is_mqueue(env) or "jwt_secret" not in texts or texts.keys() & {"jwt_default_scopes", "jwt_key_file", "jwt_jwks"}:
        return {}
    return {"jwt_default_scopes": Given(_MQUEUE_SCOPES, MQUEUE_ORIGIN, "jwt_default_scopes")}


def _is_mqueue(env: Mapping[str, str]) -> bool:
    return any(env.get(name) for name in _MQUEUE)


def _secret(env: Mapping[str, str], name: str) -> Given | None:
    """Return the value of a variable, or the content of the file that NAME_FILE names."""
    if env.get(name):
        return Given(env[name], f"${name}", name)
    file = env.get(f"{name}_FILE")
    if not file:
        return None
    try:
        return Given(Path(file).read_text(encoding="utf-8").strip(), f"${name}_FILE", name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"The file {file} (from ${name}_FILE) cannot be read: {error}.") from None


def _redis(env: Mapping[str, str]) -> Given | None:
    """Build addresses of Redis from hosts and a password: one for each shard, or those of the Sentinels."""
    hosts = [each.strip() for each in env.get("REDIS_ADDRS", "").split(",") if each.strip()]
    if not hosts:
        return None
    password = _secret(env, "REDIS_PASSWORD")
    login = "" if password is None else f":{quote(password.text, safe='')}@"
    master = env.get("REDIS_SENTINEL_MASTER")
    if master:
        return Given(f"sentinel://{login}{','.join(hosts)}/{master}", "$REDIS_ADDRS and $REDIS_SENTINEL_MASTER", "redis")
    urls = (host if "://" in host else f"redis://{login}{host}" for host in hosts)
    return Given(",".join(urls), "$REDIS_ADDRS", "redis")


def _refuse(env: Mapping[str, str]) -> None:
    for name, remedy in _REFUSED.items():
        if env.get(name):
            raise ConfigInvalid(f"{name} is set, and {remedy}.")
    if env.get("S3_BACKUP_ENABLED", "").lower() in _YES:
        raise ConfigInvalid(
            "S3_BACKUP_ENABLED is set, and the server does not copy data to S3. Back up the data directory, or the databases, "
            "with another tool, and unset S3_BACKUP_ENABLED."
        )
    for name in env:
        prefix = next((each for each in _EPOCHQ if name.startswith(each)), None)
        if prefix is not None and name.removeprefix(prefix) not in _EPOCHQ_NAMES:
            known = ", ".join(f"{prefix}{each}" for each in _EPOCHQ_NAMES)
            raise ConfigInvalid(
                f"{name} is not a setting. There are {known}. Everything else of EpochQ is set in its config.yaml, with "
                "--config FILE."
            )
    if not _is_mqueue(env):
        return  # the following names are used by other programs for other purposes
    if env.get("REDIS_CLUSTER_MODE", "").lower() in _YES:
        raise ConfigInvalid(
            "REDIS_CLUSTER_MODE is set, and Redis Cluster is not supported. Give single servers, one for each shard "
            "(REDIS_ADDRS=HOST:PORT,HOST:PORT), or Sentinels (REDIS_SENTINEL_MASTER=NAME)."
        )
    if env.get("DELIVERY_MODE", "at-least-once") not in ("", "at-least-once"):
        raise ConfigInvalid("DELIVERY_MODE is not at-least-once, the only mode that Penstock has. Unset it.")
    if env.get("MAX_BUFFER_LENGTH", "") not in ("", str(limits.buffer_jobs_max)):
        raise ConfigInvalid(
            f"MAX_BUFFER_LENGTH is set, and the buffer holds {limits.buffer_jobs_max} jobs, always. Unset it, and limit what "
            "producers may send with NAMESPACE_QUOTAS."
        )
    if env.get("LOG_ENCODING"):
        raise ConfigInvalid("LOG_ENCODING is set. Use LOG_FORMAT: auto, plain or json.")


def _notes(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that are accepted and have no effect."""
    if not _is_mqueue(env):
        return
    for name, why in _WITHOUT_MEANING.items():
        if env.get(name):
            yield f"${name} has no meaning here: {why}."
    if env.get("REDIS_PASSWORD") and not env.get("REDIS_ADDRS"):
        yield "$REDIS_PASSWORD is not used: it belongs to $REDIS_ADDRS, which is not set."
