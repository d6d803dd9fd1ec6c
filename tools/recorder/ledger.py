"""What is sent: accounts with their nonces, deployed contracts, and the kinds of transaction that wallets make."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tools.recorder.abi import Value, encode
from tools.recorder.node import Node, Signer

GAS = 250_000
GWEI = 10**9


@dataclass(slots=True)
class Fees:
    """What the block to come asks for."""

    base: int = GWEI


@dataclass(slots=True)
class Ledger:
    node: Node
    signer: Signer
    random: Random
    chain_id: int
    contracts: dict[str, Any]
    accounts: list[str]
    fees: Fees = field(default_factory=Fees)
    nonces: dict[int, int] = field(default_factory=dict)

    def call(self, sender: int, to: str, contract: str, function: str, *values: Value, gas: int = GAS) -> str:
        """Call a contract's function. `function` is named with its types, as the selector is made from them."""
        selector = self.contracts[contract]["selectors"][function]
        return self.send(sender, to, data="0x" + selector + encode(*values).hex(), gas=gas)

    def deploy(self, sender: int, contract: str, *values: Value, value: int = 0, gas: int = 3_000_000) -> str:
        data = "0x" + self.contracts[contract]["code"] + encode(*values).hex()
        return self.send(sender, None, data=data, value=value, gas=gas)

    def send(self, sender: int, to: str | None, *, value: int = 0, data: str = "0x", gas: int = GAS) -> str:
        """In the form that the account's wallet uses: old ones know one price, few list what they touch."""
        request = {
            "from": self.accounts[sender],
            "nonce": hex(self._next_nonce(sender)),
            "value": hex(value),
            "input": data,
            "gas": hex(gas),
        }
        if to is not None:
            request["to"] = to
        tip = self.random.choice((1, 1, 2, 3)) * GWEI // 2 + self.random.randrange(1000)
        kind = self.random.random()
        if sender % 3 == 1 or kind < 0.08:
            return self._sent({**request, "gasPrice": hex(self.fees.base + tip)})
        if to is not None and kind < 0.15:
            touched = [{"address": to, "storageKeys": ["0x" + f"{slot:064x}" for slot in range(sender % 3)]}]
            return self._sent({**request, "gasPrice": hex(self.fees.base + tip), "accessList": touched})
        highest = self.fees.base * self.random.choice((1, 2, 2, 3)) + tip
        return self._sent({**request, "maxFeePerGas": hex(highest), "maxPriorityFeePerGas": hex(tip)})

    def send_blobs(self, sender: int, to: str, blobs: list[bytes]) -> str:
        rare = {"type": 3, "to": to, "maxFeePerBlobGas": str(100 * GWEI), "gasLimit": 60_000}
        return self._signed(sender, {**rare, "blobs": ["0x" + blob.hex() for blob in blobs]})

    def delegate(self, sponsor: int, account: int, code: str) -> str:
        """The account lets `code` act in its name; the sponsor pays for saying so."""
        signed = {"account": account, "address": code, "nonce": self._next_nonce(account), "chainId": self.chain_id}
        return self._signed(sponsor, {"type": 4, "to": self.accounts[account], "gasLimit": 100_000, "delegate": signed})

    def _signed(self, sender: int, rare: dict[str, Any]) -> str:
        fees = {"maxFeePerGas": str(2 * self.fees.base + GWEI), "maxPriorityFeePerGas": str(GWEI)}
        nonce = self._next_nonce(sender)
        raw = self.signer.sign({"account": sender, "nonce": nonce, "chainId": self.chain_id, **fees, **rare})
        sent: str = self.node.call("eth_sendRawTransaction", raw)
        return sent

    def _sent(self, request: dict[str, Any]) -> str:
        sent: str = self.node.call("eth_sendTransaction", request)
        return sent

    def _next_nonce(self, account: int) -> int:
        nonce = self.nonces.get(account, 0)
        self.nonces[account] = nonce + 1
        return nonce
