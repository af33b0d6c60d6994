"""Tells people what ``gpudev_core.notices`` wrote down: by pages, terminals, webhook and mail.

Reading order: ``channel`` (what a channel is), ``feed``, ``webhook``, ``mail``, ``terminal`` (the four there
are), ``postman`` (who carries, and never lets one channel wait for another).
"""
