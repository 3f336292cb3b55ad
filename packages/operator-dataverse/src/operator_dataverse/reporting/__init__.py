"""What goes back to Dataverse and to Teams: progress, states, results and cards, each exactly once in effect.

Journal and ledger are read after a cursor and become letters in the outbox, in one transaction with the cursor
(``projection``); the letters are carried out under the versions of the rows (``delivery``).
"""

from operator_dataverse.reporting.reporter import Reporter

__all__ = ["Reporter"]
