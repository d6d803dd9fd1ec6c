"""One stack on one machine: its databases, object store, certificates, credentials and supervisor, backups."""
