"""Which URLs may be called. Nothing here needs a network: names are looked up in a table."""

from __future__ import annotations

import ipaddress

import pytest

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.outbound.addresses import why_forbidden
from penstock.outbound.guard import Guard, addresses_of, parse

pytestmark = pytest.mark.anyio

FORBIDDEN = [
    # Names.
    "http://localhost/", "http://LOCALHOST/", "http://localhost:8080/", "http://a.localhost/", "http://localhost./",
    "http://localhost.localdomain/", "http://ip6-localhost/", "http://metadata.google.internal/", "http://metadata/",
    "http://api.internal/", "http://API.INTERNAL/", "http://x.internal./",
    # IPv4.
    "http://127.0.0.1/", "http://127.255.255.254/", "http://0.0.0.0/", "http://0.1.2.3/", "http://10.0.0.1/",
    "http://10.255.255.255/", "http://172.16.0.1/", "http://172.31.255.255/", "http://192.168.0.1/", "http://169.254.0.1/",
    "http://169.254.169.254/latest/meta-data/", "http://169.254.170.2/", "http://100.64.0.1/", "http://100.127.255.255/",
    "http://100.100.100.200/", "http://192.0.0.192/", "http://192.0.0.8/", "http://192.0.2.1/", "http://198.51.100.7/",
    "http://203.0.113.9/", "http://198.18.0.1/", "http://198.19.255.255/", "http://192.88.99.1/", "http://224.0.0.1/",
    "http://239.255.255.255/", "http://240.0.0.1/", "http://255.255.255.255/", "http://168.63.129.16/",
    # Odd spellings of IPv4.
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://017700000001/",
    "http://127.1/", "http://127.0.1/", "http://127.0.0.01/", "http://127.0.0.1./", "http://127.0.0.0x1/", "http://0/",
    "http://0x/", "http://127.0.0.1.:80/", "http://256.256.256.256/", "http://1.1.1.1.1/", "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/", "http://١٢٧.0.0.1/", "http://1２7.0.0.1/", "http://8.8.8.8./", "http://010.8.8.8/",
    # IPv6.
    "http://[::]/", "http://[::1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[::ffff:10.0.0.1]/", "http://[::127.0.0.1]/", "http://[::7f00:1]/", "http://[::8.8.8.8]/",
    "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::169.254.169.254]/", "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[2001::1]/", "http://[fc00::1]/", "http://[fd00:ec2::254]/", "http://[fe80::1]/", "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/", "http://[fec0::1]/", "http://[ff02::1]/", "http://[100::1]/", "http://[2001:db8::1]/",
    "http://[3fff::1]/", "http://[5f00::1]/", "http://[2001:2::1]/", "http://[::ffff:0:7f00:1]/", "http://[4000::1]/",
    # Brackets, user info, separators.
    "http://[127.0.0.1]/", "http://[::1/", "http://::1/", "http://[::1]]/", "http://[[::1]]/", "http://[v1.a]/",
    "http://good.com@127.0.0.1/", "http://user:pw@good.com/", "http://127.0.0.1@good.com/", "http://good.com\\@127.0.0.1/",
    "http://good.com\\.evil.com/", "http://1.1.1.1 &@2.2.2.2# @3.3.3.3/", "http://good.com\t/", "http://good.com\n/",
    "http://good\r\nHost: evil/", " http://good.com/", "http://good.com/ path", "http://good.com/\x00", "http:///good.com/",
    "http:good.com", "http:/good.com/", "//good.com/", "good.com", "http://", "http://?", "http://:80/", "http://good..com/",
    "http://.good.com/", "http://-good.com/", "http://good.com-/", "http://good.com./", "http://%6c%6f%63alhost/",
    "http://gооd.com/", "http://bücher.example/", f"http://{'a' * 64}.com/", f"http://{'a.' * 130}com/",
    # Schemes.
    "ftp://good.com/", "file:///etc/passwd", "gopher://good.com/", "dict://good.com:11111/", "unix:///run/docker.sock",
    "data:text/plain,x", "javascript:alert(1)", "ws://good.com/", "HTTPX://good.com/", "://good.com/", "",
    # Ports.
    "http://good.com:0/", "http://good.com:65536/", "http://good.com:99999/", "http://good.com:999999/", "http://good.com:/",
    "http://good.com:-1/", "http://good.com:8o/", "http://good.com:２２/", "http://good.com:22/", "http://good.com:25/",
    "http://good.com:6379/", "http://good.com:5432/", "http://good.com:80:80/",
    # Too long.
    "http://good.com/" + "a" * limits.webhook_url_chars_max,
]  # fmt: skip

ALLOWED = [
    ("http://good.com", ("good.com", 80, "/")),
    ("https://good.com/hook?x=1#frag", ("good.com", 443, "/hook?x=1")),
    ("HTTPS://Good.COM:8443/Hook", ("good.com", 8443, "/Hook")),
    ("http://good.com?x=1", ("good.com", 80, "/?x=1")),
    ("http://8.8.8.8/", ("8.8.8.8", 80, "/")),
    ("http://1.1.1.1:8080/", ("1.1.1.1", 8080, "/")),
    ("http://172.32.0.1/", ("172.32.0.1", 80, "/")),
    ("http://100.128.0.1/", ("100.128.0.1", 80, "/")),
    ("http://192.0.1.1/", ("192.0.1.1", 80, "/")),
    ("http://[2606:4700:4700::1111]/", ("2606:4700:4700::1111", 80, "/")),
    ("https://[2606:4700:4700:0:0:0:0:1111]:8443/", ("2606:4700:4700::1111", 8443, "/")),
    ("http://[::ffff:8.8.8.8]/", ("::ffff:808:808", 80, "/")),
    ("http://[64:ff9b::8.8.8.8]/", ("64:ff9b::808:808", 80, "/")),
    ("http://xn--bcher-kva.example/", ("xn--bcher-kva.example", 80, "/")),
    ("http://my_service.good.com/", ("my_service.good.com", 80, "/")),
    ("http://1password.com/", ("1password.com", 80, "/")),
    ("http://internal.good.com/", ("internal.good.com", 80, "/")),
    ("http://notlocalhost/", ("notlocalhost", 80, "/")),
    ("http://good.com/@127.0.0.1", ("good.com", 80, "/@127.0.0.1")),
]


def names(**table: list[str]) -> Guard:
    async def resolve(host: str, port: int) -> list[str]:
        return table[host.partition(".")[0]]

    return Guard(resolve=resolve)


def test_there_are_enough_examples() -> None:
    assert len(set(FORBIDDEN)) >= 60
    assert len(ALLOWED) >= 10


@pytest.mark.parametrize("url", FORBIDDEN, ids=lambda url: ascii(url)[:60])
def test_a_forbidden_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"^(Webhook URL |Invalid URL format)"):
        Guard().check(url)


@pytest.mark.parametrize(("url", "parts"), ALLOWED, ids=[url for url, _ in ALLOWED])
async def test_a_global_url_is_allowed(url: str, parts: tuple[str, int, str]) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34"]

    guard = Guard(resolve=resolve)
    target = guard.check(url)
    assert (target.host, target.port, target.path) == parts
    assert await guard.addresses(target)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "Webhook URL is required"),
        ("http://x/" + "a" * 2_048, "Webhook URL too long (max 2048 characters)"),
        ("nonsense", "Invalid URL format"),
        ("ftp://good.com", "Webhook URL must use http or https protocol"),
        ("http://localhost", "Webhook URL cannot point to localhost"),
        ("http://192.168.1.1", "Webhook URL cannot point to private IP"),
        ("http://169.254.1.1", "Webhook URL cannot point to link-local IP"),
        ("http://0.0.0.0", "Webhook URL cannot point to unspecified IP"),
        ("http://[::1]", "Webhook URL cannot point to loopback IP"),
        ("http://[::ffff:127.0.0.1]", "Webhook URL cannot point to loopback IP"),
        ("http://169.254.169.254", "Webhook URL cannot point to cloud metadata endpoints"),
        ("http://a.internal", "Webhook URL cannot point to cloud metadata endpoints"),
        ("http://good.com:25", "Webhook URL cannot use port 25"),
    ],
)
def test_the_contracts_words(url: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Guard().check(url)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2606:4700:4700::1111", "::1"], ["fe80::1%2"], ["::ffff:10.0.0.1"],
        ["169.254.169.254"], ["93.184.216.34"] * 9 + ["127.0.0.1"],
    ],
)  # fmt: skip
async def test_a_name_is_forbidden_if_one_of_its_addresses_is(addresses: list[str]) -> None:
    guard = names(evil=addresses)
    target = guard.check("http://evil.com/")
    with pytest.raises(InvalidInput, match="Webhook URL cannot point to"):
        await guard.addresses(target)


async def test_a_name_without_addresses_is_an_error_of_the_network() -> None:
    guard = names(gone=[])
    with pytest.raises(OSError, match="no address"):
        await guard.addresses(guard.check("http://gone.com/"))


async def test_only_a_few_addresses_of_a_name_are_tried() -> None:
    guard = names(many=[f"93.184.216.{number}" for number in range(50)])
    assert len(await guard.addresses(guard.check("http://many.com/"))) == limits.webhook_addresses_max


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("localhost", "http://localhost:9/"), ("LocalHost", "http://LOCALHOST/"), ("10.0.0.1", "http://10.0.0.1/"),
        ("::1", "http://[0:0::1]/"), ("hooks.internal", "http://hooks.internal/"),
    ],
)  # fmt: skip
async def test_a_host_the_operator_allows_may_be_private(host: str, url: str) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["10.0.0.1"]

    guard = Guard((host,), resolve)
    assert await guard.addresses(guard.check(url))
    for other in ("http://10.0.0.2/", "http://a.localhost/", "http://evil.hooks.internal/"):
        with pytest.raises(InvalidInput):
            guard.check(other)


def test_an_allowed_host_does_not_allow_another_spelling_of_it() -> None:
    with pytest.raises(InvalidInput):
        Guard(("127.0.0.1",)).check("http://2130706433/")


async def test_the_systems_resolver_finds_this_machine_and_says_what_it_cannot_find() -> None:
    assert set(await addresses_of("localhost", 80)) & {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match="cannot be looked up"):
        await addresses_of("a" * 64 + ".invalid", 80)


def test_the_host_header_has_the_port_only_if_it_is_unusual() -> None:
    assert [
        parse(url).authority
        for url in ("http://a.com", "https://a.com:443", "http://a.com:443", "https://[2606::1]:80", "http://[2606::1]")
    ] == ["a.com", "a.com", "a.com:443", "[2606::1]:80", "[2606::1]"]


def test_everything_the_standard_library_calls_private_is_forbidden() -> None:
    for text in (
        "192.0.0.0/24",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "fc00::/7",
        "fe80::/10",
        "2001:db8::/32",
        "100::/64",
        "::/3",
    ):
        network = ipaddress.ip_network(text)
        for address in (network[0], network[1], network[-1]):
            assert why_forbidden(address), address
