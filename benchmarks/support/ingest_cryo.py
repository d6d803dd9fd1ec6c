"""cryo's side of the comparison, for the Python of its own environment; it knows nothing of ours.

One line of JSON in, one out: what `cryo.freeze` is to do, and how long that took, in seconds and in CPU seconds of this
process. The library is loaded before the first one.
"""

import json
import sys
import time

import cryo  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # cryo talks
    for line in sys.stdin:
        told = json.loads(line)
        began, began_own = time.perf_counter(), time.process_time()
        done = cryo.freeze(told["tables"], **told["options"])
        seconds, own = time.perf_counter() - began, time.process_time() - began_own
        answers.write(json.dumps({"seconds": seconds, "cpu": own, "failed": done["n_errored"]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
