"""In what a chain may differ from Ethereum before its answers are refused. Rules are strict unless a job says so."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tracelake.catalogue.evm import ChainPreset

LogIndexRule: TypeAlias = Literal["strict", "renumber", "as_given"]


@dataclass(frozen=True, slots=True)
class ChainRules:
    log_index: LogIndexRule = "strict"
    """`strict`: logs are numbered from 0 on without a gap. `renumber`: whatever their numbers are, they get those of
    their places in the block. `as_given`: they keep their numbers, which may have gaps and repeat."""
    drop_phantoms: bool = False
    """Transactions of a block for which the node has no receipt are left out, instead of being an error."""
    null_fields: bool = False
    """Transactions of types that Ethereum does not have may lack value, input, gas and nonce."""

    @classmethod
    def of(cls, preset: ChainPreset) -> "ChainRules":
        return cls(
            preset.log_index,
            drop_phantoms=preset.phantom_transactions == "drop",
            null_fields=preset.missing_fields == "null",
        )


STRICT = ChainRules()
