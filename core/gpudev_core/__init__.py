"""The domain of the GPU dev portal: what a reservation is and which rules it keeps.

Decisions are pure functions over plain data; time is always an argument. Reading order:

1. ``models``        the vocabulary: GPU type, node, request, placement, status
2. ``catalogue``     every GPU type, from one place
3. ``settings``      ``portal.yaml`` and its environment overrides
4. ``requests``      what a person may ask for; one check for form, REST and API
5. ``placement``     which GPUs on which nodes, or none
6. ``quotas``        what a person may still have; ``maintenance``: which types are closed, and to whom
7. ``forecast``      when a waiting request starts
8. ``tables``, ``store``, ``doorbell``   where it is kept, and who hears of a change
9. ``lifecycle``     the allowed transitions, compare-and-set, one event line each
10. ``reservations`` file, end and read reservations: the one door for every caller
11. ``availability`` what is free, node by node; ``views``: both as JSON for people's clients
12. ``notices``      what people are told, when, on which channels and in which words
"""

__version__ = "0.1.0"
