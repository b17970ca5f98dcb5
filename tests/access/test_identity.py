"""The namespaces in which an identity has a right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.access.identity import ANYWHERE, EVERYTHING, Identity, Right

NAMES = st.sampled_from([ANYWHERE, "a", "b", "c"])
RIGHTS = st.integers(0, int(EVERYTHING))


@given(st.dictionaries(NAMES, RIGHTS), st.sets(st.sampled_from("abcd")), RIGHTS.filter(bool).map(Right))
def test_those_in_which_it_has_a_right_are_those_it_is_asked_about_one_by_one(
    grants: dict[str, int], namespaces: set[str], right: Right
) -> None:
    identity = Identity("", grants)
    among = identity.among(namespaces, right)
    found = namespaces if among is None else set(among)
    assert found == {each for each in namespaces if identity.may(each, right)}
