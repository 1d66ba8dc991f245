"""The judge of a chaos run: reads the ledger's files, and nothing else. It shares no code with the system it judges.

    python -m nearcast.lab.chaos.checker FOLDER

Every publication carries its publisher's name and number in its payload, and everything is told apart by those:
the ids that Nearcast gives are part of what is judged. `docs/lab.md` says what each word of the result means.
"""
