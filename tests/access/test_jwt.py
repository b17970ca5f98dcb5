"""JSON Web Tokens: which are good, which are refused, and what they allow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.authenticator import Authenticator, shown_in
from penstock.access.identity import ANYWHERE, UNRESTRICTED, Identity, Right, grants_of
from penstock.access.jwt import TokenRules, Verifier
from penstock.access.jwt_keys import Key, KeyRing, jwks_keys, pem_key, secret_key
from penstock.core import limits
from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.errors import Forbidden, KeysUnavailable, Unauthorized
from tests.support.issuer import (
    SECRET,
    confused,
    ec_key,
    encoded,
    forged,
    jwk,
    jwks,
    private_pem,
    public_pem,
    rsa_key,
    token,
)

pytestmark = pytest.mark.anyio

RSA, EC, SHARED = pem_key(public_pem(rsa_key())), pem_key(public_pem(ec_key())), secret_key(SECRET)
ALL = Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE | Right.ADMIN


def verifier(clock: ManualClock, *keys: Key, fetch: Any = None, **rules: Any) -> Verifier:
    return Verifier(clock, KeyRing(clock, keys or (SHARED,), fetch), TokenRules(**rules))


async def refused(checker: Verifier, shown: str) -> str:
    with pytest.raises(Unauthorized) as caught:
        await checker.identify(shown)
    return str(caught.value)


# Who is let in.


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (SHARED, token()),
        (RSA, token(rsa_key(), "RS256")),
        (RSA, token(rsa_key(), "RS256", kid="whatever")),
        (EC, token(ec_key(), "ES256")),
    ],
    ids=["HS256", "RS256", "RS256 with a name", "ES256"],
)
async def test_a_good_token_says_who_it_is(clock: ManualClock, key: Key, shown: str) -> None:
    identity = await verifier(clock, key).identify(shown)
    assert (identity.subject, identity.may(ANYWHERE, ALL)) == ("test-user", True)
    authenticator = Authenticator(clock, ["static"], verifier(clock, key))
    assert (await authenticator.identify(f"Bearer {shown}")).subject == "test-user"
    assert await authenticator.identify("static") is UNRESTRICTED
    with pytest.raises(Unauthorized):
        await authenticator.identify("")


async def test_without_tokens_and_keys_the_server_is_open(clock: ManualClock) -> None:
    authenticator = Authenticator(clock)
    assert authenticator.is_open
    assert await authenticator.identify("") is authenticator.open_identity
    await authenticator.close()


@pytest.mark.parametrize("name", ["authorization", "authorisation"])
def test_both_spellings_of_the_header_are_read(name: str) -> None:
    assert shown_in({name: "Bearer x"}) == "Bearer x"
    assert shown_in({}) == ""


# Attacks.

CLAIMS = {"sub": "attacker", "exp": 9_999_999_999}
GOOD = token(rsa_key(), "RS256")
ATTACKS = {
    "none": forged({"alg": "none"}, CLAIMS),
    "None": forged({"alg": "None"}, CLAIMS, b"x"),
    "no algorithm": forged({}, CLAIMS, b"x"),
    "an algorithm that is no text": forged({"alg": ["RS256"]}, CLAIMS, b"x"),
    "the public key as secret": confused(public_pem(rsa_key()), CLAIMS),
    "the public key as secret, without its last line end": confused(public_pem(rsa_key()).strip(), CLAIMS),
    "an empty secret": confused(b"", CLAIMS),
    "the key of somebody else": token(rsa_key(1), "RS256"),
    "another algorithm of the same key": token(rsa_key(), "RS512"),
    "another padding of the same key": token(rsa_key(), "PS256"),
    "another kind of key": token(ec_key(), "ES256"),
    "the secret of somebody else": token("x" * 64),
    "a key of its own": token(rsa_key(1), "RS256", header={"jwk": jwk(rsa_key(1), "a"), "jku": "https://evil.example/keys"}),
    "no signature": GOOD.rpartition(".")[0] + ".",
    "another signature": GOOD.rpartition(".")[0] + "." + encoded(b"x" * 256),
    "another payload": ".".join((GOOD.split(".")[0], encoded(b'{"exp":9999999999}'), GOOD.split(".")[2])),
    "a critical extension": token(rsa_key(), "RS256", header={"crit": ["exp"], "exp": 1}),
    "a payload beside it": token(rsa_key(), "RS256", header={"b64": False, "crit": ["b64"]}),
    "a name that is no text": forged({"alg": "RS256", "kid": 5}, CLAIMS, b"x"),
    "a path as the name": forged({"alg": "HS256", "kid": "../../dev/null"}, CLAIMS, b"x"),
    "too long": token(rsa_key(), "RS256", padding="x" * limits.token_chars_max),
    "deeply nested": forged(b"[" * 5_000, b"{}", b"x"),
    "claims that are no object": forged({"alg": "RS256"}, b"[]", b"x"),
    "a padded signature": GOOD + "==",
    "a signature with a letter that is left out": GOOD[:-5] + "~" + GOOD[-5:],
    "a signature in the other alphabet": GOOD.replace("-", "+").replace("_", "/") + "==",
    "bits beyond the end of the signature": GOOD[:-1] + {"A": "B", "Q": "R", "g": "h", "w": "x"}[GOOD[-1]],
    "a line end": GOOD + "\n",
    "five parts": GOOD + ".a.b",
    "two parts": GOOD.rpartition(".")[0],
    "nothing": "",
    "dots": "..",
    "not ASCII": "é.é.é",
    "not text": "\udce9.\udce9.\udce9",
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    "keys", [(RSA,), (RSA, secret_key("another secret, which nobody knows at all"))], ids=["one", "two"]
)
@pytest.mark.filterwarnings("ignore")  # of the library that makes the attacks
async def test_forged_tokens_are_refused_and_not_told_why(clock: ManualClock, attack: str, keys: tuple[Key, ...]) -> None:
    checker = verifier(clock, *keys)
    assert (await checker.identify(GOOD)).subject == "test-user"
    assert await refused(checker, ATTACKS[attack]) == "Unauthorized"


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}", fullmatch=True))
def test_garbage_is_refused(shown: str) -> None:
    asyncio.run(refused(verifier(ManualClock(), SHARED, RSA, EC), shown))


@given(st.integers(0, len(GOOD) - 1), st.sampled_from("ABCxyz019-_."))
def test_no_letter_of_a_token_can_be_changed(place: int, letter: str) -> None:
    changed = GOOD[:place] + letter + GOOD[place + 1 :]
    if changed == GOOD:
        return
    asyncio.run(refused(verifier(ManualClock(), RSA), changed))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "scope", "scp", "scopes", "allowed_namespaces"])


@given(st.dictionaries(names, json_values))
@pytest.mark.filterwarnings("ignore")
def test_whatever_a_signed_token_claims_it_is_taken_or_refused(claims: dict[str, Any]) -> None:
    import json

    import jwt

    shown = jwt.PyJWS().encode(json.dumps(claims).encode(), SECRET, "HS256")
    try:
        identity = asyncio.run(verifier(ManualClock()).identify(shown))
    except Unauthorized:
        return
    assert isinstance(identity, Identity)


# Time.


async def test_a_token_ends_also_one_that_is_known_already(clock: ManualClock) -> None:
    now = clock.now_ms() // 1_000
    checker, shown = verifier(clock), token(exp=now + 10)
    await checker.identify(shown)
    await clock.advance(9_999)
    await checker.identify(shown)
    await clock.advance(1)
    assert "expired" in await refused(checker, shown)
    assert "expired" in await refused(checker, token(exp=now - 1_000))


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_a_token_begins(clock: ManualClock, claim: str) -> None:
    later: dict[str, Any] = {claim: clock.now_ms() // 1_000 + 10}
    checker, shown = verifier(clock), token(**later)
    assert "not valid yet" in await refused(checker, shown)
    await clock.advance(10_000)
    await checker.identify(shown)


async def test_clocks_may_differ_by_the_leeway(clock: ManualClock) -> None:
    now = clock.now_ms() // 1_000
    checker = verifier(clock, leeway_ms=5_000)
    await checker.identify(token(exp=now - 4, nbf=now + 5))
    assert "expired" in await refused(checker, token(exp=now - 5))
    assert "not valid yet" in await refused(checker, token(nbf=now + 6))


async def test_claims_can_be_required(clock: ManualClock) -> None:
    endless = token(exp=None)
    assert await refused(verifier(clock), endless) == "The token has no claim exp. Request one from the issuer."
    assert (await verifier(clock, required=()).identify(endless)).expires_ms is None
    assert "no claim scopes" in await refused(verifier(clock, required=("exp", "scopes")), token(scopes=None))


@pytest.mark.parametrize("value", [True, "tomorrow", [1], {"a": 1}])
async def test_a_moment_is_a_number(clock: ManualClock, value: Any) -> None:
    import json

    import jwt

    shown = jwt.PyJWS().encode(json.dumps({"exp": value}).encode(), SECRET, "HS256")
    assert "must be a number" in await refused(verifier(clock), shown)


async def test_audience_and_issuer(clock: ManualClock) -> None:
    ours = verifier(clock, audience="queue", issuer="https://id.example")
    for audience in ("queue", ["other", "queue"]):
        await ours.identify(token(aud=audience, iss="https://id.example"))
    assert "audience" in await refused(ours, token(aud="other", iss="https://id.example"))
    assert "audience" in await refused(ours, token(iss="https://id.example"))
    assert "issuer" in await refused(ours, token(aud="queue", iss="https://evil.example"))


@pytest.mark.parametrize("audience", ["other", "", [""], [], ["", "queue"], 0, False, {}])
async def test_a_token_with_an_audience_is_refused_by_a_server_without_one(clock: ManualClock, audience: Any) -> None:
    assert "audience" in await refused(verifier(clock), token(scopes=["*:admin"], aud=audience))


async def test_a_signature_is_checked_once_and_not_too_many_are_remembered(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "known_tokens_max", 2)
    checker, shown = verifier(clock), [token(n=n) for n in range(3)]
    checked: list[str] = []
    ask = checker._claims

    async def count(each: str) -> dict[str, Any]:
        checked.append(each)
        return await ask(each)

    monkeypatch.setattr(checker, "_claims", count)
    for each in (shown[0], shown[0], shown[1], shown[0], shown[2], shown[0], shown[1]):
        await checker.identify(each)
    assert checked == [shown[0], shown[1], shown[2], shown[1]]
    assert len(checker._known) == 2


# What a token allows.


@pytest.mark.parametrize(
    ("claims", "allowed", "denied"),
    [
        ({}, [], [("a", Right.LOOK), (ANYWHERE, Right.LOOK)]),
        ({"scopes": None, "allowed_namespaces": None}, [], [("a", Right.LOOK), (ANYWHERE, Right.LOOK)]),
        ({"roles": ["admin"], "groups": ["*:admin"], "permissions": ["*:*"]}, [], [("a", Right.LOOK), (ANYWHERE, Right.LOOK)]),
        ({"scope": "a:read b:write"}, [("a", Right.TAKE), ("b", Right.PRODUCE)], [("a", Right.PRODUCE), ("b", Right.LOOK)]),
        ({"scope": "openid profile https://x/Mail.Read"}, [], [("a", Right.LOOK), ("openid", Right.LOOK)]),
        ({"scp": "a:produce"}, [("a", Right.PRODUCE)], [("a", Right.TAKE)]),
        ({"scp": ["a:produce"]}, [("a", Right.PRODUCE)], [("a", Right.TAKE)]),
        ({"scope": "a:read", "scopes": [], "scp": ["b:read"]}, [("a", Right.TAKE), ("b", Right.TAKE)], [("c", Right.TAKE)]),
        ({"scope": "", "allowed_namespaces": ["a"]}, [], [("a", Right.LOOK)]),
        ({"scope": "admin", "allowed_namespaces": ["a"]}, [("a", ALL)], [("b", Right.LOOK), (ANYWHERE, Right.LOOK)]),
        ({"allowed_namespaces": "*"}, [("a", ALL), (ANYWHERE, ALL)], []),
        ({"allowed_namespaces": ["a", "b"]}, [("a", ALL), ("b", ALL)], [("c", Right.LOOK), (ANYWHERE, Right.LOOK)]),
        ({"allowed_namespaces": []}, [], [("a", Right.LOOK)]),
        ({"scopes": []}, [], [("a", Right.LOOK)]),
        ({"scopes": ["a:read"]}, [("a", Right.LOOK | Right.TAKE)], [("a", Right.PRODUCE), ("b", Right.TAKE)]),
        ({"scopes": ["a:write"]}, [("a", Right.PRODUCE | Right.SETTLE)], [("a", Right.TAKE), ("a", Right.ADMIN)]),
        ({"scopes": ["a:*", "b:read"]}, [("a", ALL), ("b", Right.TAKE)], [("b", Right.PRODUCE)]),
        ({"scopes": ["*:produce"]}, [("a", Right.PRODUCE), ("b", Right.LOOK)], [("a", Right.TAKE), (ANYWHERE, Right.ADMIN)]),
        ({"scopes": ["*:*"]}, [("a", ALL), (ANYWHERE, ALL)], []),
        ({"scopes": "consume"}, [("a", Right.TAKE | Right.SETTLE | Right.LOOK)], [("a", Right.PRODUCE)]),
        ({"scopes": ["a:b:admin"]}, [("a:b", ALL)], [("a", Right.LOOK), ("b", Right.LOOK)]),
        ({"scopes": ["a:fly", "a", ""]}, [], [("a", Right.LOOK)]),
        ({"scopes": ["consume"], "allowed_namespaces": ["a"]}, [("a", Right.TAKE)], [("b", Right.TAKE), ("a", Right.ADMIN)]),
        ({"scopes": ["a:*", "b:*"], "allowed_namespaces": ["a"]}, [("a", ALL)], [("b", Right.LOOK)]),
    ],
)  # fmt: skip
def test_claims_become_rights(claims: dict[str, Any], allowed: Any, denied: Any) -> None:
    identity = Identity("x", grants_of(claims))
    for namespace, right in allowed:
        identity.check(namespace, right)
        identity.check(namespace, Right.NONE)
    for namespace, right in denied:
        with pytest.raises(Forbidden, match="needs the scope"):
            identity.check(namespace, right)


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({"scopes": 5}, "scopes"), ({"scopes": [5]}, "scopes"), ({"scopes": ["a:*"] * 1_001}, "scopes"),
        ({"scopes": True}, "scopes"),
        ({"scope": {"a": "admin"}}, "scope"), ({"scope": ["a:read", None]}, "scope"), ({"scp": 1.5}, "scp"),
        ({"scp": {}}, "scp"),
        ({"allowed_namespaces": {}}, "allowed_namespaces"), ({"allowed_namespaces": [""]}, "allowed_namespaces"),
        ({"allowed_namespaces": False}, "allowed_namespaces"), ({"scopes": [":admin"]}, "scopes"),
        ({"scope": ":read"}, "scope"),
        ({"scopes": ["a:read", ":*"], "allowed_namespaces": ["a"]}, "scopes"),
    ],
)  # fmt: skip
def test_claims_that_cannot_be_understood_are_refused(claims: dict[str, Any], named: str) -> None:
    with pytest.raises(Unauthorized, match=f"claim {named} "):
        grants_of(claims)


def test_tokens_without_scopes_have_those_that_are_configured() -> None:
    identity = Identity("x", grants_of({"sub": "x"}, ("acme:read",)))
    assert identity.may("acme", Right.TAKE)
    assert not identity.may("acme", Right.PRODUCE)
    assert not identity.may("other", Right.LOOK)
    assert not Identity("x", grants_of({"scope": ""}, ("*:admin",))).may("acme", Right.LOOK), "it says that it has none"


def test_a_refusal_names_the_scope_that_is_missing() -> None:
    with pytest.raises(Forbidden) as caught:
        Identity("x", {}).check("acme", Right.TAKE)
    told = "This token has no permission for this in the namespace 'acme'. It needs the scope 'acme:consume'."
    assert str(caught.value).startswith(told)
    assert "JWT_DEFAULT_SCOPES" in str(caught.value)
    with pytest.raises(Forbidden) as caught:
        Identity("x", {"other": Right.TAKE}).check("acme", Right.TAKE)
    assert str(caught.value) == told


# Keys.


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (b"", "no public key"),
        (b"-----BEGIN PUBLIC KEY-----\nrubbish\n-----END PUBLIC KEY-----", "no public key"),
        (private_pem(rsa_key()), "private key"),
        (public_pem(rsa_key(bits=1_024)), "1024 bits"),
    ],
    ids=["empty", "rubbish", "private", "weak"],
)
def test_a_file_without_a_good_public_key_is_refused(pem: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pem_key(pem)


def test_a_secret_must_be_secret() -> None:
    with pytest.raises(ValueError, match="openssl rand"):
        secret_key("short")
    with pytest.raises(ValueError, match="jwt_key_file"):
        secret_key(public_pem(rsa_key()).decode())


def test_only_what_checks_signatures_is_taken_from_a_key_set() -> None:
    keys = jwks_keys(
        jwks(
            jwk(rsa_key(), "good"),
            jwk(ec_key(), "curve", use="sig", key_ops=["verify"]),
            {"kty": "oct", "kid": "secret", "k": encoded(b"x" * 32)},
            jwk(rsa_key(), "encryption", use="enc"),
            jwk(rsa_key(), "other", alg="RS512"),
            jwk(rsa_key(), "HS", alg="HS256"),
            jwk(rsa_key(), "private", d="AQAB"),
            jwk(rsa_key(bits=1_024), "weak"),
            jwk(rsa_key(), "signing", key_ops=["sign"]),
            {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
            {"kty": "RSA", "kid": "empty"},
        )
    )
    assert [(key.kid, key.algorithm) for key in keys] == [("good", "RS256"), ("curve", "ES256")]


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys":5}', b'{"keys":[]}', b'{"keys":[5]}', b"x" * 300_000])
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match="key set"):
        jwks_keys(document)


async def test_keys_of_a_set_are_found_by_name(clock: ManualClock) -> None:
    checker = verifier(clock, *jwks_keys(jwks(jwk(rsa_key(), "a"), jwk(rsa_key(1), "b"), jwk(ec_key(), "c"))))
    for kid, number in (("a", 0), ("b", 1)):
        await checker.identify(token(rsa_key(number), "RS256", kid=kid))
    await checker.identify(token(ec_key(), "ES256"))  # the only one of its kind needs no name
    for shown in (
        token(rsa_key(), "RS256"),
        token(rsa_key(), "RS256", kid="b"),
        token(rsa_key(), "RS256", kid="z"),
        token(ec_key(), "ES256", kid="a"),
    ):
        assert await refused(checker, shown) == "Unauthorized"


class Provider:
    """Serves a key set, or fails to."""

    def __init__(self, *documents: bytes | OSError) -> None:
        self.documents = list(documents)
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> bytes:
        self.asked += 1
        await self.open.wait()
        document = self.documents[0] if len(self.documents) == 1 else self.documents.pop(0)
        if isinstance(document, OSError):
            raise document
        return document


async def test_keys_are_fetched_when_they_are_needed_and_once_for_many(clock: ManualClock) -> None:
    provider = Provider(jwks(jwk(rsa_key(), "a")))
    provider.open.clear()
    checker = Verifier(clock, KeyRing(clock, (), provider), TokenRules())
    shown = token(rsa_key(), "RS256", kid="a")
    asking = [asyncio.ensure_future(checker.identify(shown)) for _ in range(5)]
    await yield_to_loop()
    provider.open.set()
    assert len({(await each).subject for each in asking}) == 1
    assert provider.asked == 1


async def test_an_unknown_key_is_asked_for_but_not_too_often(clock: ManualClock) -> None:
    provider = Provider(jwks(jwk(rsa_key(), "a")), jwks(jwk(rsa_key(1), "b")))
    checker = Verifier(clock, KeyRing(clock, (), provider), TokenRules())
    old, new = token(rsa_key(), "RS256", kid="a"), token(rsa_key(1), "RS256", kid="b")
    await checker.identify(old)
    for _ in range(10):
        assert await refused(checker, new) == "Unauthorized"
    assert provider.asked == 1
    await clock.advance(limits.jwks_pause_ms)
    assert (await checker.identify(new)).subject == "test-user"
    assert await refused(checker, old) == "Unauthorized"  # withdrawn, though it was known
    assert provider.asked == 2
    await refused(checker, token())  # HS256 is never a reason to ask
    assert provider.asked == 2


async def test_old_keys_are_fetched_anew_while_they_are_used(clock: ManualClock) -> None:
    provider = Provider(jwks(jwk(rsa_key(), "a")), OSError("no route"), jwks(jwk(rsa_key(1), "b")))
    checker = Verifier(clock, KeyRing(clock, (), provider), TokenRules())
    shown = token(rsa_key(), "RS256", kid="a")
    for asked in (1, 2):
        await checker.identify(shown)
        await yield_to_loop()
        assert provider.asked == asked
        await clock.advance(limits.jwks_age_ms)
    await checker.identify(shown)  # the second time it could not be had, and stays good
    await yield_to_loop()
    assert await refused(checker, shown) == "Unauthorized"


async def test_without_any_keys_a_client_is_told_to_come_back(clock: ManualClock) -> None:
    checker = Verifier(clock, KeyRing(clock, (), Provider(OSError("no route"))), TokenRules())
    for _ in range(2):
        with pytest.raises(KeysUnavailable):
            await checker.identify(token(rsa_key(), "RS256"))
    hanging = Provider(b"")
    hanging.open.clear()
    ring = KeyRing(clock, (), hanging)
    ring.tend()
    await yield_to_loop()
    await ring.close()
    await KeyRing(clock).close()


async def test_a_moment_of_very_many_digits_is_a_moment(clock: ManualClock) -> None:
    assert (await verifier(clock).identify(token(exp=10**400))).expires_ms == 2**62
