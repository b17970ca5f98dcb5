"""Commands about single jobs (push, claim, settle, update), and the callers that wait for jobs."""
