"""Three pretend vendors behind one small HTTP server: flights, hotels and cars.

They stand for somebody else's system. They run as a process of their own (`python -m agents.simulators`), keep
their own SQLite file, import nothing of ours, and misbehave on request: see `faults` for the switches and `ledger`
for the words in which every call is recorded.
"""
