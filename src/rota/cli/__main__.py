"""`python -m rota.cli` is the `rota` script."""

from rota.cli.main import main

main()
