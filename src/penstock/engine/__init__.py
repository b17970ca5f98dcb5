"""The commands: everything that Penstock can do with a job. They are collected in batches and committed together."""
