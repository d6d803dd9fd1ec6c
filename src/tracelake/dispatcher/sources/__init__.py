"""Sources: what comes from outside becomes events, routed in the transaction that stores it.

Webhooks: `webhook_paths` has the paths and secrets, `webhook_deliveries` checks a signature and stores a delivery once,
`delivery_retention` deletes old ones. Cron: `cron` stores the events of a slot that the scheduler fires. Always_on:
`monitor` keeps exactly one task of each source. `pause` stops a source of any kind. Manual sources are triggered by
users (`actions`).
"""
