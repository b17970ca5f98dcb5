"""The configuration: sources, precedence, and errors that name the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.config import SETTINGS, Config, Listener, load
from penstock.core.durability import Durability
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defaults() -> None:
    config = load({}, {})
    assert str(config.data) == "data"
    assert str(config.http) == "127.0.0.1:6790"
    assert str(config.tcp) == "127.0.0.1:6789"
    assert config.durability is Durability.ALWAYS
    assert config.auth_tokens == ()
    assert config.rate_limit_max_requests is None
    assert config.origins == {}


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("durability: never\ndata: from-file\nhttp: 127.0.0.1:1\n")
    env = {"PENSTOCK_DURABILITY": "interval", "PENSTOCK_DATA": "from-env"}
    config = load({"data": "from-flag"}, env, file)
    assert (str(config.data), config.durability, config.http.port) == ("from-flag", Durability.INTERVAL, 1)
    assert config.origins == {"data": "--data", "durability": "$PENSTOCK_DURABILITY", "http": str(file)}


def test_every_setting_can_be_given_by_every_source(tmp_path: Path) -> None:
    good = {
        "data": "x", "stores": "postgresql://u:p@h/d", "http": "[::1]:5", "tcp": "off", "resp": "off", "metrics": "off",
        "durability": "never",
        "sync_interval_ms": "5", "auth_tokens": "a,b", "metrics_auth": "yes", "insecure": "true", "cors_allow_origin": "https://x",
        "trusted_proxies": "10.0.0.0/8", "rate_limit_window_ms": "1", "rate_limit_max_requests": "7",
        "rate_limit_cleanup_ms": "9", "shutdown_timeout_ms": "5000", "completed_max": "1", "completed_age_ms": "2",
        "journal_bytes_max": "5000", "journal_age_ms": "3", "ballast_bytes": "0", "log_level": "debug", "log_format": "json",
        "webhook_allowed_hosts": "hooks.corp,10.0.0.1", "accept_loss": "yes", "queue_idle_threshold_ms": "4",
        "queue_size_threshold": "6", "memory_warning_mb": "7", "storage_warning_mb": "8", "worker_timeout_ms": "9",
        "worker_overload_threshold_ms": "10", "jwt_secret": "x", "jwt_key_file": "key.pem", "jwt_jwks": "https://id.example/keys",
        "jwt_leeway_ms": "5", "jwt_required_claims": "exp,sub", "jwt_audience": "queue", "jwt_issuer": "https://id.example",
        "namespace_quotas": "acme:5,a:b:7,*:9", "tls_cert_file": "cert.pem", "tls_key_file": "tls.pem",
        "dev_cert": "yes",
        "batches": "127.0.0.1:8080", "topics": "127.0.0.1:8081", "topics_lease_ms": "1000",
        "redis": "sentinel://a:1,b:2/main", "redis_hot_jobs": "5",
    }  # fmt: skip
    assert set(good) == set(SETTINGS)
    assert load({"dev_cert": good.pop("dev_cert")}, {}).dev_cert  # goes with no other certificate
    assert load({}, {"PENSTOCK_DEV_CERT": "1"}).dev_cert
    from_flags = load(good, {})
    file = tmp_path / "all.yaml"
    file.write_text("\n".join(f"{name}: '{text}'" for name, text in good.items()))
    from_file = load({}, {}, file)
    env = {SETTINGS[name].env[0]: text for name, text in good.items() if SETTINGS[name].env}
    from_env = load({"accept_loss": "yes"}, env)
    for name in good:
        assert getattr(from_flags, name) == getattr(from_file, name) == getattr(from_env, name), name
        assert getattr(from_flags, name) != getattr(Config(), name), name


def test_the_variables_of_the_contract() -> None:
    env = {
        "HTTP_PORT": "7000", "AUTH_TOKENS": "a, b", "CORS_ALLOW_ORIGIN": "https://x", "RATE_LIMIT_MAX_REQUESTS": "Infinity",
        "RATE_LIMIT_WINDOW_MS": "5", "METRICS_AUTH": "true", "LOG_FORMAT": "text", "DATA_PATH": "d",
    }  # fmt: skip
    config = load({}, env)
    assert (config.http, config.auth_tokens, config.rate_limit_max_requests) == (
        Listener("127.0.0.1", 7000),
        ("a", "b"),
        None,
    )
    assert (config.metrics_auth, config.log_format, str(config.data)) == (True, "plain", "d")
    assert load({}, {"HOST": "127.0.0.2"}).http == Listener("127.0.0.2", 6790)
    assert load({}, {"HOST": "127.0.0.2"}).tcp == Listener("127.0.0.2", 6789)
    assert load({}, {"TCP_PORT": "7001"}).tcp == Listener("127.0.0.1", 7001)
    assert load({}, {"HOST": "my-laptop"}).http == Listener("127.0.0.1", 6790)  # a shell's own $HOST
    assert load({}, {"RATE_LIMIT_MAX_REQUESTS": "0"}).rate_limit_max_requests is None


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"AUTH_TOKENS": ","}, r"auth_tokens \(from \$AUTH_TOKENS\) is \*\*\*: an empty token would let everybody in"),
        ({"AUTH_TOKENS": "secret,"}, "an empty token"),
        ({"HTTP_PORT": "0"}, "expected HOST:PORT"),
        ({"HTTP_PORT": "x"}, "expected HOST:PORT"),
        ({"RATE_LIMIT_MAX_REQUESTS": "-1"}, "expected a whole number from 0"),
        ({"RATE_LIMIT_WINDOW_MS": "NaN"}, "expected a whole number from 1"),
        ({"METRICS_AUTH": "maybe"}, "expected yes or no"),
        ({"PENSTOCK_TRUSTED_PROXIES": "everywhere"}, "trusted_proxies"),
        ({"HOST": "0.0.0.0"}, "would let everybody who can reach this machine in"),
        ({"PENSTOCK_HTTP": "192.168.0.1:80"}, "Set AUTH_TOKENS"),
    ],
)
def test_bad_values_name_the_setting_and_where_it_came_from(env: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigInvalid, match=error):
        load({}, env)


@pytest.mark.parametrize("listener", ["tcp", "metrics", "batches", "topics"])
def test_no_listener_lets_other_machines_in_without_tokens(listener: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"0\.0\.0\.0:1234 would let everybody who can reach this machine in"):
        load({listener: "0.0.0.0:1234"}, {})


def test_other_machines_may_be_let_in_with_tokens_or_on_purpose() -> None:
    assert load({"http": "0.0.0.0:1"}, {"AUTH_TOKENS": "t"}).http.port == 1
    assert load({"http": "0.0.0.0:1", "insecure": "yes"}, {}).http.port == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("durabilty: always", "unknown setting 'durabilty'. Did you mean durability?"),
        ("zzz: 1", "unknown setting 'zzz'. There are: data, stores, redis"),
        ("- a", "must hold settings, one per line"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigInvalid, match=error.replace(".", r"\.").replace("?", r"\?").replace("[", r"\[")):
        load({}, {}, file)


def test_an_empty_file_is_fine_and_lists_and_truth_values_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("")
    assert load({}, {}, file) == load({}, {})
    file.write_text("metrics: off\nauth_tokens: [a, b]\nmetrics-auth: true\n")
    config = load({}, {}, file)
    assert (config.metrics, config.auth_tokens, config.metrics_auth) == (None, ("a", "b"), True)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("auth_tokens:", "auth_tokens that is not text. Put it in quotes"),
        ("auth_tokens: [a, ]\nhttp: ", "has no usable value for http"),
        ("auth_tokens: 0123456", "not text"),
        ("auth_tokens: {a: b}", "not text"),
        ("auth_tokens: []", "has no usable value for auth_tokens"),
        ("data:", "has no usable value for data. Leave the line out for the default"),
        ("cors_allow_origin:", "has no usable value"),
    ],
)
def test_a_line_without_a_usable_value_is_refused(tmp_path: Path, line: str, error: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(line)
    with pytest.raises(ConfigInvalid, match=error):
        load({}, {}, file)


def test_blank_tokens_do_not_open_the_doors(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("auth_tokens: secret")
    with pytest.raises(ConfigInvalid, match="an empty token would let everybody in"):
        load({}, {"AUTH_TOKENS": " "}, file)
    assert load({}, {"AUTH_TOKENS": ""}, file).auth_tokens == ("secret",)


def test_two_listeners_cannot_share_an_address() -> None:
    with pytest.raises(ConfigInvalid, match=r"Two listeners share the address 127\.0\.0\.1:9090"):
        load({"http": "127.0.0.1:9090"}, {})


def test_no_page_may_call_if_the_origin_is_none() -> None:
    assert load({}, {"CORS_ALLOW_ORIGIN": "none"}).cors_allow_origin == ""


def test_quotas_are_read(tmp_path: Path) -> None:
    assert load({}, {"NAMESPACE_QUOTAS": " acme:5 , a:b: 7,*:9"}).namespace_quotas == (("acme", 5), ("a:b", 7), ("*", 9))
    file = tmp_path / "penstock.yaml"
    for text in ("namespace_quotas: {acme: 5, other: 7}", "namespace_quotas: ['acme:5', 'other:7']"):
        file.write_text(text)
        assert load({}, {}, file).namespace_quotas == (("acme", 5), ("other", 7))


@pytest.mark.parametrize(
    "text", ["acme", "acme:", ":5", "acme:-1", "acme:five", "acme:5,,b:1", "no spaces:5", "a:1,a:2", "a:1.5"]
)
def test_a_quota_that_is_none_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="namespace_quotas"):
        load({}, {"NAMESPACE_QUOTAS": text})


def test_required_claims_can_be_none() -> None:
    assert load({}, {"JWT_REQUIRED_CLAIMS": "none"}).jwt_required_claims == ()


@pytest.mark.parametrize("name", ["JWT_SECRET", "JWT_KEY_FILE", "JWT_JWKS"])
def test_a_public_address_is_fine_with_keys(name: str) -> None:
    assert load({"http": "0.0.0.0:6790"}, {name: "x"}).asks_for_tokens


def test_a_secret_in_the_file_must_be_text(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("jwt_secret: 12345678901234567890123456789012")
    with pytest.raises(ConfigInvalid, match="Put it in quotes"):
        load({}, {}, file)
