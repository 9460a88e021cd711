"""Who is refused when a pool is too deep: the noisiest first, and nobody below its share."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rota.domain.shedding import refused_tenants

Tenants = dict[str, tuple[int, int]]
TENANTS = st.dictionaries(
    st.text("abcdefghij", min_size=1, max_size=3),
    st.tuples(st.integers(0, 100_000), st.integers(1, 100)),
    max_size=12,
)
ABOVE = st.integers(0, 200_000)


def refused(tenants: Tenants, above: int) -> frozenset[str]:
    waiting = {tenant: runs for tenant, (runs, _) in tenants.items()}
    return refused_tenants(waiting, {tenant: weight for tenant, (_, weight) in tenants.items()}, shed_above=above)


def level(tenants: Tenants, above: int) -> Fraction:
    """Return L with sum(min(runs, L * weight)) = above, found among the pieces between the tenants' own levels."""
    rests = sorted({Fraction(runs, weight) for runs, weight in tenants.values()} | {Fraction(0)})
    for low in rests[::-1]:
        filled = sum((min(Fraction(runs), low * weight) for runs, weight in tenants.values()), Fraction(0))
        if filled <= above:
            rising = sum(weight for runs, weight in tenants.values() if runs > low * weight)
            return low + (above - filled) / rising if rising else low
    raise AssertionError("at level 0 nothing is filled")


@given(TENANTS, ABOVE)
def test_nobody_is_refused_until_the_pool_is_too_deep_and_then_somebody_is(tenants: Tenants, above: int) -> None:
    assert bool(refused(tenants, above)) == (sum(runs for runs, _ in tenants.values()) > above)


@given(TENANTS, ABOVE)
def test_refused_is_who_has_more_than_the_level(tenants: Tenants, above: int) -> None:
    if sum(runs for runs, _ in tenants.values()) > above:
        height = level(tenants, above)
        assert sum(min(Fraction(runs), height * weight) for runs, weight in tenants.values()) == above
        expected = {tenant for tenant, (runs, weight) in tenants.items() if runs > height * weight}
        assert refused(tenants, above) == expected


@given(TENANTS, ABOVE)
def test_the_noisiest_is_the_first_to_be_refused(tenants: Tenants, above: int) -> None:
    gone = refused(tenants, above)
    share = {tenant: Fraction(runs, weight) for tenant, (runs, weight) in tenants.items()}
    assert not [(a, b) for a in gone for b in share if b not in gone and share[b] > share[a]]


@given(TENANTS, ABOVE)
def test_a_tenant_below_its_fair_share_is_never_refused(tenants: Tenants, above: int) -> None:
    total = sum(weight for _, weight in tenants.values())
    below = {tenant for tenant, (runs, weight) in tenants.items() if runs * total <= above * weight}
    assert not refused(tenants, above) & below


@given(TENANTS, ABOVE)
def test_counting_no_tenant_beyond_all_places_decides_the_same(tenants: Tenants, above: int) -> None:
    bounded = {tenant: (min(runs, above + 1), weight) for tenant, (runs, weight) in tenants.items()}
    assert refused(bounded, above) == refused(tenants, above)


def test_one_tenant_deep_and_another_that_sends_little() -> None:
    waiting = {"deep": 100_000, "small": 10}
    assert refused_tenants(waiting, {}, shed_above=50_000) == {"deep"}
    assert refused_tenants(waiting, {"deep": 100}, shed_above=50_000) == {"deep"}
    assert refused_tenants({"deep": 600, "other": 600}, {"deep": 3}, shed_above=1000) == {"other"}
    assert refused_tenants({"deep": 1}, {}, shed_above=0) == {"deep"}
    assert refused_tenants({}, {}, shed_above=0) == frozenset()
