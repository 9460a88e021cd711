"""Crontabs become jobs as cron would read them; what cannot be read is named by its line and costs nothing else."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.job import Job
from rota.domain.misfire import Skip
from rota.domain.schedule import Cron, cron
from rota.errors import InvalidInput
from rota.importers.crontab import ENVIRONMENT_LIMIT, VARIABLE_LIMIT, read_crontab
from rota.importers.crontab_lines import cut_at_percent, read_lines, why_cut_short
from rota.importers.result import NOTE_LIMIT, ImportResult

CASES = Path(__file__).parent.parent / "cases" / "crontabs"
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def read_case(name: str) -> ImportResult:
    (path,) = CASES.glob(f"{name}-*")
    return read_crontab(path.read_bytes(), file=str(path))


def read(
    text: str | bytes, *, file: str = "crontab", tz: str | None = None, system: bool | None = False
) -> ImportResult:
    return read_crontab(text.encode() if isinstance(text, str) else text, file=file, tz=tz, system=system)


def slots(job: Job, count: int, *, after: datetime = JANUARY) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        assert job.schedule is not None
        slot = job.schedule.next_slot(after)
        assert slot is not None
        found.append(slot.strftime("%Y-%m-%dT%H:%MZ"))
        after = slot
    return found


def expressions(result: ImportResult) -> list[str]:
    return [job.schedule.expression for job in result.jobs if isinstance(job.schedule, Cron)]


def commands(result: ImportResult) -> list[str]:
    return [job.payload["command"] for job in result.jobs]


def refused_lines(result: ImportResult) -> list[int]:
    return [refusal.line for refusal in result.refused]


def warnings_at(result: ImportResult, line: int) -> str:
    return "\n".join(warning.text for warning in result.warnings if warning.line == line)


# The files of the cases


def test_01_a_system_crontab_has_a_user_column_and_its_percent_is_warned_of() -> None:
    result = read_case("01")
    assert [(entry.line, entry.job.payload["user"]) for entry in result.imported] == [
        (line, "root") for line in (7, 8, 9, 10, 13, 14)
    ]
    assert expressions(result) == [
        "17 * * * *",
        "25 6 * * *",
        "47 6 * * 7",
        "52 6 1 * *",
        "22 * * * *",
        "*/5 * * * *",
    ]
    assert slots(result.jobs[2], 2) == ["2026-01-04T06:47Z", "2026-01-11T06:47Z"]
    assert result.jobs[3].payload["command"] == "sleep $(( ( RANDOM "
    assert "'sleep $(( ( RANDOM '" in warnings_at(result, 10)
    assert result.jobs[0].payload["shell"] == "/bin/sh"
    assert result.jobs[0].payload["environment"] == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin"
    }
    assert result.refused == ()
    assert [warning.line for warning in result.warnings] == [7, 7, 10]


def test_03_a_range_of_days_is_every_weekday_and_an_escaped_percent_is_a_percent() -> None:
    result = read_case("03")
    assert expressions(result) == ["24 0 1-7 * *", "24 0 8-14 * *", "24 0 15-21 * *"]
    assert slots(result.jobs[1], 8)[0::6] == ["2026-01-08T00:24Z", "2026-01-14T00:24Z"]
    assert slots(result.jobs[1], 8)[7] == "2026-02-08T00:24Z"
    assert all("$(date +%w) -eq 0" in command for command in commands(result))
    assert {job.payload["stdin"] for job in result.jobs} == {""}


def test_05_a_stepped_range_starts_where_it_says() -> None:
    result = read_case("05")
    assert len(result.jobs) == 2
    assert [slot[-3:-1] for slot in slots(result.jobs[0], 7)] == ["05", "15", "25", "35", "45", "55", "05"]


def test_07_tabs_and_a_who_column() -> None:
    result = read_case("07")
    assert commands(result)[:3] == ["/usr/libexec/atrun", "newsyslog", "periodic daily"]
    assert {job.payload["user"] for job in result.jobs} == {"root"}
    assert {job.payload["environment"]["HOME"] for job in result.jobs} == {"/var/log"}
    clock = result.jobs[5]
    assert clock.payload["command"] == "adjkerntz -a"
    assert len([slot for slot in slots(clock, 12, after=JANUARY) if slot.startswith("2026-01-01")]) == 12
    assert slots(clock, 13)[12] == "2026-01-02T00:01Z"


def test_09_a_zone_both_day_fields_and_a_macro_with_a_user() -> None:
    result = read_case("09")
    assert [entry.line for entry in result.imported] == [9, 10, 11, 13]
    assert [job.payload["user"] for job in result.jobs] == ["root", "user", "user", "foo"]
    assert {job.schedule.tz for job in result.jobs if isinstance(job.schedule, Cron)} == {"America/Los_Angeles"}
    assert "(OR)" in warnings_at(result, 10)
    either = {slot[5:10] for slot in slots(result.jobs[1], 200, after=datetime(2026, 5, 1, 8, tzinfo=UTC))}
    assert {"05-01", "05-17", "05-23"} <= either  # a Friday; odd days of the 15th to the 25th that are a weekend
    assert "05-10" not in {slot[5:10] for slot in slots(result.jobs[1], 80, after=datetime(2026, 5, 10, 8, tzinfo=UTC))}
    assert result.jobs[3].payload["command"] == "a command"
    assert slots(result.jobs[3], 1) == ["2026-01-01T08:00Z"]
    assert "Rota sends no mail" in warnings_at(result, 7)
    assert "MAILTO" in result.jobs[0].payload["environment"]
    assert "UTC" not in " ".join(warning.text for warning in result.warnings)


def test_11_an_anacrontab_is_refused_as_a_whole() -> None:
    result = read_case("11")
    assert result.jobs == []
    assert refused_lines(result) == [8]
    assert "anacrontab" in result.refused[0].reason


def test_13_reboot_is_refused_line_by_line_and_percent_is_input() -> None:
    result = read_case("13")
    assert refused_lines(result) == [3, 4]
    assert all("@reboot" in refusal.reason for refusal in result.refused)
    assert [entry.line for entry in result.imported] == [5, 6, 7, 8, 9]
    assert {job.payload["user"] for job in result.jobs} == {None}
    hours = [slot[11:13] for slot in slots(result.jobs[2], 9)]
    assert hours == ["00", "01", "02", "03", "04", "05", "06", "22", "23"]
    mail = result.jobs[4].payload
    assert mail["command"] == """mail -s "It's 10pm" user"""
    assert mail["stdin"] == "Hello,\n\nWhere are you?\n"
    assert warnings_at(result, 9) == ""


def test_a_job_is_what_cron_would_do() -> None:
    (job,) = read("0 3 * * * /opt/backup").jobs
    assert job.handler == "shell"
    assert job.misfire == Skip()
    assert job.overlap == "allow"
    assert job.timeout == timedelta(days=1)


# Stable ids


@pytest.mark.parametrize("name", ["01", "03", "05", "07", "09", "13"])
def test_a_second_import_gives_the_same_jobs(name: str) -> None:
    assert read_case(name) == read_case(name)


def test_other_lines_may_come_and_go_without_changing_an_id() -> None:
    text = "0 3 * * * /opt/backup\n5 4 * * * /opt/report\n"
    before = read(text).jobs
    after = read("# a comment\n\nFOO=bar\n9 9 * * * /opt/other\n" + text.replace("\n", "\r\n")).jobs
    assert [job.job_id for job in after[1:]] == [job.job_id for job in before]
    assert read("# a comment\n" + text).jobs == before


def test_blanks_between_fields_are_no_part_of_an_id() -> None:
    assert read("0 3 * * * /opt/backup").jobs == read("\t0  3\t*   * *\t/opt/backup").jobs


def test_two_equal_lines_are_two_jobs() -> None:
    once, twice = read("0 3 * * * a\n"), read("0 3 * * * a\n0 3 * * * a\n")
    assert len({job.job_id for job in twice.jobs}) == 2
    assert twice.jobs[0] == once.jobs[0]


@pytest.mark.parametrize("other", ["1 3 * * * /opt/a", "0 3 * * * /opt/b"])
def test_an_edited_entry_is_another_job(other: str) -> None:
    assert read(other).jobs[0].job_id != read("0 3 * * * /opt/a").jobs[0].job_id


def test_ids_are_readable_and_bounded() -> None:
    (job,) = read("0 3 * * * /usr/lib/zfs/scrub -x tank >/dev/null 2>&1", file="/etc/cron.d/zfs", system=False).jobs
    assert job.job_id.startswith("zfs-scrub-tank-")
    (odd,) = read(b"0 3 * * * " + b"\xc3\xa4" * 900, file="/x/" + "\udc80 \n" * 300).jobs
    assert len(odd.job_id) <= 200


# Lines


def test_line_ends_and_a_missing_last_newline_are_accepted() -> None:
    result = read("0 1 * * * a\r\n0 2 * * * b\r\n  # c\r\n\t0 3 * * * c")
    assert commands(result) == ["a", "b", "c"]
    assert result.refused == ()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"0 1 * * * " + b"x" * 989, "999 characters"),
        (b"0 1 * * * a\x00b", "NUL"),
        (b"\xef\xbb\xbf0 1 * * * a", "byte order mark"),
        (b"0 1 * * * \xff\xfe", "UTF-8: byte 0xff at position 11"),
        (b"0 1 * * * a\rb", "carriage return"),
        (b"61 1 * * * a", "minute"),
        (b"0 1 31 2 * a", "no such date"),
        (b"0 1 * * a", "five time fields"),
        (b"0 1 * * *", "five time fields"),
        (b"@daily", "macro"),
        (b"@fortnightly a", "no macro"),
        (b"@every 5m a", "no macro"),
        (b"<<<<<<< HEAD", "no entry"),
        (b"=======", "no entry"),
        (b"A-B=c", "no name"),
        (b"A='b", "open quote"),
        ("٥ 1 * * * a".encode(), "ASCII digits"),
        (b"0 1 * * * %input", "nothing to run"),
    ],
)
def test_a_bad_line_is_refused_and_the_others_go_on(bad: bytes, reason: str) -> None:
    result = read(b"0 3 * * * first\n" + bad + b"\n0 4 * * * last\n", file="/srv/tab")
    assert commands(result) == ["first", "last"]
    (refusal,) = result.refused
    assert (refusal.file, refusal.line) == ("/srv/tab", 2)
    assert reason in refusal.reason


def test_a_line_of_998_characters_is_read() -> None:
    assert len(read("0 1 * * * " + "x" * 988).jobs) == 1


def test_form_feeds_and_other_separators_end_no_line() -> None:
    assert commands(read("0 1 * * * a\x0cb\u2028c\x85d")) == ["a\x0cb\u2028c\x85d"]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "Europe/Berlin"])
def test_another_zone_changes_a_job_and_makes_none(zone: str) -> None:
    (before,), (after,) = read("0 3 * * * /opt/a").jobs, read("0 3 * * * /opt/a", tz=zone).jobs
    assert after.job_id == before.job_id
    assert after.schedule != before.schedule


def test_the_id_of_an_earlier_version_is_known() -> None:
    (entry,) = read("0 3 * * * /opt/a", tz="Asia/Tokyo").imported
    assert entry.former_id == "crontab-a-b242a09270"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("0 0 3 * * * /opt/a", "0 3 * * *"),
        ("0 15 9 * * 1-5 /opt/a", "15 9 * * 1-5"),
        ("0 0 6 * * MON-FRI /opt/a", "0 6 * * MON-FRI"),
        ("0 15 10 ? * MON /opt/a", "15 10 * * MON"),
        ("0 9 * * 1 2027 /opt/a", "0 9 * * 1"),
    ],
)
@pytest.mark.parametrize("system", [True, False, None])
def test_a_sixth_time_field_is_neither_a_user_nor_a_command(line: str, hint: str, system: bool | None) -> None:
    result = read(line, system=system)
    assert result.jobs == []
    (refusal,) = result.refused
    assert f"'{hint}'" in refusal.reason
    cron(hint)


@pytest.mark.parametrize("field", ["? 3 * * *", "0 3 ? * *", "0 3 * * ?"])
def test_a_question_mark_is_refused_with_what_it_means_elsewhere(field: str) -> None:
    (refusal,) = read(f"{field} /opt/a").refused
    assert "1 = Sunday: write their names" in refusal.reason


def test_a_trailing_backslash_continues_nothing() -> None:
    result = read("0 3 * * * /opt/a \\\n1 3 * * * /opt/b \\\\\n")
    assert len(result.jobs) == 2
    assert "the next one stands alone" in warnings_at(result, 1)
    assert warnings_at(result, 2) == ""


def test_a_random_delay_is_a_jitter_and_no_variable() -> None:
    result = read("RANDOM_DELAY=30\n0 3 * * * /opt/a\n")
    assert result.jobs[0].payload["environment"] == {}
    assert "jitter" in warnings_at(result, 1)


def test_an_empty_zone_is_the_default_from_there_on() -> None:
    result = read("CRON_TZ=Asia/Tokyo\n0 1 * * * a\nCRON_TZ=\n0 1 * * * b\n", tz="Europe/Berlin")
    assert [slots(job, 1)[0] for job in result.jobs] == ["2026-01-01T16:00Z", "2026-01-02T00:00Z"]
    assert result.refused == ()


@pytest.mark.parametrize(
    ("expression", "patience"),
    [
        ("* * * * *", timedelta(minutes=1)),
        ("*/7 * * * *", timedelta(minutes=4)),
        ("0 3 * * *", timedelta(hours=1)),
        ("0 3 29 2 *", timedelta(hours=1)),
    ],
)
def test_nothing_is_made_up_by_a_run_that_found_no_worker_in_time(expression: str, patience: timedelta) -> None:
    (job,) = read(f"{expression} /opt/a").jobs
    assert job.start_deadline == patience


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ("~ 3 * * *", r"\d+ 3 \* \* \*"),
        ("0~29 3 * * *", r"[012]?\d 3 \* \* \*"),
        ("H H * * *", r"\d+ \d+ \* \* \*"),
        ("H/15 * * * *", r"(\d|1[0-4])-59/15 \* \* \* \*"),
        ("H(0-29)/10 * H * *", r"\d-29/10 \* \d+ \* \*"),
        ("H 4 * * H", r"\d+ 4 \* \* [0-6]"),
    ],
)
def test_what_chance_would_pick_comes_from_the_jobs_id(written: str, shape: str) -> None:
    once, again = read(f"{written} /opt/a"), read(f"# moved\n{written} /opt/a", tz="Asia/Tokyo")
    assert once.refused == ()
    (expression,) = expressions(once)
    assert re.fullmatch(shape, expression)
    assert expressions(again) == [expression], "the same wherever and whenever it is read"
    assert f"becomes '{expression}'" in warnings_at(once, 1)
    spread = {expressions(read(f"{written} /opt/{n}"))[0] for n in range(40)}
    assert len(spread) > 5


def test_a_leading_dash_of_suse_is_read() -> None:
    result = read("-*/15 * * * * /opt/a")
    assert expressions(result) == ["*/15 * * * *"]
    assert "do not log" in warnings_at(result, 1)


def test_refusals_past_the_limit_are_counted() -> None:
    result = read("junk\n" * (NOTE_LIMIT + 7) + "0 1 * * * a")
    assert len(result.jobs) == 1
    assert len(result.refused) == NOTE_LIMIT + 1
    assert "and 7 more" in result.refused[-1].reason


# Environment and zones


def test_a_variable_belongs_to_the_lines_below_it() -> None:
    result = read("0 1 * * * a\nA = 'b c ' \n B=\"d\"\nC=e f \nSHELL=/bin/bash\n0 2 * * * b\nA=\n0 3 * * * c\n")
    assert [job.payload["environment"] for job in result.jobs] == [
        {},
        {"A": "b c ", "B": "d", "C": "e f"},
        {"A": "", "B": "d", "C": "e f"},
    ]
    assert [job.payload["shell"] for job in result.jobs] == ["/bin/sh", "/bin/bash", "/bin/bash"]


def test_a_command_may_hold_an_equals_sign() -> None:
    assert commands(read("0 1 * * * A=b /opt/a\n@daily A=b c\n")) == ["A=b /opt/a", "A=b c"]


def test_the_environment_is_bounded() -> None:
    many = read("".join(f"A{n}=x\n" for n in range(VARIABLE_LIMIT + 1)) + "0 1 * * * a")
    assert refused_lines(many) == [VARIABLE_LIMIT + 1]
    long = read("".join(f"A{n}={'x' * 900}\n" for n in range(ENVIRONMENT_LIMIT // 900 + 1)) + "0 1 * * * a")
    assert len(long.refused) == 1
    assert len(long.jobs) == 1


def test_mailto_is_warned_of_once_and_an_empty_one_not_at_all() -> None:
    assert len([w for w in read("MAILTO=a\nMAILTO=b\n0 1 * * * a").warnings if "mail" in w.text]) == 1
    assert not [w for w in read('MAILTO=""\n0 1 * * * a').warnings if "mail" in w.text]


def test_tz_moves_no_schedule() -> None:
    result = read("TZ=Asia/Tokyo\n0 1 * * * a", tz="Europe/Berlin")
    assert slots(result.jobs[0], 1) == ["2026-01-02T00:00Z"]
    assert result.jobs[0].payload["environment"] == {"TZ": "Asia/Tokyo"}
    assert "moves no schedule" in warnings_at(result, 1)


def test_the_default_zone_is_said_once_unless_somebody_chose_it() -> None:
    text = "0 1 * * * a\n0 2 * * * b\nCRON_TZ=Asia/Tokyo\n0 1 * * * c"
    [warning] = read(text).warnings
    assert (warning.line, "times are read in UTC" in warning.text) == (1, True)
    for tz in ("UTC", "Europe/Berlin"):
        assert read(text, tz=tz).warnings == ()


@pytest.mark.parametrize(
    "zone",
    [b"CRON_TZ=Mars/Phobos", b"CRON_TZ='UTC", b"\xef\xbb\xbfCRON_TZ=UTC", b"CRON_TZ=UTC\x00"],
)
def test_no_entry_below_an_unknown_zone_is_read_in_another(zone: bytes) -> None:
    result = read(b"0 1 * * * a\n" + zone + b"\n0 2 * * * b\n@daily c\nCRON_TZ=Asia/Tokyo\n0 3 * * * d")
    assert commands(result) == ["a", "d"]
    assert refused_lines(result) == [2, 3, 4]
    assert "line 2" in result.refused[1].reason


def test_a_default_zone_that_is_none_is_the_callers_error() -> None:
    with pytest.raises(InvalidInput):
        read("", tz="Mars/Phobos")


# Percent signs


@pytest.mark.parametrize(
    ("text", "command", "given"),
    [
        (r"date +\%F", "date +%F", None),
        (r"a%b\%c%d", "a", "b%c\nd\n"),
        ("a%", "a", ""),
        ("a%b%", "a", "b\n"),
        (r"sed 's/\\//'", r"sed 's/\\//'", None),
        (r"a \\% b", r"a \\", " b\n"),
    ],
)
def test_percent_as_cron_reads_it(text: str, command: str, given: str | None) -> None:
    assert cut_at_percent(text) == (command, given)


@pytest.mark.parametrize(
    "text", ["tar $(date +", "a `date +", 'date "+', "date +", "x $((1 ", "awk '{printf ", "printf ", "a $(b $(c)"]
)
def test_a_command_that_was_meant_to_go_on_is_recognised(text: str) -> None:
    assert why_cut_short(text) is not None


@pytest.mark.parametrize("text", ['mail -s "It\'s" user', "(cd /; cat)", "cat", r"echo \"", "echo '$(' && cat"])
def test_a_whole_command_is_recognised(text: str) -> None:
    assert why_cut_short(text) is None


# The user column


def guess(text: str, file: str = "tab") -> tuple[list[str | None], bool]:
    result = read_crontab(text.encode(), file=file)
    return [job.payload["user"] for job in result.jobs], any("--system" in w.text for w in result.warnings)


@pytest.mark.parametrize(
    ("text", "file", "users", "doubtful"),
    [
        ("0 1 * * * root /opt/a", "tab", ["root"], False),
        ("0 1 * * * root /opt/a\n0 1 * * * mysql /opt/b", "tab", ["root", "mysql"], False),
        ("0 1 * * * /opt/a", "tab", [None], False),
        ("0 1 * * * cd /opt && ./a", "tab", [None], False),
        ("0 1 * * * backup-db --now", "tab", [None], False),
        ("0 1 * * * report > /tmp/x", "tab", [None], False),
        ("0 1 * * * anna /opt/a", "tab", ["anna"], True),
        ("0 1 * * * anna bob", "tab", [None], True),
        ("0 1 * * * anna bob", "/etc/cron.d/x", ["anna"], False),
        ("0 1 * * * anna bob", "etc/crontab", ["anna"], False),
        ("0 1 * * * root bob", "/var/spool/cron/crontabs/anna", [None], False),
        ("# m h dom mon dow user command\n0 1 * * * anna bob", "tab", ["anna"], False),
        ("# m h  dom mon dow   command\n0 1 * * * anna bob", "tab", [None], False),
        ("# * * * * * user-name command to be executed\n0 1 * * * anna bob", "tab", ["anna"], False),
        ("# m h dom mon dow user command\n0 1 * * * /opt/a", "tab", [None], True),
        ("# m h dom mon dow command\n0 1 * * * root /opt/a", "tab", ["root"], True),
        ("@daily root /opt/a", "tab", ["root"], False),
        ("*/5 * * * * mysql /opt/a", "/etc/cron.d/x", ["mysql"], False),
        ("*/5 * * * * git /opt/a", "x.cron.d", ["git"], False),
    ],
)
def test_the_user_column_is_told(text: str, file: str, users: list[str | None], doubtful: bool) -> None:
    assert guess(text, file) == (users, doubtful)


def test_in_a_mixed_file_lines_without_a_user_are_refused() -> None:
    result = read("0 1 * * * root /opt/a\n0 2 * * * /opt/b\n0 3 * * * cd /opt\n", system=None)
    assert [entry.line for entry in result.imported] == [1]
    assert refused_lines(result) == [2, 3]
    assert "--user" in result.refused[0].reason


def test_the_caller_decides() -> None:
    assert read("0 1 * * * root a", system=False).jobs[0].payload["user"] is None
    assert read("0 1 * * * cd a", system=True).jobs[0].payload["user"] == "cd"
    assert refused_lines(read("0 1 * * * root", system=True)) == [1]


# Any bytes


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([None, True, False]))
def test_no_bytes_raise(data: bytes, system: bool | None) -> None:
    result = read(data, system=system)
    assert result.to_json()["jobs"] == [entry.to_json() for entry in result.imported]
    assert all(1 <= refusal.line <= data.count(b"\n") + 1 for refusal in result.refused)


@pytest.mark.parametrize(
    ("command", "is_warned_of"),
    [
        ("/opt/daemon &", True),
        ("(while :; do date; done) & echo started", True),
        ("/opt/a && /opt/b", False),
        ("/opt/a > /dev/null 2>&1", False),
        ("/opt/a &> /dev/null", False),
        ("curl 'https://example.com/?a=1&b=2'", False),
    ],
)
def test_a_command_that_leaves_something_in_the_background_is_warned_of(command: str, is_warned_of: bool) -> None:
    assert ("background" in warnings_at(read(f"0 0 * * * {command}\n"), 1)) is is_warned_of


PIECES = st.lists(
    st.sampled_from([b"0", b"*", b"*/5", b"@daily", b"@reboot", b" ", b"\t", b"=", b"%", b"'", b"root", b"#", b"\x00"])
    | st.binary(max_size=6),
    max_size=14,
).map(b"".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES.filter(lambda piece: b"CRON_TZ" not in piece), max_size=6))
def test_good_lines_among_bad_ones_survive(junk: list[bytes]) -> None:
    good = [b"17 4 * * 1 /opt/good-%d" % number for number in range(len(junk) + 1)]
    mixed = b"\n".join(line for pair in zip(good, [*junk, b""], strict=True) for line in pair)
    found = {job.payload["command"] for job in read(mixed).jobs}
    assert {line.split(b" ", 5)[5].decode() for line in good} <= found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_every_line_that_is_not_blank_is_accounted_for(data: bytes) -> None:
    numbers = [number for number, _ in read_lines(data)]
    expected = [n for n, raw in enumerate(data.split(b"\n"), 1) if raw.removesuffix(b"\r").strip(b" \t")]
    assert numbers == expected
