"""Whose new requests a pool that is too deep refuses: the noisiest tenants', never those of one below its share."""

from collections.abc import Mapping


def refused_tenants(waiting: Mapping[str, int], weights: Mapping[str, int], *, shed_above: int) -> frozenset[str]:
    """Return the tenants whose new requests are refused while `waiting` (tenant -> runs) goes beyond `shed_above`.

    There is a level L at which sum(min(runs, L * weight)) is `shed_above`: the max-min fair division of so many places.
    Refused is who has more runs than L times its weight (1 where none is named). While no more than `shed_above` wait,
    that is nobody; a tenant with no more than its weight's part of the places never is.
    """
    if sum(waiting.values()) <= shed_above:
        return frozenset()
    ordered = sorted(waiting, key=lambda tenant: waiting[tenant] / weights.get(tenant, 1))
    places, weight = shed_above, sum(weights.get(tenant, 1) for tenant in ordered)
    for turn, tenant in enumerate(ordered):
        # Whoever is content with less than the level leaves the rest of its part to the others, so the level rises.
        if waiting[tenant] * weight > places * weights.get(tenant, 1):
            return frozenset(ordered[turn:])
        places -= waiting[tenant]
        weight -= weights.get(tenant, 1)
    raise AssertionError("more runs wait than there are places, so somebody has more than the level")
