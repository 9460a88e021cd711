"""Whether a crontab has the user column of system crontabs (/etc/crontab, cron.d), told from its name and its lines.

The column is not marked in any way, and reading it wrongly runs a command named "root", or takes a command's first
word for a user. Evidence in order of weight: the file's place, the entries themselves, the heading comment.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rota.importers.crontab_lines import Comment, Entry, Line, first_word

LOGIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?(:[A-Za-z_][A-Za-z0-9_.-]*)?")
"""A login name as useradd takes it, with FreeBSD's optional group."""

_SYSTEM_PLACE: Final = re.compile(r"(^|/)etc/crontab$|(^|/)cron\.d/|\.cron\.d$")
_USER_PLACE: Final = re.compile(r"(^|/)spool/cron/")
_SYSTEM_HEADING: Final = re.compile(r"\b(user|user-?name|who|account)[ \t]+(command|cmd)\b", re.IGNORECASE)
_USER_HEADING: Final = re.compile(r"(\b(dow|wday|week-?day|day[ -]of[ -](the[ -])?week)|\*)[ \t]+(command|cmd)\b", re.I)
_SCRIPT: Final = re.compile(r"\.(sh|bash|py|pl|php|rb|js|jar|exe|cgi)$")
_COMMAND_START: Final = re.compile(r"""[.~]?/|[\[({$"'~.]|[A-Za-z_]\w*=|.*/""")

# Accounts that no command is named after.
_ACCOUNT_WORDS: Final = """
    root nobody daemon www-data www apache wwwrun munin smmsp zabbix nagios uucp operator ubuntu debian centos
    ec2-user admin clamav debian-spamd Debian-exim logcheck vmail gnats tomcat pi user
    nextcloud wordpress homeassistant
"""
# Commands that no account is named after: mysql, nginx and mail are both, and are left to what follows them.
_COMMAND_WORDS: Final = """
    [ [[ ! : . acme.sh ansible ansible-playbook apt apt-get aptitude artisan at aws awk az bash bazel borg btrfs
    bundle case cat cd certbot chmod chown chronic command composer cp crontab curl dash date dd df dnf docker
    docker-compose drush du duplicity echo env eval exec export expr false find flock for freshclam fstrim gcloud go
    grep gsutil gunzip gzip hwclock if ionice java journalctl kill killall ksh kubectl ln logger logrotate ls lvs
    mailx make mdadm mkdir mongodump mv mysqldump newsyslog nice node nohup npm npx ntpdate perl
    pg_dump pg_dumpall php pip pipenv pkill podman poetry printf ps psql python python2 python3 rake rclone reboot
    restic rm rsync ruby run-one run-parts s3cmd sa-update scp screen sed sendmail service set setsid sh shutdown
    sleep smartctl snap source sqlite3 ssh su sudo svn systemctl tar tee test time timeout tmux touch trap true
    ulimit umask unset until updatedb uv uvx wait wget while wp xargs xvfb-run yum zfs zip zpool zsh
"""
_ACCOUNTS: Final = frozenset(_ACCOUNT_WORDS.split())
_COMMANDS: Final = frozenset(_COMMAND_WORDS.split())


@dataclass(frozen=True, slots=True)
class UserColumn:
    """The answer; `doubt` says what speaks against it, or that little speaks for it, and is empty when all is clear."""

    present: bool
    doubt: str = ""


def find_user_column(lines: Iterable[tuple[int, Line]], *, file: str) -> UserColumn:
    """Decide for a whole file. A file without entries has no column."""
    if _SYSTEM_PLACE.search(file):
        return UserColumn(True)
    if _USER_PLACE.search(file):
        return UserColumn(False)
    accounts = commands = unsure = 0
    before_commands = True
    heading: bool | None = None
    for _, line in lines:
        if isinstance(line, Comment):
            heading = _heading_of(line.text) if heading is None else heading
        elif isinstance(line, Entry):
            verdict = _verdict(line.rest)
            accounts += verdict is True
            commands += verdict is False
            unsure += verdict is None
            before_commands = before_commands and _begins_command(first_word(line.rest)[1])
    return _weigh(accounts, commands, unsure, heading=heading, before_commands=before_commands)


def is_command_name(word: str) -> bool:
    """Whether cron would hardly find a user of that name, since it is a well-known command's."""
    return word in _COMMANDS


def _weigh(accounts: int, commands: int, unsure: int, *, heading: bool | None, before_commands: bool) -> UserColumn:
    if accounts and commands:
        present = True if heading is None else heading
        return UserColumn(present, "some entries seem to name a user and others do not")
    if accounts:
        return UserColumn(
            True, "the heading names no user column, but the entries name users" if heading is False else ""
        )
    if commands:
        return UserColumn(
            False, "the heading names a user column, but the entries begin with commands" if heading else ""
        )
    if not unsure:
        return UserColumn(False)
    if heading is not None:
        return UserColumn(heading)
    return UserColumn(before_commands, "the first words of the commands could be users or commands")


def _heading_of(comment: str) -> bool | None:
    if _SYSTEM_HEADING.search(comment):
        return True
    return False if _USER_HEADING.search(comment) else None


def _verdict(rest: str) -> bool | None:
    """True: the first word is a user for certain; False: it is not; None: it could be either."""
    word, command = first_word(rest)
    if word in _ACCOUNTS and command:
        return True
    # A user stands before a command, and no command begins with an option or a redirection.
    if not LOGIN_NAME.fullmatch(word) or _SCRIPT.search(word) or word in _COMMANDS:
        return False
    return False if not command or command[0] in "-<>|&;0123456789" else None


def _begins_command(text: str) -> bool:
    return first_word(text)[0] in _COMMANDS or _COMMAND_START.match(text) is not None
