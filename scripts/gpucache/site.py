# SPDX-License-Identifier: BSD-2-Clause
"""What is counted of the code that asks for memory, while a trace is read."""


class Site:
    """Code that asks for memory, by its address."""
    __slots__ = ("num_allocs", "num_frees", "num_driver", "num_before", "bytes_total", "live",
                 "blocks", "most", "floor", "lives", "then", "moment")

    def __init__(self):
        self.num_driver = self.num_before = self.bytes_total = 0
        self.live = self.most = 0
        self.num_allocs = self.num_frees = self.blocks = 0  # known at the end
        self.floor = 0          # the least of a window
        self.then, self.moment = 0, -1  # what was live at this moment of Usage
        self.lives = [0] * 80   # by the binary digits of the life in ns

    def count(self, blocks):
        """All is known; blocks: those that are live."""
        self.num_frees, self.blocks = sum(self.lives), blocks
        self.num_allocs = self.num_frees + blocks - self.num_before

    def median_life_ns(self):
        """Half of its blocks lived no longer; to a factor of two. None: none was freed."""
        half, seen = sum(self.lives) / 2, 0
        for digits, number in enumerate(self.lives):
            seen += number
            if number and seen >= half:
                return 3 << digits >> 2
        return None
