"""Chaos: a whole deployment on an emulated wide area, a seeded schedule of faults, and a judge that trusts nobody.

`deployment` says what runs, `schedule` which faults come when, `runner` runs it: `services` that are restarted as an
init system would, `clients`, `mqtt_devices` and the `processor`, each with a `ledger` of its own; `faults` finds
processes and harms them; `store_dump` reads the stores afterwards. `checker` judges by the files alone and
shares no code with the rest; `report` shows what it found.
"""
