"""CronJobs become jobs with Kubernetes' own defaults, and a hostile YAML file costs nothing but a refusal."""

import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.schedule import Cron, Interval
from rota.importers import yaml_documents
from rota.importers.kubernetes import read_kubernetes
from rota.importers.result import ImportResult
from rota.importers.yaml_documents import DEPTH_LIMIT, DOCUMENT_LIMIT, SIZE_LIMIT

CASE = Path(__file__).parent.parent / "cases" / "crontabs" / "15-kubernetes-cronjobs.yaml"
CONTAINERS = "[{name: c, image: example/job:1, command: [run], args: ['--fast', 3], env: [{name: A, value: b}]}]"


def read(text: str | bytes, *, tz: str = "UTC") -> ImportResult:
    return read_kubernetes(text.encode() if isinstance(text, str) else text, file="jobs.yaml", tz=tz)


def manifest(*, spec: str = "", job: str = "", metadata: str = "{name: a}", containers: str = CONTAINERS) -> str:
    schedule = "" if "schedule:" in spec else '  schedule: "0 2 * * *"\n'
    return (
        f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {metadata}\nspec:\n{schedule}{spec}"
        f"  jobTemplate: {{spec: {{{job}template: {{spec: {{containers: {containers}}}}}}}}}\n"
    )


def refusals(result: ImportResult) -> list[tuple[int, str]]:
    return [(refusal.line, refusal.reason) for refusal in result.refused]


def test_15_zone_overlap_deadline_and_pause_are_kept() -> None:
    result = read_kubernetes(CASE.read_bytes(), file=str(CASE))
    backup, sync, feed = result.jobs
    assert [entry.line for entry in result.imported] == [3, 14, 22]
    assert [entry.paused for entry in result.imported] == [False] * 3
    assert [job.job_id for job in result.jobs] == ["nightly-backup", "data-sync", "feed-producer"]
    assert backup.schedule == Cron(expression="0 2 * * *", tz="America/New_York")
    assert backup.schedule.next_slot(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, 7, tzinfo=UTC)
    assert [job.overlap for job in result.jobs] == ["skip", "skip", "allow"]
    assert [job.start_deadline for job in result.jobs] == [timedelta(seconds=200), None, timedelta(seconds=200)]
    assert (backup.max_attempts, backup.timeout) == (3, timedelta(hours=1))
    assert (sync.max_attempts, feed.payload["image"]) == (7, "example/job:1")
    assert feed.schedule == Cron(expression="45 0 * * *")
    assert result.refused == ()
    zone = [warning for warning in result.warnings if "timeZone" in warning.text]
    assert [warning.line for warning in zone] == [18]
    handlers = [warning.line for warning in result.warnings if "register the handler" in warning.text]
    assert handlers == [3, 14, 22]


def test_a_second_import_gives_the_same_jobs() -> None:
    data = CASE.read_bytes()
    assert read(data) == read(data)
    assert read(b"# a comment\n" + data).jobs == read(data).jobs


def test_the_container_is_the_payload() -> None:
    (job,) = read(manifest(metadata="{name: a, namespace: prod}")).jobs
    assert (job.job_id, job.handler, job.labels) == ("prod/a", "a", {"imported-from": "kubernetes"})
    assert job.payload == {
        "image": "example/job:1",
        "command": ["run"],
        "args": ["--fast", 3],
        "env": {"A": "b"},
    }


def test_a_suspended_cron_job_is_paused() -> None:
    result = read(manifest(spec="  suspend: true\n"))
    assert result.imported[0].paused
    assert result.to_json()["jobs"][0]["paused"] is True


@pytest.mark.parametrize(("policy", "overlap"), [("Allow", "allow"), ("Forbid", "skip"), ("Replace", "replace")])
def test_a_concurrency_policy_is_an_overlap_policy(policy: str, overlap: str) -> None:
    result = read_kubernetes(manifest(spec=f"  concurrencyPolicy: {policy}\n").encode(), file="cron.yaml")
    assert [job.overlap for job in result.jobs] == [overlap]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (manifest(spec="  concurrencyPolicy: Sometimes\n"), 6, "no policy"),
        (manifest(spec='  schedule: "61 2 * * *"\n'), 5, "spec.schedule"),
        (manifest(spec="  schedule: 5\n"), 5, "must be text"),
        (manifest(spec="  timeZone: Mars/Phobos\n"), 6, "spec.timeZone"),
        (manifest(spec="  suspend: 'true'\n"), 6, "true or false"),
        (manifest(spec="  startingDeadlineSeconds: 1.5\n"), 6, "whole number"),
        (manifest(metadata="{}"), 3, "metadata.name"),
        (manifest(metadata="[]"), 3, "metadata.name"),
        (manifest(containers="[]"), 6, "containers"),
        (manifest(job="backoffLimit: 5000, "), 6, "backoffLimit: must be a whole number from 0 to 999"),
        (manifest(job="activeDeadlineSeconds: 999999, "), 6, "activeDeadlineSeconds: must be from"),
        (manifest(spec="  suspend: true\n  suspend: false\n"), 7, "stands twice"),
        ("just text\n", 1, "no Kubernetes object"),
        ("a: b\n", 1, "kind"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    result = read(manifest(metadata="{name: before}") + "---\n" + text + "---\n" + manifest(metadata="{name: after}"))
    assert [job.job_id for job in result.jobs] == ["before", "after"]
    ((found, why),) = refusals(result)
    assert found == line + 7
    assert reason in why


def test_a_name_that_is_taken_is_refused() -> None:
    assert "taken by line 1" in refusals(read(manifest() + "---\n" + manifest()))[0][1]


def test_other_objects_are_passed_over_with_a_warning() -> None:
    result = read("kind: ConfigMap\n---\n" + manifest())
    assert len(result.jobs) == 1
    assert "ConfigMap" in result.warnings[0].text


def test_a_list_is_read_item_by_item() -> None:
    items = "".join(
        f"- kind: CronJob\n  metadata: {{name: {name}}}\n  spec: {{schedule: '{schedule}', jobTemplate: "
        f"{{spec: {{template: {{spec: {{containers: {CONTAINERS}}}}}}}}}}}\n"
        for name, schedule in (("a", "@hourly"), ("b", "nonsense"), ("c", "CRON_TZ=Asia/Tokyo 0 0 ? * ?"))
    )
    result = read("apiVersion: v1\nkind: List\nitems:\n" + items)
    assert [job.schedule for job in result.jobs] == [
        Cron(expression="@hourly"),
        Cron(expression="0 0 * * *", tz="Asia/Tokyo"),
    ]
    assert [line for line, _ in refusals(result)] == [9]


def test_every_is_an_interval() -> None:
    (job,) = read(manifest(spec='  schedule: "@every 90m"\n')).jobs
    assert job.schedule == Interval(every=timedelta(minutes=90))


def test_a_variable_from_a_secret_is_left_out_with_a_warning() -> None:
    source = (
        "[{image: i, env: [{name: A, value: b}, {name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]}, {image: j}]"
    )
    result = read(manifest(containers=source))
    assert result.jobs[0].payload["env"] == {"A": "b"}
    texts = " ".join(warning.text for warning in result.warnings)
    assert "'S' comes from" in texts
    assert "only the first" in texts


def test_a_byte_order_mark_is_yaml_and_other_bytes_are_not() -> None:
    assert len(read(b"\xef\xbb\xbf" + manifest().encode()).jobs) == 1
    assert refusals(read(b"kind: CronJob\nname: \xff\n")) == [(2, "the file is not UTF-8")]


def bomb(levels: int = 30) -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (bomb(), "alias *a0"),
        ("a: &a [*a]\n", "alias *a"),
        ("a: &a {b: c}\nd: {<<: *a}\n", "alias *a"),
        ("a: !!python/object/apply:os.system ['true']\n", "python/object"),
        ("a: !!python/name:os.system ''\n", "python/name"),
        ("a: !mine b\n", "tag '!mine'"),
        ("a: !!timestamp 2001-01-01\n", "timestamp"),
        ("a: " + "[" * (DEPTH_LIMIT + 1) + "]" * (DEPTH_LIMIT + 1), "nested more than"),
        ("[" * 300_000, "nest"),
        ("{a: " * 200_000, "nested more than"),
        ("[" + "a," * 60_000 + "]", "values"),
        ("a: 1" + ":1" * 400_000, "no int"),
        ("a: " + "9" * 400_000, "no int"),
        ("{[a]: b}", "key that is no text"),
        ("a: [\n", "not YAML"),
        ("a: *\n", "not YAML"),
        ("schedule: * * * * *\n", "not YAML"),
        ("a: \x07\n", "not YAML"),
    ],
)
def test_a_hostile_document_is_refused_in_flat_memory(
    hostile: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_documents, "VALUE_LIMIT", 50_000)
    text = "---\n" + hostile + "\n---\n" + manifest()
    tracemalloc.start()
    try:
        result = read(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason in refusals(result)[0][1]
    assert [job.job_id for job in result.jobs] == ["a"]
    assert peak < 64 * 1024 * 1024


def test_too_many_documents_and_too_many_bytes_are_refused() -> None:
    assert "documents" in refusals(read("---\na: b\n" * (DOCUMENT_LIMIT + 1)))[0][1]
    assert "bytes" in refusals(read(b"a" * (SIZE_LIMIT + 1)))[0][1]


PIECES = [
    "kind: CronJob\n",
    "---\n",
    "...\n",
    "- ",
    "? ",
    "{",
    "]",
    "&a ",
    "*a",
    "!!int ",
    ">\n",
    " x",
    "%TAG ! x\n",
    "'",
]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.lists(st.sampled_from(PIECES)).map("".join).map(str.encode))
def test_no_bytes_raise_and_a_good_document_survives(data: bytes) -> None:
    refused = read(data).refused
    if any("Helm" in refusal.reason for refusal in refused):
        return  # the file is refused as a whole
    text = data.decode("utf-8", errors="ignore")
    assert "good" in [job.job_id for job in read(text + "\n---\n" + manifest(metadata="{name: good}")).jobs]


def cron_job(name: str = "backup", *, schedule: str = "0 2 * * *", image: str = "a", more: str = "") -> str:
    return (
        f'{{apiVersion: batch/v1, kind: CronJob, metadata: {{{name}}}, spec: {{schedule: "{schedule}", {more}'
        f" jobTemplate: {{spec: {{template: {{spec: {{containers: [{{name: a, image: {image}}}]}}}}}}}}}}}}"
    )


def test_a_suspended_one_whose_date_never_comes_is_a_job_on_demand() -> None:
    result = read(cron_job("name: by-hand", schedule="0 0 31 2 *", more="suspend: true,").encode())
    (entry,) = result.imported
    assert (entry.job.schedule, entry.paused) == (None, False)
    assert any("a job on demand" in warning.text for warning in result.warnings)
    assert read(cron_job("name: by-hand", schedule="0 0 31 2 *").encode()).jobs == []


@pytest.mark.parametrize(
    "text",
    ["metadata:\n  name: {{ .Release.Name }}-backup\n", "a: 1\n{{- if .Values.backup }}\n", '{{ include "x" . }}'],
)
def test_a_helm_template_is_refused_by_name(text: str) -> None:
    (refusal,) = read(f"kind: CronJob\napiVersion: batch/v1\n{text}".encode()).refused
    assert "is a Helm template" in refusal.reason
    assert "`helm template`" in refusal.reason


def test_braces_of_a_command_are_no_helm_template() -> None:
    text = cron_job("name: names", more="").replace(
        "name: a, image: a", """name: a, image: a, args: ["ps --format '{{.Names}}'"]"""
    )
    assert [job.job_id for job in read(text.encode()).jobs] == ["names"]


def test_one_handler_with_two_images_is_said() -> None:
    text = "\n---\n".join(cron_job(f"name: backup, namespace: {place}", image=place) for place in ("one", "two"))
    result = read(text.encode())
    assert len(result.jobs) == 2
    assert any("with another image" in warning.text for warning in result.warnings)


def test_a_list_of_two_megabytes_is_read() -> None:
    items = [cron_job(f"name: job-{n}, annotations: {{note: {'x' * 1700}}}") for n in range(1100)]
    data = ("{kind: List, apiVersion: v1, items: [" + ",\n".join(items) + "]}").encode()
    assert len(data) > 2_000_000
    assert len(read(data).jobs) == 1100
