"""The HTTP server of every service: listeners, the application of a listener, and admission.

`accepting` and `connections` accept connections within limits and deadlines; `server` serves HTTP on them. `app`
handles a request: `router` finds the endpoint, the service's `Admission` checks the caller, `bodies` reads a bounded
body, which is decoded strictly. `rates` and `fair_slots` limit how much one user or org may ask for at once.
"""
