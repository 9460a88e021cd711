"""URLs of HTTP targets: what each may be, and which addresses are never called. B103."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.addresses import Allowed, Ban, ban, is_public
from rota.domain.http_target import (
    RETRY_AFTER_LIMIT,
    URL_LIMIT,
    check_target,
    handler_key,
    header_text,
    is_target,
    parse_target,
    retry_after,
)
from rota.domain.job import Job
from rota.errors import InvalidInput

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

LOOPBACK = ["127.0.0.1", "127.1", "0x7f.0.0.1", "0x7f000001", "0X7F.1", "0177.0.0.1", "017700000001", "2130706433",
            "127.0.0.1.", "127。0。0。1", "１２７．０．０．１", "①②⑦.0.0.1"]  # fmt: skip


def refused(url: str, allowed: str = "") -> InvalidInput:
    with pytest.raises(InvalidInput) as refusal:
        check_target(url, Allowed.parse(allowed))
    assert refusal.value.field == "handler"
    return refusal.value


@pytest.mark.parametrize("host", LOOPBACK)
def test_odd_forms_of_an_address_are_that_address(host: str) -> None:
    """B103: what a browser or a libc takes for 127.0.0.1 is 127.0.0.1 here, and is called in that form."""
    target = parse_target(f"https://{host}:8443/hook")
    assert target.host == ip_address("127.0.0.1")
    assert target.url == "https://127.0.0.1:8443/hook"
    assert "a loopback address" in refused(f"http://{host}/").reason
    assert check_target(f"http://{host}/", Allowed.parse("127.0.0.1")).host == target.host


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("169.254.169.254", Ban.METADATA), ("100.100.100.200", Ban.METADATA), ("fd00:ec2::254", Ban.METADATA),
        ("::ffff:169.254.169.254", Ban.METADATA), ("64:ff9b::a9fe:a9fe", Ban.METADATA), ("168.63.129.16", Ban.METADATA),
        ("192.0.0.192", Ban.METADATA), ("fd20:ce::254", Ban.METADATA), ("192.0.0.9", Ban.RESERVED),
        ("10.0.0.1", Ban.PRIVATE), ("172.16.0.1", Ban.PRIVATE), ("192.168.1.1", Ban.PRIVATE), ("fc00::1", Ban.PRIVATE),
        ("fd12::1", Ban.PRIVATE), ("198.18.0.1", Ban.PRIVATE), ("192.0.2.1", Ban.PRIVATE), ("2001:db8::1", Ban.PRIVATE),
        ("0.1.2.3", Ban.PRIVATE), ("::ffff:10.0.0.1", Ban.PRIVATE), ("64:ff9b::10.0.0.1", Ban.PRIVATE),
        ("2002:a00:1::", Ban.PRIVATE), ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Ban.PRIVATE),
        ("127.0.0.1", Ban.LOOPBACK), ("127.255.255.254", Ban.LOOPBACK), ("::1", Ban.LOOPBACK),
        ("::ffff:7f00:1", Ban.LOOPBACK), ("0.0.0.0", Ban.UNSPECIFIED), ("::", Ban.UNSPECIFIED),
        ("169.254.1.1", Ban.LINK_LOCAL), ("fe80::1", Ban.LINK_LOCAL), ("224.0.0.1", Ban.MULTICAST),
        ("ff02::1", Ban.MULTICAST), ("ff0e::1", Ban.MULTICAST), ("240.0.0.1", Ban.RESERVED),
        ("255.255.255.255", Ban.RESERVED), ("192.88.99.1", Ban.RESERVED), ("3fff::1", Ban.RESERVED),
        ("64:ff9b:1::1", Ban.RESERVED), ("::10.0.0.1", Ban.RESERVED), ("::ffff:0:10.0.0.1", Ban.RESERVED),
        ("5f00::1", Ban.RESERVED), ("fec0::1", Ban.RESERVED), ("100.64.0.1", Ban.SHARED),
        ("100.127.255.255", Ban.SHARED),
    ],
)  # fmt: skip
def test_an_address_inside_is_banned(address: str, kind: Ban) -> None:
    """B103: also where IPv6 carries it."""
    assert ban(ip_address(address)) is kind
    assert not is_public(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    refused(f"https://{host}/")
    assert check_target(f"https://{host}:1/", Allowed.parse(address)).port == 1


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_a_public_address_may_be_called(address: str) -> None:
    assert is_public(ip_address(address))
    check_target(f"https://[{address}]/" if ":" in address else f"https://{address}/")


@given(st.ip_addresses(v=4))
def test_what_carries_an_inner_address_is_as_banned_as_that(address: object) -> None:
    kind = ban(ip_address(f"{address}"))
    whole = int(ip_address(f"{address}"))
    for prefix, shift in ((0xFFFF << 32, 0), (0x64_FF9B << 96, 0), (0x2002 << 112, 80)):
        assert ban(ip_address((prefix | whole << shift).to_bytes(16))) is kind


@pytest.mark.parametrize(
    "url",
    [
        "http://", "https:///path", "http://:80/", "http:example.com", "http:/example.com", "HTTP://example.com/",
        "Https://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/",
        "http://user@example.com/", "http://user:s3cret@example.com/", "http://@example.com/",
        "http://example.com@127.0.0.1/", "http://example.com/#here", "http://example.com#@127.0.0.1/",
        "http://example.com:0/", "http://example.com:65536/", "http://example.com:/", "http://example.com:8o/",
        "http://example.com:-1/", "http://example.com:٨٠/", "http://example.com:80:80/", "http://exa mple.com/",
        "http://example.com/a b", "http://example.com/a\tb", "http://example.com/a\nb", "http://example.com/\x00",
        "http://example.com/\x7f", "http://example.com/\u200b", "http://example.com/\ud800", "http://example.com\\@a.b/",
        "http://example.com/a\\b", "http://example.com/é", "http://example.com/<x>", "http://ex%61mple.com/",
        "http://%31%32%37.0.0.1/", "http://exämple.com/", "http://-example.com/", "http://example-.com/",
        "http://example..com/", "http://.example.com/", "http://a,b/", "http://a!b/", "http://08.0.0.1/",
        "http://1.2.3.4.5/", "http://256.0.0.1/", "http://127.0.0.256/", "http://1.2.3.0x/a b", "http://4294967296/",
        "http://a.b.1/", "http://[::1/", "http://::1/", "http://[127.0.0.1]/", "http://[example.com]/", "http://[::1]a/",
        "http://[::1]a:80/", "http://a[::1]/", "http://[fe80::1%25eth0]/", "http://[fe80::1%1]/", "http://[]/",
        "http://[::g]/", f"http://{'a' * 64}.com/", f"http://{'a.' * 130}com/", "http://example.com/" + "x" * URL_LIMIT,
    ],
)  # fmt: skip
def test_a_malformed_url_is_refused_by_the_job_itself(url: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Job(job_id="hook", handler=url)
    assert refusal.value.field == "handler"
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("https://example.com", "https://example.com/"),
        ("https://EXAMPLE.com./Path?q=A", "https://example.com/Path?q=A"),
        ("https://example.com?q=1/2", "https://example.com/?q=1/2"),
        ("http://under_score.example:8080//a/../b;c=%2F", "http://under_score.example:8080//a/../b;c=%2F"),
        ("https://xn--exmple-cua.com/@me:x", "https://xn--exmple-cua.com/@me:x"),
        ("https://[2606:4700:0:0::1111]:443/", "https://[2606:4700::1111]:443/"),
        ("https://ｅｘａｍｐｌｅ。com/", "https://example.com/"),
    ],
)
def test_a_url_is_called_in_one_form(url: str, called: str) -> None:
    assert check_target(url).url == called
    assert Job(job_id="hook", handler=url).handler == url
    assert parse_target(called) == parse_target(url)


def test_the_longest_url_is_longer_than_a_name() -> None:
    url = "https://example.com/".ljust(URL_LIMIT, "x")
    assert Job(job_id="hook", handler=url).handler == url


@pytest.mark.parametrize("name", ["http", "https:", "http:"])
def test_the_key_of_all_targets_is_no_handler(name: str) -> None:
    with pytest.raises(InvalidInput, match="handler"):
        Job(job_id="hook", handler=name)


@pytest.mark.parametrize("name", ["https", "shell", "http-sync", "httpx.get"])
def test_other_names_stay_names(name: str) -> None:
    assert Job(job_id="hook", handler=name).handler == name
    assert handler_key(name) == name
    assert not is_target(name)


def test_every_target_has_one_key() -> None:
    assert {handler_key(url) for url in ("http://a/", "https://b.example/")} == {"http"}


def test_localhost_is_refused_by_its_name() -> None:
    for host in ("localhost", "LOCALHOST.", "a.localhost"):
        assert "leads to a loopback address" in refused(f"http://{host}:8000/").reason
    assert check_target("http://localhost:8000/", Allowed.parse("localhost")).host == "localhost"


def test_a_name_lifts_the_ban_on_inner_addresses_but_never_on_metadata() -> None:
    allowed = Allowed.parse(" billing.internal,Reports.Internal, 10.1.0.0/16 ,fd00::/8,")
    assert allowed.names == {"billing.internal", "reports.internal"}
    assert allowed.permits(ip_address("10.1.2.3"))
    assert allowed.permits(ip_address("::ffff:10.1.2.3"))
    assert not allowed.permits(ip_address("10.2.2.3"))
    assert allowed.permits(ip_address("10.2.2.3"), by_name=True)
    assert allowed.permits(ip_address("127.0.0.1"), by_name=True)
    assert not allowed.permits(ip_address("169.254.169.254"), by_name=True)
    assert allowed.permits(ip_address("fd00:ec2::254"))


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "10.0.0.0/33", "*.internal", "http://a", "a b", "127.1", "a:80"])
def test_an_entry_that_allows_nothing_is_refused(entry: str) -> None:
    with pytest.raises(InvalidInput, match="http_allow"):
        Allowed.parse(f"a.internal,{entry}")


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", 120), (" 0 ", 0), ("99999999999999999999", RETRY_AFTER_LIMIT.total_seconds()),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30), ("Sun Mar  1 12:00:30 2026", 30), ("Sun, 01 Mar 2026 11:00:00 GMT", 0),
        ("Sun, 01 Mar 2036 12:00:00 GMT", RETRY_AFTER_LIMIT.total_seconds()), ("-5", None), ("1.5", None),
        ("soon", None), ("", None), (None, None), ("²", None), ("Sun, 99 Mar 2026 12:00:30 GMT", None),
    ],
)  # fmt: skip
def test_a_wait_is_read_as_seconds_or_as_a_date(value: str | None, wait: float | None) -> None:
    assert retry_after(value, now=NOW) == (None if wait is None else timedelta(seconds=wait))


@given(st.text())
def test_any_text_goes_into_a_header_and_comes_back(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return  # no id is of this kind
    text = header_text(value)
    assert all("!" <= character <= "~" for character in text)
    assert unquote(text) == value
    assert header_text("acme/nightly-billing") == "acme/nightly-billing"
