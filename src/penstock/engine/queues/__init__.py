"""Commands about whole queues: settings, crons, webhooks, subscriptions."""
