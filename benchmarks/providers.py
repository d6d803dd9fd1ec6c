"""How close reading comes to the pace that a provider's limits allow.

    python -m benchmarks.providers [--quick | --smoke]

A fake node on loopback with the limits and error bodies of usual providers (tests/chain/providers.py), in virtual time:
client and node share a clock that sleeping moves on, so that the figures do not depend on the machine. One thread
reads. The last line is one JSON object; for each profile:

- `seconds`: virtual, with a latency of 20 ms for each request. `ideal`: what the limit alone takes.
- `calls` that were answered, `requests` that were sent, and how many of them were `refused` in part or whole.
"""

import json
import sys

from tests.chain.providers import COMPLETING, Profile
from tests.spark.evm.support import visit
from tests.support.chain import ServedChain, serve_chain

PROFILES = (
    "plain",
    "25 calls a second, items refused",
    "15 calls a second, items refused",
    "15 calls a second, requests refused",
    "10 requests a second",
    "2 requests a second with Retry-After",
    "no batches by name",
    "500 to a batch",
    "502 to each tenth",
    "not yet",
)
LATENCY, BATCH = 0.02, 20


def measure(chain: ServedChain, profile: Profile, blocks: int) -> dict[str, float]:
    with visit(chain, profile) as guest:
        guest.read(blocks)
    calls, requests = len(guest.provider.answered), guest.provider.requests
    ideal = max(
        calls / (profile.calls_per_second or float("inf")),
        calls / BATCH / (profile.requests_per_second or float("inf")),
        (calls if profile.most_batch == 0 else calls / BATCH) * LATENCY,
    )
    return {
        "seconds": round(guest.seconds, 1),
        "ideal": round(ideal, 1),
        "calls": calls,
        "requests": requests,
        "refused": guest.provider.refused,
    }


def main() -> None:
    blocks = 40 if "--smoke" in sys.argv else 200 if "--quick" in sys.argv else 1000
    by_name = {profile.name: profile for profile in COMPLETING}
    figures = {}
    with serve_chain(blocks) as chain:
        for name in PROFILES:
            figures[name] = measure(chain, by_name[name], blocks)
            print(f"{name:40} {figures[name]['seconds']:8.1f} s of {figures[name]['ideal']:6.1f}", flush=True)
    print(json.dumps({"blocks": blocks, "profiles": figures}))


if __name__ == "__main__":
    main()
