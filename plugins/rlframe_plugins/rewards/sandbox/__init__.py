"""Running foreign Python programs: each in processes of its own, with limits, killed as a tree.

The modules here import nothing but the standard library: ``box`` is the program of a process that
starts without site-packages.
"""
