"""What every SecretProvider promises. An adapter's test gives `make`, which answers a provider with these secrets."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tracelake.errors import SecretMissingError
from tracelake.ports import SecretProvider

Kept = Mapping[str, Mapping[str, str]]
KEPT = {"acme": {"KEY": "acme's key", "A.b-c_1": 'line\nline\t"quoted" \\ \x7f ü'}, "other": {"KEY": "other's key"}}


class SecretProviderSuite:
    @pytest.fixture
    def make(self) -> Callable[[Kept], SecretProvider]:
        raise NotImplementedError

    def test_values_of_names(self, make: Callable[[Kept], SecretProvider]) -> None:
        provider = make(KEPT)
        assert asyncio.run(provider.fetch("acme", ["KEY", "A.b-c_1"])) == KEPT["acme"]
        assert asyncio.run(provider.fetch("acme", ["KEY"])) == {"KEY": "acme's key"}, "what was asked for, no more"

    def test_an_org_has_its_own_alone(self, make: Callable[[Kept], SecretProvider]) -> None:
        provider = make(KEPT)
        assert asyncio.run(provider.fetch("other", ["KEY"])) == {"KEY": "other's key"}
        for org, name in (("other", "A.b-c_1"), ("nobody", "KEY"), ("acme", "key"), ("", "KEY"), ("acme.KEY", "KEY")):
            with pytest.raises(SecretMissingError):
                asyncio.run(provider.fetch(org, [name]))

    def test_all_or_nothing(self, make: Callable[[Kept], SecretProvider]) -> None:
        with pytest.raises(SecretMissingError) as missing:
            asyncio.run(make(KEPT).fetch("acme", ["KEY", "ONE", "TWO"]))
        assert "ONE" in str(missing.value)
        assert "TWO" in str(missing.value)
        assert "acme's key" not in str(missing.value)
        assert not missing.value.retryable

    def test_an_empty_one_is_none(self, make: Callable[[Kept], SecretProvider]) -> None:
        with pytest.raises(SecretMissingError):
            asyncio.run(make({"acme": {"KEY": ""}}).fetch("acme", ["KEY"]))
