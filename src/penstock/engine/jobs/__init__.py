"""Commands about single jobs: push, claim, settle, update, and what waits for them."""
