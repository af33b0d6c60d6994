"""Admits, starts and ends reservations: compares rows with the world and acts on the difference.

Reading order: ``plan`` (what is to be done, pure), ``round`` (look, plan, do), ``box`` (the machine and its
processes), ``leader`` (one at a time), ``__main__`` (the loop).
"""
