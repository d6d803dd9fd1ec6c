"""Who lives on the chain and what they do: an exchange, whales, bots, collectors, traders, and people with wallets."""

from collections.abc import Callable, Iterator
from random import Random

from tools.recorder.ledger import Ledger

TREASURY = 0
EXCHANGE = (1, 2)
WHALES = (3, 4, 5)
BOTS = (6, 7, 8, 9)
COLLECTORS = tuple(range(10, 16))
TRADERS = tuple(range(16, 20))
PEOPLE = tuple(range(20, 70))
SPONSOR, DELEGATING = 70, 71
ACCOUNTS = 72

DOLLAR, GRAIN = 10**6, 10**18
ALL = 2**256 - 1


class Town:
    def __init__(self, ledger: Ledger, random: Random) -> None:
        self._ledger = ledger
        self._random = random
        self._address = ledger.accounts
        self._at: dict[str, str] = {}
        self._strangers = [f"0x{random.getrandbits(160):040x}" for _ in range(150)]
        self._relics: dict[int, int] = {}
        self._wares: dict[tuple[int, int], int] = {}
        self._vaults: list[tuple[int, str]] = []
        self._whole_holder: int | None = WHALES[0]
        self._flow: tuple[tuple[Callable[[], object], float], ...] = (
            (self._pay_dollars, 40),
            (self._pay_ether, 11),
            (self._swap, 17),
            (self._pay_grain, 8),
            (self._make_or_burn_grain, 4),
            (self._approve, 3),
            (self._boundless, 2),
            (self._relic, 5),
            (self._ware, 6),
            (self._oddity, 1.2),
            (self._vault, 1),
            (self._fail, 1.8),
        )

    def act(self) -> None:
        actions, weights = zip(*self._flow, strict=True)
        self._random.choices(actions, weights)[0]()

    # How it all begins, a few transactions a block.

    def openings(self, created: Callable[[str], str]) -> Iterator[int]:
        """Deploy, fund and approve; yields (the number of transactions sent) whenever a block should be made."""
        for name, contract, *values in (
            ("usd", "Token", b"Harbor Dollar", b"HUSD", 6, 10**9 * DOLLAR),
            ("grain", "Token", b"Grain", b"GRN", 18, 10**8 * GRAIN),
            ("boundless", "Token", b"Boundless", b"BND", 24, ALL),
            ("relics", "Relics"),
            ("wares", "Wares"),
            ("airdrop", "Airdrop"),
            ("odd", "Oddities"),
            ("batcher", "Batcher"),
        ):
            sent = self._ledger.deploy(TREASURY, contract, *_constructor(values))
            yield 1
            self._at[name] = created(sent)
        sent = self._ledger.deploy(TREASURY, "Pool", self._at["usd"], self._at["grain"])
        yield 1
        self._at["pool"] = created(sent)
        for token in ("usd", "grain"):
            self._token(TREASURY, token, "approve(address,uint256)", self._at["pool"], ALL)
            self._token(TREASURY, token, "approve(address,uint256)", self._at["airdrop"], ALL)
        amounts = (4_000_000 * DOLLAR, 2_000_000 * GRAIN)
        self._ledger.call(TREASURY, self._at["pool"], "Pool", "supply(uint256,uint256)", *amounts)
        self._token(TREASURY, "boundless", "transfer(address,uint256)", self._address[WHALES[0]], ALL)
        yield 6
        for account in range(1, ACCOUNTS):
            rich = 1000 if account in WHALES or account in EXCHANGE else 30 if account in BOTS else 1
            dollars = self._random.randrange(2_000, 20_000) * rich * DOLLAR
            self._token(TREASURY, "usd", "transfer(address,uint256)", self._address[account], dollars)
            grain = self._random.randrange(500, 8_000) * rich * GRAIN
            self._token(TREASURY, "grain", "mint(address,uint256)", self._address[account], grain)
            for token in ("usd", "grain"):
                self._token(account, token, "approve(address,uint256)", self._at["pool"], ALL)
            if account % 6 == 0:
                yield 24
        yield 1

    # What happens once, or now and then, at a given place in the chain.

    def airdrop(self, receivers: int) -> None:
        chosen = self._random.sample([*self._address[1:], *self._strangers], receivers)
        each = self._random.randrange(5, 50) * GRAIN
        function = "drop(address,address[],uint256)"
        values = (self._at["grain"], chosen, each)
        self._ledger.call(TREASURY, self._at["airdrop"], "Airdrop", function, *values, gas=12_000_000)

    def post_blobs(self) -> None:
        blobs = [b"\0" + self._random.randbytes(30) for _ in range(self._random.randrange(1, 3))]
        self._ledger.send_blobs(EXCHANGE[1], self._strangers[0], blobs)

    def delegate(self) -> None:
        self._ledger.delegate(SPONSOR, DELEGATING, self._at["batcher"])

    def batch_as_delegate(self) -> None:
        """One transaction of a delegating account: several payments, as contract code in its own name."""
        selector = bytes.fromhex(self._ledger.contracts["Token"]["selectors"]["transfer(address,uint256)"])
        targets, inputs = [], []
        for _ in range(self._random.randrange(2, 6)):
            receiver = bytes.fromhex(self._person_address()[2:]).rjust(32, b"\0")
            inputs.append(selector + receiver + self._dollars().to_bytes(32, "big"))
            targets.append(self._at["usd"])
        own = self._address[DELEGATING]
        self._ledger.call(DELEGATING, own, "Batcher", "run(address[],bytes[])", targets, inputs, gas=600_000)

    # The daily flow.

    def _pay_dollars(self) -> None:
        draw, transfer = self._random.random(), "transfer(address,uint256)"
        if draw < 0.30:  # the exchange pays out, several customers at a time
            hot = self._random.choice(EXCHANGE)
            for _ in range(self._random.choice((1, 1, 1, 2, 3))):
                self._token(hot, "usd", transfer, self._person_address(), self._dollars() * 3)
        elif draw < 0.52:
            self._token(self._person(), "usd", transfer, self._address[self._random.choice(EXCHANGE)], self._dollars())
        elif draw < 0.56:
            whale = self._random.choice(WHALES)
            amount = self._random.randrange(50_000, 400_000) * DOLLAR
            self._token(whale, "usd", transfer, self._address[self._random.choice((*EXCHANGE, *WHALES))], amount)
        elif draw < 0.60:
            self._token(
                self._random.choice(EXCHANGE), "usd", transfer, self._random.choice(self._strangers), self._dollars()
            )
        else:
            self._token(self._person(), "usd", transfer, self._person_address(), self._dollars())

    def _pay_ether(self) -> None:
        amount = int(10 ** self._random.uniform(14, 18.5)) // 10**12 * 10**12
        receiver = self._random.choice(self._strangers) if self._random.random() < 0.2 else self._person_address()
        self._ledger.send(self._random.choice((*PEOPLE, *EXCHANGE)), receiver, value=amount, gas=40_000)

    def _swap(self) -> None:
        draw = self._random.random()
        if draw < 0.45:
            bot = self._random.choice(BOTS)
            buys = self._random.random() < 0.5
            self._trade(bot, buys, self._random.randrange(500, 9_000), 10**6 if self._random.random() < 0.12 else 0)
            if self._random.random() < 0.5:  # the other half of the round trip, in the same block
                self._trade(bot, not buys, self._random.randrange(500, 9_000), 0)
        elif draw < 0.5:
            self._trade(
                self._random.choice(WHALES), self._random.random() < 0.5, self._random.randrange(10**4, 10**5), 0
            )
        else:
            self._trade(self._person(), self._random.random() < 0.5, self._random.randrange(5, 400), 0)

    def _trade(self, account: int, buys_grain: bool, dollars: int, hope: int) -> None:
        """Dollars for grain or grain worth as much for dollars; who hopes for too much gets nothing."""
        amount = dollars * DOLLAR if buys_grain else dollars * GRAIN // 2
        least = hope * dollars * GRAIN
        function = "swap(bool,uint256,uint256,address)"
        self._ledger.call(
            account, self._at["pool"], "Pool", function, buys_grain, amount, least, self._address[account]
        )

    def _pay_grain(self) -> None:
        amount = int(self._random.lognormvariate(2.5, 1.2) * 10**6) * 10**12
        self._token(self._person(), "grain", "transfer(address,uint256)", self._person_address(), amount)

    def _make_or_burn_grain(self) -> None:
        if self._random.random() < 0.6:
            amount = self._random.randrange(10, 900) * GRAIN
            self._token(TREASURY, "grain", "mint(address,uint256)", self._person_address(), amount)
        else:
            self._token(self._person(), "grain", "burn(uint256)", self._random.randrange(1, 10**20))

    def _approve(self) -> None:
        token = self._random.choice(("usd", "grain", "boundless"))
        amount = self._random.choice((0, ALL, ALL, self._random.randrange(1, 1000) * DOLLAR))
        self._token(self._person(), token, "approve(address,uint256)", self._random.choice(self._strangers), amount)

    def _boundless(self) -> None:
        """All there is goes from whale to whale, until one breaks it up."""
        transfer = "transfer(address,uint256)"
        sender = self._whole_holder if self._whole_holder is not None else self._random.choice(WHALES)
        receiver = self._random.choice([whale for whale in WHALES if whale != sender])
        if self._whole_holder is None:
            amount = self._random.getrandbits(self._random.randrange(1, 250))
        elif self._random.random() < 0.06:
            amount, self._whole_holder = ALL // 3, None
            last = next(whale for whale in WHALES if whale not in (sender, receiver))
            self._token(sender, "boundless", transfer, self._address[last], amount)
        else:
            amount, self._whole_holder = ALL, receiver
        self._token(sender, "boundless", transfer, self._address[receiver], amount)

    def _relic(self) -> None:
        draw, at = self._random.random(), self._at["relics"]
        if draw < 0.35 or not self._relics:
            collector, count = self._random.choice(COLLECTORS), self._random.choice((1, 1, 2, 5))
            self._ledger.call(collector, at, "Relics", "mint(uint256)", count, gas=600_000)
            first = len(self._relics) + 1
            self._relics.update(dict.fromkeys(range(first, first + count), collector))
            return
        piece = self._random.choice(sorted(self._relics))
        owner = self._relics[piece]
        receiver = self._random.choice((*COLLECTORS, *PEOPLE))
        if draw < 0.85:
            values = (self._address[owner], self._address[receiver], piece)
            self._ledger.call(owner, at, "Relics", "transferFrom(address,address,uint256)", *values)
            self._relics[piece] = receiver
        elif draw < 0.95:
            self._ledger.call(owner, at, "Relics", "approve(address,uint256)", self._address[receiver], piece)
        else:
            self._ledger.call(owner, at, "Relics", "setApprovalForAll(address,bool)", self._address[receiver], True)

    def _ware(self) -> None:
        draw, at = self._random.random(), self._at["wares"]
        trader = self._random.choice(TRADERS)
        mine = sorted(kind for kind, owner in self._wares if owner == trader and self._wares[kind, owner] > 50)
        if draw < 0.25 or len(mine) < 2:
            kind, count = self._random.randrange(1, 40), self._random.randrange(100, 5_000)
            uri = f"harbor://wares/{kind}".encode() if self._random.random() < 0.3 else b""
            self._ledger.call(trader, at, "Wares", "mint(uint256,uint256,string)", kind, count, uri)
            self._wares[kind, trader] = self._wares.get((kind, trader), 0) + count
            return
        receiver = self._random.choice((*TRADERS, *PEOPLE))
        parties = (self._address[trader], self._address[receiver])
        if draw < 0.65:
            kinds, function = [self._random.choice(mine)], "safeTransferFrom(address,address,uint256,uint256,bytes)"
        else:
            kinds = sorted(self._random.sample(mine, self._random.randrange(2, min(6, len(mine)) + 1)))
            function = "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)"
        counts = [self._random.randrange(1, 40) for _ in kinds]
        for kind, count in zip(kinds, counts, strict=True):
            self._wares[kind, trader] -= count
            self._wares[kind, receiver] = self._wares.get((kind, receiver), 0) + count
        what = (kinds[0], counts[0]) if draw < 0.65 else (kinds, counts)
        self._ledger.call(trader, at, "Wares", function, *parties, *what, b"", gas=500_000)

    def _oddity(self) -> None:
        person, at, draw = self._person(), self._at["odd"], self._random.randrange(4)
        number = self._random.getrandbits(64)
        if draw == 0:
            note = self._random.randbytes(self._random.randrange(0, 70))
            self._ledger.call(person, at, "Oddities", "quiet(uint256,bytes)", number, note)
        elif draw == 1:
            text = self._random.choice(("gm", "Hafen ⚓ 港", "a word; with 'quotes' and \"more\"", "x" * 100)).encode()
            self._ledger.call(person, at, "Oddities", "message(string,string)", b"harbor", text)
        elif draw == 2:
            self._ledger.call(person, at, "Oddities", "borrowed(uint256,uint256)", self._random.randrange(5), number)
        else:
            self._ledger.call(person, at, "Oddities", "noise(uint256)", number)

    def _vault(self) -> None:
        person = self._person()
        amount = self._random.randrange(10**12, 10**17)
        self._ledger.deploy(person, "Vault", 1 + self._random.randrange(10**6), value=amount, gas=600_000)

    def _fail(self) -> None:
        """Transactions that are mined and come to nothing, each in a way of its own."""
        person, transfer = self._person(), "transfer(address,uint256)"
        draw = self._random.randrange(5)
        if draw == 0:
            self._token(person, "usd", transfer, self._person_address(), 10**9 * DOLLAR)
        elif draw == 1:
            values = (self._address[WHALES[0]], self._address[person], 10**6 * DOLLAR)
            self._token(person, "usd", "transferFrom(address,address,uint256)", *values)
        elif draw == 2:  # out of gas
            self._ledger.call(person, self._at["grain"], "Token", transfer, self._person_address(), GRAIN, gas=26_500)
        elif draw == 3:  # a constructor that refuses
            self._ledger.deploy(person, "Vault", 0, gas=400_000)
        else:  # a function that is not there
            self._ledger.send(person, self._at["pool"], data="0xdeadbeef", gas=60_000)

    def _token(self, sender: int, token: str, function: str, *values: int | str) -> None:
        self._ledger.call(sender, self._at[token], "Token", function, *values, gas=120_000)

    def _person(self) -> int:
        """Some are busier than others."""
        return PEOPLE[int(len(PEOPLE) * self._random.random() ** 1.7)]

    def _person_address(self) -> str:
        return self._address[self._person()]

    def _dollars(self) -> int:
        """People like round amounts; shops do not."""
        if self._random.random() < 0.5:
            return self._random.choice((5, 10, 20, 25, 50, 100, 200)) * DOLLAR
        return int(self._random.lognormvariate(3, 1) * 100) * DOLLAR // 100


def _constructor(values: list[object]) -> list[int | str | bytes]:
    return [value for value in values if isinstance(value, int | str | bytes)]
