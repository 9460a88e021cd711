"""What all tests share: the fixtures that ship to users, and a hypothesis that asserts no wall-clock time."""

from hypothesis import settings

pytest_plugins = ["rota.testing.plugin"]

# Machines are shared and noisy: an example that takes long is no failure.
settings.register_profile("rota", deadline=None)
settings.load_profile("rota")
