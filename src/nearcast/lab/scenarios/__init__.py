"""The end-to-end experiments of *ePulsar*, Section 5.8 (Fig. 8 and 9): real processes on an emulated wide area.

`scenario` says what happens and when, `swarms` and `game` make one, `policies` decide where topics and clients are.
`runner` runs one scenario under one policy: `processes` at nodes (what they need to begin is in `startup`), among them
`clients`, and a `conductor` that plays the changes and looks at moves (`observed_moves`). `ledger` and `recovery`
judge, `report` and `plot` show.
"""
