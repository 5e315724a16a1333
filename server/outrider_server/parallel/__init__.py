"""One target divided among processes of this machine (`--tensor-parallel`): transformers divides the weights, and every
process runs every pass. Rank 0 is the server; it alone holds K/V, and the others know of no session.

    rank 0    Engine - Target - model - attention --- whole heads --- slots
                         | order         | gather: q, k, v; scatter: what its heads saw
    rank 1                model - attention                                          (follower.py)
"""
