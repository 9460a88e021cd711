"""This program's version, as the package's metadata gives it."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("rota")
