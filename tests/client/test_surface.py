"""What the SDK is as a whole: one client made from the other, the same words in both, nothing of the server in it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.client
from penstock.client import AsyncClient, Client, Settings
from penstock.client._durations import duration_ms, moment_ms
from tests.client.generate import modules

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_synchronous_client_is_made_from_the_asynchronous_one() -> None:
    for path, text in modules().items():
        assert path.read_text(encoding="utf-8") == text, "run: make sdk"


def surface(client: Any) -> Iterator[tuple[str, str]]:
    """Return the methods of a client and of its parts."""
    parts = {
        "": client,
        **{name: part for name, part in vars(client).items() if not name.startswith("_") and name != "settings"},
    }
    for part, thing in parts.items():
        for name, _ in inspect.getmembers(type(thing), inspect.isfunction):
            if not name.startswith("_"):
                yield part, name.replace("aclose", "close")


def test_both_clients_have_the_same_surface() -> None:
    assert set(surface(Client())) == set(surface(AsyncClient()))
    assert inspect.signature(Client.publish) == inspect.signature(AsyncClient.publish)


def test_every_method_is_tried() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    for part, name in surface(Client()):
        assert re.search(rf"\b{part}\.{name}\(" if part else rf"client\.{name}\(", text) or name == "close", f"{part}.{name}"


def test_every_name_that_is_offered_exists() -> None:
    assert sorted(penstock.client.__all__, key=str) == penstock.client.__all__
    for name in penstock.client.__all__:
        assert hasattr(penstock.client, name)


def test_the_sdk_brings_nothing_of_the_server() -> None:
    code = "import sys, penstock.client, penstock.client.testing; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & {
        "apsw",
        "asyncpg",
        "granian",
        "redis",
        "structlog",
        "cryptography",
        "uvloop",
        "prometheus_client",
        "yaml",
    }
    own = {name.split(".")[1] for name in loaded if name.startswith("penstock.")}
    assert own == {"client", "masking"}, "the second only takes passwords out of texts"


def test_a_server_starts_without_the_sdk() -> None:
    code = "import sys, penstock.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"httpx2", "penstock.client"} & set(loaded)


def test_secrets_are_not_shown() -> None:
    client = Client("http://example.com", api_key="very", token="secret")
    assert "very" not in repr(client.settings) + repr(client)
    assert client.settings.headers()["x-api-key"] == "very"
    assert client.settings.headers()["authorization"] == "Bearer secret"
    for wrong in ("sec\nret", "secret\n", "sécret"):
        for name in ("token", "api_key"):
            with pytest.raises(ValueError, match=f"{name} must be of printable ASCII") as error:
                Settings(url="http://example.com", **{name: wrong})  # type: ignore[arg-type]
            assert wrong not in str(error.value)


def test_the_environment_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(url="http://x:1", api_key="a key", token="a token", namespace="a namespace")
    for name in ("url", "api_key", "token", "namespace"):
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", getattr(given, name))
    client = Client.from_env()
    assert client.settings == given
    assert Client.from_settings(client.settings).settings == given


def test_durations_and_moments() -> None:
    assert [duration_ms(each, "x") for each in (2, 0.25, timedelta(hours=1))] == [2000, 250, 3_600_000]
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert moment_ms(noon, "x") == moment_ms(1_772_366_400_000, "x") == 1_772_366_400_000
    for wrong in (-1, float("nan"), float("inf"), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="delay"):
            duration_ms(wrong, "delay")
    for bad in ("5", None, True):
        with pytest.raises(TypeError, match="delay"):
            duration_ms(bad, "delay")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="at"):
            moment_ms(bad, "at")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time zone"):
        moment_ms(datetime(2026, 3, 1), "at")  # noqa: DTZ001, that is the point


def test_an_address_without_a_scheme_is_refused_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="Try http://localhost:6790"):
        Client("localhost:6790")
