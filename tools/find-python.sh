#!/bin/sh
# Prints the first Python that Trace supports (3.11 to 3.13) and that can make virtual environments.
# PYTHON=... overrides the search.
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11 python; fi
for candidate in "$@"; do
    found=$(command -v "$candidate" 2>/dev/null) || continue
    if "$found" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        printf '%s\n' "$found"
        exit 0
    fi
done
echo "Trace needs Python 3.11, 3.12 or 3.13 with the venv module on the PATH (or PYTHON=/path/to/python make ...)." >&2
exit 1
