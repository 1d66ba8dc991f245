"""`nearcast demo`: a city on one machine, a story in five acts, and an account of every message.

`city` says who is there, `nodes` where processes run (a wide area, or loopback), `deployment` starts everything,
`crowd` holds the clients, `story` plays the acts, `account` judges what happened.
"""
