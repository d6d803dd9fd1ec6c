"""`trace` that is killed in the middle: `python -m tests.stack.backup_crash backup|restore ARGUMENTS ...`.

A backup dies before it copies objects, a restore between the data database and the state database.
"""

import os
import signal
import sys
from typing import Any

from tracelake.processes.main import main
from tracelake.stack import full_backup, full_restore


def _die(*_arguments: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    full_backup._copy_objects = _die  # type: ignore[assignment]
    full_restore.restore_state = _die  # type: ignore[attr-defined, assignment]
    main(sys.argv[1:])
