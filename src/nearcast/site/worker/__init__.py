"""The worker: an OS process that runs the processors of the topics assigned to it.

`worker` talks to the broker, `topics` knows which topics are here, `handover` decides what happens when one comes or
goes, and `processor_process` runs user code in a second process (`processor_main`) that shares the `spool` files.
"""
