"""The local runner: takes invoked attempts and runs users' code, each attempt in a sandbox of its own.

- `service`: takes attempts, at most one of a task at a time. `attempt`: one of them, from its bundle to its report.
- `bundles`: verified bundles on this machine's disk. `languages`: how a bundle of each language is started.
- `function`, `launch`, `inside`, `memory`: a run in a sandbox with two addresses of its own and a limit of memory.
- `runtime_api`: the AWS Lambda Runtime API of one attempt. `egress`, `object_paths`: the only way out of it.
- `exchange`, `upstream`: HTTP towards the sandbox, and towards what lies behind the way out.
- `preparation`: what a run of an attempt is given. `outcome`, `output`: how it ended, for people; never with a token.
- `clients`: the programs that run a handler inside of the sandbox.

Nothing runs twice in one sandbox. The threat model is docs/adr/0039-runner-of-users-functions.md.
"""
