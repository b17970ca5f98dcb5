"""What the server sends out by itself: webhooks, and the guard that keeps them away from private addresses."""
