"""Finding the user's app: `jobs:app`, `jobs`, `/srv/jobs.py` or `/srv/jobs.py:app`."""

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from rota.errors import SetupFailed
from rota.worker.handlers import HandlerRegistry

_LATER_NAME: Final = "rota_jobs_{stem}"
_ROTA: Final = f"{Path(__file__).parents[1]}{os.sep}"
_NOT_THE_USERS: Final = ("<", _ROTA, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")))


class HasHandlers(Protocol):
    """What the worker floor knows of an app."""

    @property
    def handlers(self) -> HandlerRegistry: ...


def load_app(target: str) -> HasHandlers:
    """Return the app that a target names. Without an attribute the module's only app is taken.

    Raises SetupFailed if there is no such module or file, if it raises while it is imported, or if it has no app, or
    several and the target does not say which.
    """
    place, attribute = _split(target)
    module = _load_file(Path(place)) if _is_path(place) else _load_module(place)
    if attribute:
        return _named(module, place, attribute)
    return _only(module, place)


def load_file(path: str) -> ModuleType:
    """Import a Python file that is not on the import path. Raises SetupFailed."""
    return _load_file(Path(path))


def source_of(target: str) -> str:
    """Return the name that a target gives its app: the module's, and the attribute unless that is `app`."""
    place, attribute = _split(target)
    name = Path(place).stem if _is_path(place) else place
    return name if attribute in ("", "app") else f"{name}:{attribute}"


def _split(target: str) -> tuple[str, str]:
    place, colon, attribute = target.rpartition(":")
    if colon and attribute.replace(".", "").isidentifier():
        return place, attribute
    return target, ""


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise SetupFailed(f"{path} is not a file", hint="give the path of a Python file, such as jobs.py")
    # What lies beside the file can be imported, as if Python had started it.
    _put_on_path(str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        name = _LATER_NAME.format(stem=path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SetupFailed(f"{path} cannot be imported", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise _raised(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise SetupFailed(
            f"{name!r} is neither a module nor a file", hint='write "jobs:app" for a module or "jobs.py" for a file'
        )
    _put_on_path(os.getcwd())
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SetupFailed(
                f"there is no module {name!r}", hint=f"looked in {os.getcwd()} and on the import path"
            ) from None
        raise _raised(name, error) from error
    except BaseException as error:
        raise _raised(name, error) from error


def _put_on_path(folder: str) -> None:
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)


def _raised(place: str, error: BaseException) -> SetupFailed:
    frames = traceback.extract_tb(error.__traceback__)
    # Where the user's own lines end: what those call, of Rota or of a library, was given something wrong.
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)] or frames
    where = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    if isinstance(error, SyntaxError):
        where = f" (line {error.lineno} of {error.filename})"
    return SetupFailed(
        f"{place} raised while it was imported: {type(error).__name__}: {error}{where}",
        hint="ROTA_DEBUG=1 shows the traceback",
    )


def _named(module: ModuleType, place: str, attribute: str) -> HasHandlers:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise SetupFailed(f"{place} has no {attribute!r}", hint=_offer(module, place)) from None
    if not _is_app(found):
        raise SetupFailed(
            f"{attribute!r} in {place} is not an app but {type(found).__name__}", hint=_offer(module, place)
        )
    return found  # type: ignore[return-value]  # _is_app looked at it


def _only(module: ModuleType, place: str) -> HasHandlers:
    apps = _apps(module)
    if not apps:
        raise SetupFailed(f"{place} has no app", hint="write `app = rota.App()` at its top level")
    if len({id(app) for app in apps.values()}) > 1:
        raise SetupFailed(f"{place} has several apps", hint=_offer(module, place))
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, HasHandlers]:
    return {name: value for name, value in vars(module).items() if _is_app(value)}


def _offer(module: ModuleType, place: str) -> str:
    offers = " or ".join(f"{place}:{name}" for name in _apps(module))
    return f"write {offers}" if offers else "write `app = rota.App()` at its top level"


def _is_app(value: object) -> bool:
    if isinstance(value, (type, ModuleType)):
        return False
    try:
        return isinstance(getattr(value, "handlers", None), HandlerRegistry)
    except Exception:
        # Somebody else's object, which may answer a question as it likes.
        return False
