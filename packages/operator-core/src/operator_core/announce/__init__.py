"""Telling people and programs what happens: from the ledger, by rules, through the outbox, to their channels.

A projection over the ledger puts letters into the outbox, in one transaction with its own position; a courier carries
them out. Neither is in the way of the work: whoever changes a ticket knows nothing of channels.
"""
