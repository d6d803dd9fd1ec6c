"""Where workers find RPC endpoints: the environment, what `trace up` was told, the file; in this order."""

import pytest

from tests.support.postgres import scratch_directory
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home
from tracelake.spark.evm.errors import NoEndpointError
from tracelake.stack import rpc_addresses


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("DEFAULT", "ARCHIVE", "ACME__DEFAULT"):
        monkeypatch.delenv(f"TRACE_RPC_{name}", raising=False)
    home = Home(scratch_directory() / "home")
    home.make()
    return home


OWN = "default"


def labels(home: Home, name: str = "default", org: str = OWN) -> list[str]:
    return [endpoint.label for endpoint in rpc_addresses.resolver(home, OWN)(org, name)]


def test_the_file_names_one_or_several(home: Home) -> None:
    home.rpc_file.write_text('default = ["https://one.example/KEY", "http://two.example:8545"]\nArchive = "http://a"\n')
    assert labels(home) == ["https://one.example:443", "http://two.example:8545"]
    assert labels(home, "archive") == ["http://a:80"]
    home.rpc_file.write_text('default = "http://three"\n')
    assert labels(home) == ["http://three:80"], "read anew each time"


def test_what_trace_up_was_told_comes_before_the_file_and_the_own_environment_before_both(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.rpc_file.write_text('default = "http://file"\nother = "http://other"\n')
    monkeypatch.setenv("TRACE_RPC_DEFAULT", "http://up")
    rpc_addresses.keep_environment(home, OWN)
    monkeypatch.delenv("TRACE_RPC_DEFAULT")
    assert labels(home) == ["http://up:80"]
    assert labels(home, "other") == ["http://other:80"]
    assert home.rpc_environment_file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("TRACE_RPC_DEFAULT", "http://own")
    assert labels(home) == ["http://own:80"]


def test_a_recorded_chain_that_was_asked_for_comes_first(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", "http://up")
    monkeypatch.setenv("TRACE_RPC_ARCHIVE", "http://archive")
    rpc_addresses.keep_environment(home, OWN, recorded="http://127.0.0.1:1")
    monkeypatch.delenv("TRACE_RPC_DEFAULT")
    monkeypatch.delenv("TRACE_RPC_ARCHIVE")
    assert labels(home) == ["http://127.0.0.1:1"]
    assert labels(home, "archive") == ["http://archive:80"]


def test_nothing_is_said_of_addresses(home: Home) -> None:
    with pytest.raises(NoEndpointError, match="TRACE_RPC_DEFAULT"):
        labels(home)
    home.rpc_file.write_text('default = "ftp://secret.example/KEY"\n')
    with pytest.raises(NoEndpointError) as told:
        labels(home)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "text", ["default = 1\n", "default = [1]\n", "not toml", "[acme]\nurl = 1\n", "[Acme]\na = 'x'\n"]
)
def test_a_file_that_cannot_be_used(home: Home, text: str) -> None:
    home.rpc_file.write_text(text)
    with pytest.raises(SettingsError, match=r"rpc\.toml"):
        labels(home)


def test_these_variables_are_no_settings() -> None:
    Settings.load({"home": "/tmp/x"}, environ={"TRACE_RPC_DEFAULT": "http://x"})


def test_an_endpoint_is_of_one_org(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.rpc_file.write_text(
        'default = "http://own"\nshared = "http://own-shared"\n'
        '[acme]\ndefault = "http://acme"\narchive = "http://archive"\n'
    )
    assert labels(home) == ["http://own:80"]
    assert labels(home, org="acme") == ["http://acme:80"]
    assert labels(home, "archive", org="acme") == ["http://archive:80"]
    for name, org in (("archive", OWN), ("shared", "acme"), ("default", "globex"), ("default", "")):
        with pytest.raises(NoEndpointError):
            labels(home, name, org)
    monkeypatch.setenv("TRACE_RPC_ACME__DEFAULT", "http://told")
    assert labels(home, org="acme") == ["http://told:80"]
    assert labels(home) == ["http://own:80"]
    rpc_addresses.keep_environment(home, OWN)
    monkeypatch.delenv("TRACE_RPC_ACME__DEFAULT")
    assert labels(home, org="acme") == ["http://told:80"], "as `trace up` hands it to its workers"


def test_nobody_learns_what_other_orgs_have(home: Home) -> None:
    home.rpc_file.write_text('[acme]\narchive = "http://archive.example/KEY"\n')
    with pytest.raises(NoEndpointError) as of_another:
        labels(home, "archive", org="globex")
    home.rpc_file.write_text("")
    with pytest.raises(NoEndpointError) as of_nobody:
        labels(home, "archive", org="globex")
    assert str(of_another.value) == str(of_nobody.value)
    assert "TRACE_RPC_GLOBEX__ARCHIVE" in str(of_nobody.value)
    assert "acme" not in str(of_another.value)


def test_the_recorded_chain_is_everybodys(home: Home) -> None:
    rpc_addresses.keep_environment(home, OWN, recorded="http://127.0.0.1:1")
    assert labels(home, org="acme") == labels(home) == ["http://127.0.0.1:1"]
