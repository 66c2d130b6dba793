"""Files and batches, on the local disk: what is kept, for whom, and how the requests of a batch are answered."""
