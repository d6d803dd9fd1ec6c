"""Addresses and templates: one reading, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.catalogue.feeds.addresses import (
    PLACEHOLDERS,
    AddressError,
    HttpAddress,
    parse_address,
    parse_address_template,
    parse_template,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://api.example.com", HttpAddress("https", "api.example.com", 443, "/")),
        ("http://API.Example.com:8080/a/b?c=d", HttpAddress("http", "api.example.com", 8080, "/a/b?c=d")),
        ("https://1.1.1.1/?q=%20", HttpAddress("https", "1.1.1.1", 443, "/?q=%20")),
        ("https://[2606:4700:0::1111]:443/", HttpAddress("https", "2606:4700::1111", 443, "/")),
        ("https://xn--bcher-kva.example/x", HttpAddress("https", "xn--bcher-kva.example", 443, "/x")),
    ],
)
def test_addresses(text: str, address: HttpAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "api.example.com", "//api.example.com/", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/"),
        *("HTTP://a.example/", "http:/a.example", "http:///a", "http://", "http://:80/", "javascript:alert(1)"),
        *("http://user@a.example/", "http://user:pw@a.example/", "http://a.example@10.0.0.1/", "http://a.example#@b/"),
        *("http://a.example\\@b.example/", "http://a.example/\\b", "http://a .example/", "http://a.example/ b"),
        *("http://a.example/\r\nHost: b", "http://a.example/\t", "http://a.example/ü", "http://bücher.example/"),
        *("http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://1.2.3.4.5/"),
        *("http://127.0.0.01/", "http://0x7f.0.0.1/", "http://256.1.1.1/", "http://a.example.1/", "http://0/"),
        *("http://[::1", "http://[::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[1.1.1.1]/", "http://::1/"),
        *(
            "http://a.example./",
            "http://.a.example/",
            "http://a..example/",
            "http://-a.example/",
            "http://a_b-.example/",
        ),
        *("http://a.example:0/", "http://a.example:99999/", "http://a.example:080/", "http://a.example:/x"),
        *("http://a.example/../b", "http://a.example/%2e%2E/b", "http://a.example/./b", "http://a.example/a/.."),
        *("http://a.example/#x", "http://a.example/<b>", "http://a.example/?a={b}", "http://a.example/%zz"),
        "http://" + "a" * 300 + ".example/",
        "http://a.example/" + "a" * 5000,
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError) as error:
        parse_address(text)
    assert "pw" not in str(error.value)


@given(
    st.text(), st.sampled_from(["/{partition_key}", "/a/{partition_key}/b", "/?x={partition_key}", "/?{partition_key}"])
)
def test_a_value_stays_in_its_place(value: str, place: str) -> None:
    """Whatever a unit is called, the host, the path and the parameters are those of the template."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        return
    template = parse_address_template("https://api.example.com" + place)
    try:
        address = parse_address(template.render({"partition_key": value}))
    except AddressError:
        assert value in (".", "..") or len(encoded) > 1000
        return
    expected = parse_address(template.render({"partition_key": "v"}))
    assert address.origin == expected.origin
    for mark in "/?&=#":
        assert address.target.count(mark) == expected.target.count(mark)


@pytest.mark.parametrize(
    "text", ["https://{start}/", "https://a.{start}.example/x", "https://a.example:{start}/", "{start}"]
)
def test_no_placeholder_in_a_host(text: str) -> None:
    with pytest.raises(AddressError, match="not in its host"):
        parse_address_template(text)


@pytest.mark.parametrize("text", ["a{", "}", "{{start}}", "{}", "{ start}", "{Start}", "{start!r}", "{start.x}", "{0}"])
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(AddressError):
        parse_template(text)


def test_every_placeholder_is_known() -> None:
    text = "".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
    assert parse_template(text).names == PLACEHOLDERS
