"""The verbs: everything Penstock can do with a job, each as a batch, gathered and committed together."""
