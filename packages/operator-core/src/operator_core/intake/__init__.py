"""Alerts, webhooks and issues from elsewhere become incidents and tasks (`[[intake]]`)."""
