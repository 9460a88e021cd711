"""Runs one program of PostgreSQL: as root in a user namespace of its own, and a server as nobody's child.

This file is run as a program of its own (`python -I -S launch.py`): what it does between fork and exec is not safe in
a process with threads, and an isolated interpreter costs about 20 ms. Keep its imports few.

    launch.py IDENTITY LOG FOLDER PROGRAM [ARGUMENT...]

IDENTITY is `-`, or `uid:gid` to be seen as inside a new user namespace: PostgreSQL refuses to run as uid 0, and there
it is not 0, while to the rest of the machine its files and processes are root's, so no permission has to be changed.
LOG is `-` to become the program, or a file: then the program runs on in its own session, away from the terminal's
Ctrl-C, with its output appended to the file, and its process id is printed once it has been executed.
Exit codes: 77 the namespace was refused, 71 anything else before the program ran; the reason is on stderr.
"""

import os
import sys
from contextlib import suppress

NAMESPACE_REFUSED = 77
NOT_STARTED = 71
CLONE_NEWUSER = 0x10000000


def enter_user_namespace(identity: str) -> None:
    """Be `uid:gid` from here on, and still this user to everybody outside (user_namespaces(7))."""
    import ctypes  # only root pays for it

    uid, gid = identity.split(":")
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    # A group map is accepted only after setgroups has been given up.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def close_inherited() -> None:
    """Close all but stdin, stdout and stderr: what a server kept open of its starter's pipes would never end for it."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the listing's own descriptor is closed by now
                os.close(int(name))


def start_detached(log: str, command: list[str]) -> int:
    """Start the command in its own session and return its process id, once it has been executed."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Both ends close on exec: the reader sees the end when the program runs, or the reason why it does not.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for target, source in enumerate((nothing, output, output)):
                os.dup2(source, target)
            os.execv(command[0], command)
        except OSError as error:
            os.write(writer, f"{command[0]}: {error.strerror}".encode())
        finally:
            os._exit(NOT_STARTED)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        if failure := answer.read():
            raise OSError(failure)
    return child


def failure_of(message: str, code: int) -> int:
    """Say why on stderr; return the exit code."""
    print(message, file=sys.stderr)
    return code


def main(arguments: list[str]) -> int:
    """Do what the file's first paragraphs say; return only when the program runs elsewhere or not at all."""
    identity, log, folder, *command = arguments
    close_inherited()
    if identity != "-":
        try:
            enter_user_namespace(identity)
        except OSError as error:
            return failure_of(error.strerror or str(error), NAMESPACE_REFUSED)
    try:
        os.umask(0o077)
        os.chdir(folder)
        if log == "-":
            os.execv(command[0], command)
        print(start_detached(log, command))
    except OSError as error:
        return failure_of(str(error), NOT_STARTED)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
