"""What goes out of the product: a durable outbox of effects on other systems, and the channels that carry them."""
