"""Tensor parallelism: one target divided among processes of this machine (`tensor_parallel`).

transformers divides the weights, and every process runs every pass. Rank 0 is the server; it alone holds K/V, and the
others know no sessions.

    rank 0    Engine - Target - model - attention --- whole heads --- slots
                         | message       | gather: q, k, v; scatter: attention output of its heads
    rank 1                model - attention                                          (worker.py)
"""
