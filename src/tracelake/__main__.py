"""`python -m tracelake` is the `trace` command."""

from tracelake.processes.main import main

if __name__ == "__main__":
    main()
