"""The worker: an OS process that runs the processors of the topics assigned to it.

`worker` talks to the broker, `topics` knows which topics are here, `handover` decides what happens when one comes or
goes. `processing_queue` puts messages into the `spool` files and submits them to `processor_process`, the second
process in which user code runs (`processor_main`).
"""
