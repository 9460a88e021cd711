"""What all tests share: the fixtures that ship to users."""

pytest_plugins = ["rota.testing.plugin"]
