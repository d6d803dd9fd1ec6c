"""What people see: reads of one org, each a function of a connection and the org's id.

Nothing here writes. Costs follow what is shown, not what is stored: every statement goes through an index on what is
live, or takes a bounded number of rows off the newest end of one. Lists of a whole org are merged from those of its
jobs or datasets, because only these have an index that finished work of other orgs does not lengthen.
"""
