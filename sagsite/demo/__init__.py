"""`make demo`: trips against faulty services, a killed worker, and what became of each, checked against the ledger."""
