"""Spawners that start a server only for a reservation, and the form that asks for one.

Reading order: ``form`` (what the form sends and shows), ``leases`` (from a server's start to its lease),
``mixin`` (a spawner that keeps to its lease), ``local`` (servers as processes of one machine).
"""
