"""Quotas of orgs: what each org may use, what it uses, and what happens above that.

`watch` is the loop that counts the usage and puts it into `book`, which routing and requests ask in memory. Above the
quota of queued tasks or stored bytes, events of the org are kept and make no tasks. `running` turns the quota of
running tasks into a limit that all tasks of the org share. `checks` counts exactly, under a lock, where a user asks for
work. `admin` shows and changes quotas.
"""
