"""What acts: each service owns its transactions and its part of a run's way, and none imports another.

`loop`, `hints`, `owned` and `next_slots` are what they share: how to go on ticking, how to wake each other, which
shards are ours, and how computed slots are computed anew.
"""
