"""The network at its trained weights: linearised, differentiated, and never changed."""

from linlap.network.network import Linearization, Network

__all__ = ["Linearization", "Network"]
