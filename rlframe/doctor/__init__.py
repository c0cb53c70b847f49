"""What ``rlframe doctor`` looks at: one small function a check, each over inputs that it is given.

``finding`` is a line of the answer, ``site`` what the checks are given, ``software`` looks at
versions and plugins, ``devices`` at torch, GPUs, gloo and NCCL (the only one that imports torch),
``machine`` at threads, disk and shared memory, ``network`` at ports; ``examine`` runs them.
"""
