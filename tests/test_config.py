"""The configuration: sources, precedence, and errors that name the setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock.cli import main
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
    assert config.origins == {"data": "--data", "durability": "$PENSTOCK_DURABILITY", "http": f"{file}, line 3"}


def test_every_setting_can_be_given_by_every_source(tmp_path: Path) -> None:
    good = {
        "data": "x", "stores": "postgresql://u:p@h/d", "http": "[::1]:5", "tcp": "off", "resp": "off", "metrics": "off",
        "resp_plain": "127.0.0.1:6381",
        "durability": "never", "wal_dir": "/wal",
        "sync_interval_ms": "5", "auth_tokens": "a,b", "metrics_auth": "yes", "insecure": "true", "cors_allow_origin": "https://x",
        "allowed_hosts": "queue.corp, *.lan,::1",
        "trusted_proxies": "10.0.0.0/8", "rate_limit_window_ms": "1", "rate_limit_max_requests": "7",
        "rate_limit_ipv6_prefix": "56",
        "rate_limit_cleanup_ms": "9", "shutdown_timeout_ms": "5000", "completed_max": "1", "completed_age_ms": "2",
        "journal_bytes_max": "5000", "journal_age_ms": "3", "ballast_bytes": "0", "bulk_processes": "1", "upgrade_copy": "no",
        "bulk_spool_bytes": "1048576", "bulk_memory_bytes": "268435456",
        "bulk_journal_rows": "5", "bulk_snapshot_ms": "5s", "lake": "/data/lake", "log_level": "debug", "log_format": "json",
        "webhook_allowed_hosts": "hooks.corp,10.0.0.1", "accept_loss": "yes", "queue_idle_threshold_ms": "4",
        "push_allowed_hosts": "hooks.corp,10.0.0.1",
        "queue_size_threshold": "6", "memory_warning_mb": "7", "storage_warning_mb": "8", "worker_timeout_ms": "9",
        "worker_overload_threshold_ms": "10", "jwt_secret": "x", "jwt_key_file": "key.pem", "jwt_jwks": "https://id.example/keys",
        "jwt_leeway_ms": "5", "jwt_required_claims": "exp,sub", "jwt_audience": "queue", "jwt_issuer": "https://id.example",
        "jwt_default_scopes": "acme:read,acme:write",
        "namespace_quotas": "acme:5,a:b:7,*:9", "namespace_share": "25", "namespace_queues_max": "10",
        "tls_cert_file": "cert.pem", "tls_key_file": "tls.pem",
        "tls_client_ca_file": "ca.pem",
        "dev_cert": "yes",
        "batches": "127.0.0.1:8080", "topics": "127.0.0.1:8081", "topics_lease_ms": "1000", "batches_max_retries": "5",
        "messages": "127.0.0.1:8082", "messages_visibility_timeout_ms": "5s", "messages_max_size_kb": "1",
        "messages_batch_max": "50", "messages_batch_default": "2", "messages_max": "7", "messages_max_retries": "0",
        "messages_retention": "1d", "messages_schedule_ahead": "1h30m", "messages_auto_create": "no",
        "push_retry_delays_ms": "1s, 250", "push_timeout_ms": "100", "api_key": "k", "auth_required": "yes",
        "http_connections_max": "500", "http_idle_timeout_ms": "2m",
            "database_answer_ms": "10s", "redis": "sentinel://a:1,b:2/main", "redis_hot_jobs": "5",
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


def test_the_variables_of_mqueue(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s:e/c\n")
    databases = {
        "DATABASE_URLS": "postgres://u:p@a/d?sslmode=disable, postgres://u:p@b/d",
        "WAL_DIR": "/wal",
        "WORKER_ID": "w",
    }
    config = load({}, databases | {"REDIS_ADDRS": "r1:6379,r2:6379", "REDIS_PASSWORD_FILE": str(secret), "JWT_SECRET": ""})
    assert config.stores == ("postgres://u:p@a/d?sslmode=disable", "postgres://u:p@b/d")
    assert config.redis == ("redis://:s%3Ae%2Fc@r1:6379", "redis://:s%3Ae%2Fc@r2:6379")
    assert (str(config.wal_dir), config.origins["redis"]) == ("/wal", "$REDIS_ADDRS")
    assert config.notes == ("$WORKER_ID has no meaning here: servers name themselves.",)
    sentinels = load({}, {"REDIS_ADDRS": "s1:26379,s2:26379", "REDIS_SENTINEL_MASTER": "main", "REDIS_PASSWORD": "p"})
    assert sentinels.redis == ("sentinel://:p@s1:26379,s2:26379/main",)
    both = load({}, databases | {"PENSTOCK_STORES": "postgresql://ours/d", "JWT_SECRET_FILE": str(secret)})
    assert (both.stores, both.jwt_secret) == (("postgresql://ours/d",), "s:e/c")
    empty = dict.fromkeys(
        ("DATABASE_URLS", "REDIS_ADDRS", "REDIS_PASSWORD", "WAL_DIR", "JWT_SECRET", "NAMESPACE_QUOTAS"), ""
    )
    assert load({}, empty) == load({}, {})
    assert load({}, {"REDIS_PASSWORD": "p", "WORKER_ID": "w"}).notes == (), "names that other programs use, too"
    several = load({"redis": "sentinel://a,b/m,redis://c:1/0"}, {})
    assert several.redis == ("sentinel://a,b/m", "redis://c:1/0")


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"DATABASE_URLS_FILE": "/nowhere"}, r"/nowhere \(from \$DATABASE_URLS_FILE\) cannot be read"),
        ({"WAL_DIR": "/wal", "DELIVERY_MODE": "exactly-once"}, "Unset it"),
        ({"WAL_DIR": "/wal", "MAX_BUFFER_LENGTH": "5"}, "limit what producers may send with NAMESPACE_QUOTAS"),
        ({"WAL_DIR": "/wal", "LOG_ENCODING": "json"}, "Use LOG_FORMAT"),
        ({"S3_BACKUP_ENABLED": "1"}, "unset S3_BACKUP_ENABLED"),
        ({"AUTH_TOKENS": ","}, r"auth_tokens \(from \$AUTH_TOKENS\) is \*\*\*: an empty token would admit every client"),
        ({"AUTH_TOKENS": "secret,"}, "an empty token"),
        ({"HTTP_PORT": "0"}, "expected HOST:PORT"),
        ({"HTTP_PORT": "x"}, "expected HOST:PORT"),
        ({"RATE_LIMIT_MAX_REQUESTS": "-1"}, "expected a whole number from 0"),
        ({"RATE_LIMIT_WINDOW_MS": "NaN"}, "expected a whole number from 1"),
        ({"METRICS_AUTH": "maybe"}, "expected yes or no"),
        ({"PENSTOCK_TRUSTED_PROXIES": "everywhere"}, "trusted_proxies"),
        ({"HOST": "0.0.0.0"}, "would give access to everyone who can reach this machine"),
        ({"PENSTOCK_HTTP": "192.168.0.1:80"}, "Set AUTH_TOKENS"),
    ],
)
def test_bad_values_name_the_setting_and_where_it_came_from(env: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigInvalid, match=error):
        load({}, env)


@pytest.mark.parametrize("listener", ["tcp", "metrics", "batches", "topics", "messages"])
def test_no_listener_lets_other_machines_in_without_tokens(listener: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"0\.0\.0\.0:1234 would give access to everyone who can reach this machine"):
        load({listener: "0.0.0.0:1234"}, {})


def test_other_machines_may_be_let_in_with_tokens_or_on_purpose() -> None:
    assert load({"http": "0.0.0.0:1"}, {"AUTH_TOKENS": "t"}).http.port == 1
    assert load({"http": "0.0.0.0:1", "insecure": "yes"}, {}).http.port == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("durabilty: always", "unknown setting 'durabilty' (line 1). Did you mean durability?"),
        ("zzz: 1", "unknown setting 'zzz' (line 1). There are: data, stores, database_answer_ms"),
        ("- a", "must have settings, one per line"),
        ("a: [", "is not valid YAML"),
        ("data: a\ndata: b", "has data twice, in the lines 1 and 2"),
        ("nod: {port: 1}", "unknown setting 'nod' (line 1). Did you mean node?"),
        ("node:\n  prot: 1", "unknown setting 'node.prot' (line 2). Did you mean node.port?"),
        (
            "queue:\n  zzzzzz: 1",
            "unknown setting 'queue.zzzzzz' (line 2). There are: queue.default_visibility_timeout_ms, queue",
        ),
        ("node: 5", "node (line 1), which is a section: expected settings below it, such as node.data_dir"),
        ("data: a\nnode: {data_dir: b}", "sets data twice: as data ("),
        ("queue:\n  max_retries: many", "queue.max_retries (from "),
        ("queue:\n  retention_period: soon", "expected a whole number from 0 to"),
        ("queue:\n  max_messages: 0", "queue.max_messages (from "),
        (
            "queue: {max_batch_size: 5, default_batch_size: 6}",
            "messages_batch_default (6) is more than messages_batch_max (5)",
        ),
        ("node:\n  port: 99999", "is '99999': expected a whole number from 1 to 65535"),
        ("node: {host: ''}", "is empty: expected an address"),
        ("metrics: {port: 0}", "expected a whole number from 1 to 65535"),
        ("metrics: {enabled: perhaps}", "expected yes or no"),
        ("storage: {fsync: sometimes}", "is 'sometimes': expected one of: always, interval, batch, never"),
        ("cluster: {enabled: true}", "Penstock has no cluster of peers. Remove the line"),
        ("auth: {enabled: true, api_key: 12345}", "a value of auth.api_key that is not text (line 1). Put it in quotes"),
        ("auth: {enabled: true, api_key: 'a b'}", "auth.api_key (from "),
        ("node: {data_dir: }", "has no usable value for node.data_dir (line 1)"),
        ("node: {host: 0.0.0.0}", "would give access to everyone who can reach this machine"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigInvalid, match=re.escape(error)):
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
        ("auth_tokens:", r"auth_tokens that is not text \(line 1\). Put it in quotes"),
        ("auth_tokens: [a, ]\nhttp: ", "has no usable value for http"),
        ("auth_tokens: 0123456", "not text"),
        ("auth_tokens: {a: b}", "not text"),
        ("auth_tokens: []", "has no usable value for auth_tokens"),
        ("data:", r"has no usable value for data \(line 1\). Leave the line out for the default"),
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
    with pytest.raises(ConfigInvalid, match="an empty token would admit every client"):
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


#: The config.yaml of EpochQ, with all its settings at their defaults.
EPOCHQ = """
node:
  id: "auto"
  host: "0.0.0.0"
  port: 8080
  data_dir: "./data"
cluster:
  enabled: false
  peers: []
storage:
  segment_size_mb: 256
  compaction_interval: "1h"
  fsync: "interval"
  fsync_interval_ms: 1000
  fsync_batch_size: 1000
queue:
  default_visibility_timeout_ms: 30000
  max_message_size_kb: 256
  max_batch_size: 100
  default_batch_size: 1
  max_messages: 100000
  max_retries: 5
  retention_period: "7d"
  max_schedule_ahead: "90d"
namespaces:
  auto_create: true
producers:
  max_rate: 10000
  burst: 50000
auth:
  enabled: false
  api_key: ""
metrics:
  enabled: true
  port: 9090
webhook:
  retry_delays_ms: [1000, 5000, 30000]
  timeout_ms: 5000
"""


def epochq(tmp_path: Path, text: str = EPOCHQ, **env: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load({}, env, file)


def test_the_configuration_of_epochq_is_understood(tmp_path: Path) -> None:
    config = epochq(tmp_path)
    assert config.messages == Listener("0.0.0.0", 8080)
    assert config.metrics == Listener("0.0.0.0", 9090)
    assert (str(config.data), config.durability, config.sync_interval_ms) == ("data", Durability.INTERVAL, 1_000)
    assert (config.messages_max_retries, config.messages_retention) == (5, 7 * 86_400_000)
    assert (config.push_retry_delays_ms, config.push_timeout_ms) == ((1_000, 5_000, 30_000), 5_000)
    assert not config.asks_for_tokens
    assert config.http.is_loopback
    assert config.origins["messages"] == f"{tmp_path / 'config.yaml'}, line 5"
    told = " ".join(config.notes)
    for key in ("node.id", "cluster.peers", "storage.segment_size_mb", "producers.max_rate", "producers.burst"):
        assert f"{key} ({tmp_path / 'config.yaml'}, line " in told
    assert "messages listens on 0.0.0.0:8080 and requires no key" in told


def test_the_minimal_configuration_of_epochq_is_understood(tmp_path: Path) -> None:
    config = epochq(
        tmp_path,
        "node: {host: 0.0.0.0, port: 8080, data_dir: ./data}\nauth: {enabled: false, api_key: ''}\n"
        "metrics: {enabled: true, port: 9090}\n"
        "queue: {default_visibility_timeout_ms: 30000, max_retries: 3, max_messages: 100000}\n",
    )
    assert config.messages == Listener("0.0.0.0", 8080)


def test_who_says_elsewhere_that_a_door_is_public_needs_tokens_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"192\.168\.0\.1:80 would give access to everyone"):
        epochq(tmp_path, PENSTOCK_MESSAGES="192.168.0.1:80")
    with pytest.raises(ConfigInvalid, match=r"0\.0\.0\.0:80 would give access to everyone"):
        epochq(tmp_path, PENSTOCK_HTTP="0.0.0.0:80")


@pytest.mark.parametrize("fsync", ["always", "batch", "interval", "never"])
def test_what_is_synced_when_is_understood(tmp_path: Path, fsync: str) -> None:
    config = epochq(tmp_path, f"storage: {{fsync: {fsync}}}")
    assert config.durability == {"batch": "always"}.get(fsync, fsync)


def test_the_static_key_of_epochq_is_understood(tmp_path: Path) -> None:
    assert epochq(tmp_path, "auth: {enabled: true, api_key: s3cret}").api_key == "s3cret"
    unused = epochq(tmp_path, "auth: {enabled: false, api_key: s3cret}")
    assert unused.api_key == ""
    assert "auth.api_key" in unused.notes[0]
    assert "s3cret" not in unused.notes[0]
    without = epochq(tmp_path, "auth: {enabled: true}")
    assert without.auth_required
    assert without.asks_for_tokens
    assert "penstock keys create" in without.notes[0]


@pytest.mark.parametrize("prefix", ["EPOCHQ", "EPOCHQUEUE"])
def test_the_variables_of_epochq_work(tmp_path: Path, prefix: str) -> None:
    env = {f"{prefix}_AUTH_API_KEY": "k", f"{prefix}_DATA_DIR": "there", f"{prefix}_PORT": "8090"}
    config = epochq(tmp_path, EPOCHQ, **env)
    assert (config.api_key, str(config.data), config.messages) == ("k", "there", Listener("0.0.0.0", 8090))
    assert load({}, env).messages == Listener("127.0.0.1", 8090)
    assert epochq(tmp_path, "node: {host: '::1'}", **env).messages == Listener("::1", 8090)


@pytest.mark.parametrize(
    ("text", "ms"), [("5", 5), ("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("2w", 1_209_600_000)]
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert load({}, {"PENSTOCK_MESSAGES_RETENTION": text}).messages_retention == ms
    assert load({}, {"PENSTOCK_COMPLETED_AGE_MS": text}).completed_age_ms == ms


@pytest.mark.parametrize("text", ["5x", "1.5h", "-1s", "d", "7 d", "999999999999999999d", ""])
def test_what_is_no_duration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid, match="a duration such as 30s, 12h or 7d"):
        epochq(tmp_path, f"messages_retention: '{text}'")


def test_the_settings_are_shown_with_their_origins_and_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "api_key: hidden1\nstores: ['postgresql://u:hidden2@db/x']\nredis: redis://:hidden3@cache\nnode: {id: a}\n"
    )
    env = {"AUTH_TOKENS": "hidden4", "PENSTOCK_MESSAGES_RETENTION": "14d"}
    done = CliRunner().invoke(main, ["config", "show", "--origin", "--config", str(file), "--tcp", "off"], env=env)
    assert done.exit_code == 0, done.output
    lines = {line.partition(":")[0]: line.split() for line in done.output.splitlines()}
    assert lines["tcp"] == ["tcp:", "off", "#", "--tcp"]
    assert lines["messages_retention"] == ["messages_retention:", "14d", "#", "$PENSTOCK_MESSAGES_RETENTION"]
    assert lines["stores"][:3] == ["stores:", "['postgresql://u@db/x']", "#"]
    assert lines["stores"][-2:] == ["line", "2"]
    assert lines["api_key"][1] == lines["auth_tokens"][1] == "'***'"
    assert lines["durability"][-1] == "default"
    assert "hidden" not in done.output
    assert "# node.id (" in done.output
    shown = {line.split()[1] if line.startswith("# ") else line.partition(":")[0] for line in done.output.splitlines()}
    assert shown >= set(SETTINGS)


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    flags = ["--http", "[::1]:5", "--dev-cert", "--batches", "127.0.0.1:8080"]
    env = {"CORS_ALLOW_ORIGIN": "none", "JWT_REQUIRED_CLAIMS": "none", "NAMESPACE_QUOTAS": "a:b:7,*:9"}
    file.write_text(CliRunner().invoke(main, ["config", "show", *flags], env=env).output)
    again, before = load({}, {}, file), load({"http": "[::1]:5", "dev_cert": "yes", "batches": "127.0.0.1:8080"}, env)
    assert [getattr(again, name) for name in SETTINGS] == [getattr(before, name) for name in SETTINGS]


def test_a_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(EPOCHQ)
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 0
    assert f"{file} is fine: 16 settings" in done.output
    assert "producers.burst" in done.output
    file.write_text("durabilty: never")
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 2
    assert "Did you mean durability?" in done.output
    assert CliRunner().invoke(main, ["config", "check", str(tmp_path / "no.yaml")]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("jwt_secret: abc", "jwt_secret cannot be used"), ("tls_cert_file: no.pem\ntls_key_file: no.pem", "no.pem")],
)
def test_what_is_checked_is_what_a_server_would_start_with(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert (done.exit_code, complaint in done.output) == (2, True)


def test_no_retries_at_all_is_an_empty_list(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("webhook:\n  retry_delays_ms: []")
    assert load({}, {}, file).push_retry_delays_ms == ()


def test_an_example_of_a_file_is_written() -> None:
    done = CliRunner().invoke(main, ["config", "example"])
    assert done.exit_code == 0
    assert all(f"# {name}: " in done.output for name in SETTINGS)


def test_tokens_without_scopes_are_those_of_mqueue_where_its_variables_are_set(tmp_path: Path) -> None:
    mqueue = {"JWT_SECRET": "x" * 32, "DATABASE_URLS": "postgresql://u:p@h/d"}
    found = load({}, mqueue)
    assert found.jwt_default_scopes == ("*:read", "*:write")
    assert any("JWT_DEFAULT_SCOPES" in note for note in found.notes)
    assert load({}, {"JWT_SECRET": "x" * 32}).jwt_default_scopes == ()
    assert load({}, mqueue | {"JWT_DEFAULT_SCOPES": "none"}).jwt_default_scopes == ()
    assert load({}, mqueue | {"JWT_JWKS": "https://id.example/keys"}).jwt_default_scopes == ()
    file = tmp_path / "own.yaml"
    file.write_text("jwt_default_scopes: none\n")
    assert load({}, mqueue, file).jwt_default_scopes == ()
