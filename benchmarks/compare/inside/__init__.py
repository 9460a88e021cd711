"""What runs in the peers' own environments. Nothing here may import Rota but `rota` and `rota_app`.

Every script answers the same actions:

    setup            an empty database becomes the peer's
    one COUNT        make no-op runs one by one: {"runs", "seconds"}
    many COUNT       make them in bulk, a thousand at a time: the same
    send COUNT GAP   make runs that say how long they waited, one every GAP seconds
    work             run what there is, for ever
    recur COUNT      the same, with so many jobs that come due every second
"""
